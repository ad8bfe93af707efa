"""The API reference sends its examples."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("playwright.sync_api", reason="needs Playwright: pip install 'onward[browser]'")

from playwright.sync_api import expect

if TYPE_CHECKING:
    from playwright.sync_api import Locator

    from tests.playground.pages import Playground

pytestmark = pytest.mark.slow


def form(playground: Playground, anchor: str) -> Locator:
    playground.page.goto(f"{playground.url}/docs")
    return playground.page.locator(f"#{anchor} ~ form.try").first


def test_an_example_is_sent_and_its_answer_shown(playground: Playground) -> None:
    completions = form(playground, "post-v1-completions")
    completions.get_by_role("button", name="Send").click()
    answer = completions.locator("output")
    expect(answer).to_contain_text("200")
    body = json.loads(answer.inner_text().partition("\n\n")[2])
    assert body["object"] == "text_completion"


def test_a_path_is_completed_with_a_model_of_this_server(playground: Playground) -> None:
    models = form(playground, "get-v1-models-id")
    expect(models.get_by_role("textbox")).to_have_value("/v1/models/storyteller")
    models.get_by_role("button", name="Send").click()
    expect(models.locator("output")).to_contain_text('"id": "storyteller"')


def test_the_examples_follow_the_models_of_the_server(playground: Playground) -> None:
    models = form(playground, "get-v1-models-id")
    expect(models.get_by_role("textbox")).to_have_value("/v1/models/storyteller")
    new = {"object": "list", "data": [{"id": "new", "object": "model", "created": 1, "owned_by": "onward"}]}
    playground.page.route("**/v1/models", lambda route: route.fulfill(json=new))
    playground.page.evaluate("dispatchEvent(new Event('focus'))")  # as the browser does when one returns to the page
    completions = playground.page.locator("#post-v1-completions ~ form.try").first
    expect(completions.locator("textarea")).to_have_value(re.compile('"model": "new"'))
    expect(models.get_by_role("textbox")).to_have_value("/v1/models/new")


def test_an_error_is_an_answer_too(playground: Playground) -> None:
    completions = form(playground, "post-v1-completions")
    completions.locator("textarea").fill("{")
    completions.get_by_role("button", name="Send").click()
    expect(completions.locator("output")).to_contain_text(re.compile("^400"))


def test_the_title_is_larger_than_its_sections(playground: Playground) -> None:
    playground.page.goto(f"{playground.url}/docs/")
    sizes = playground.page.evaluate(
        "['h1', 'h2', 'h3'].map(name => parseFloat(getComputedStyle(document.querySelector(name)).fontSize))"
    )
    assert sizes == sorted(sizes, reverse=True) and len(set(sizes)) == 3
