"""Comparison, tokens, the API key that a server requires, and models that come and go."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import httpx2
import pytest

pytest.importorskip("playwright.sync_api", reason="needs Playwright: pip install 'onward[browser]'")

from playwright.sync_api import Route, expect

from tests.cli.conftest import onward
from tests.playground.browser import KEY
from tests.playground.pages import Playground, open_context
from tests.processes import served

if TYPE_CHECKING:
    from pathlib import Path

    from playwright.sync_api import Browser, Locator

pytestmark = pytest.mark.slow


def compare(playground: Playground) -> Locator:
    """Compare; return the verdict."""
    playground.show("Compare")
    playground.page.locator(".compare .primary").click()
    verdict = playground.page.locator(".compare [role=status]")
    expect(verdict).to_be_visible()
    return verdict


def test_the_command_for_a_real_model_is_next_to_the_built_in_one(playground: Playground) -> None:
    playground.page.get_by_role("button", name="Page").click()
    hint = playground.page.get_by_text("storyteller is a toy")
    expect(hint.get_by_role("code")).to_have_text("onward serve smollm2")
    playground.page.get_by_label("Model").select_option("toy")
    expect(hint).to_have_count(0)


def test_two_settings_are_compared_and_the_first_difference_is_marked(playground: Playground) -> None:
    playground.write("Once upon a time")
    expect(compare(playground)).to_contain_text("They differ from token")
    marks = playground.page.locator("mark")
    expect(marks).to_have_count(2)
    assert marks.nth(0).inner_text() != marks.nth(1).inner_text()
    expect(playground.page.get_by_role("table")).to_have_count(2)
    expect(playground.page.get_by_role("table").first.get_by_role("row").nth(4)).to_be_attached()


def test_equal_settings_do_not_differ(playground: Playground) -> None:
    playground.write("Once upon a time").set("temperature", "0")
    playground.show("Compare")
    named = playground.page.locator(".compare article > details > summary .hint")
    expect(named).to_have_text(["temperature: 0", "temperature: 0.8"])
    playground.page.get_by_label("Right").locator("summary").first.click()
    playground.page.locator("#side-1-temperature").fill("0")
    expect(named).to_have_text(["as on the other side"] * 2)
    expect(compare(playground)).to_have_text("No token differs.")


def test_two_models_are_compared(playground: Playground) -> None:
    playground.show("Compare")
    playground.page.get_by_label("Right").get_by_role("combobox").first.select_option("toy")
    bodies: list[str] = []
    playground.page.on("request", lambda request: bodies.append(request.post_data or ""))
    compare(playground)
    assert sum('"model":"toy"' in body for body in bodies) == 1
    assert sum('"model":"storyteller"' in body for body in bodies) == 1


def test_a_text_is_cut_into_tokens_with_ids_and_bytes(playground: Playground) -> None:
    playground.open("/tokenizer")
    playground.page.get_by_label("Text", exact=True).fill("Hi é<|endoftext|>")
    url = f"{playground.url}/tokenize"
    body = {"model": "storyteller", "prompt": "Hi é<|endoftext|>", "return_token_bytes": True}
    answer = playground.page.request.post(url, data=body).json()
    shown = playground.page.locator(".pieces li")
    expect(shown).to_have_count(answer["count"])
    ids = [int(shown.nth(index).locator("span").first.inner_text()) for index in range(answer["count"])]
    found = [shown.nth(index).locator(".bytes").inner_text() for index in range(answer["count"])]
    assert (ids, found) == (answer["tokens"], answer["token_bytes"])
    assert "c3" in found, "a token that is a part of a character"
    expect(playground.page.locator(".pieces .special")).to_contain_text("<|endoftext|>")
    expect(playground.page.get_by_text("18 bytes")).to_be_visible()


def test_ids_become_text(playground: Playground) -> None:
    playground.open("/tokenizer")
    playground.page.get_by_label("From ids").fill("788, 617")
    playground.button("To text").click()
    expect(playground.page.get_by_label("Text", exact=True)).to_have_value("Once upon")
    expect(playground.page.get_by_text("2 tokens")).to_be_visible()
    held: list[Route] = []
    playground.page.route("**/tokenize", lambda route: held.append(route))
    with playground.page.expect_request("**/tokenize"):
        playground.page.get_by_label("Text", exact=True).fill("Once")
    playground.page.get_by_label("From ids").fill("99999999")
    playground.button("To text").click()
    expect(playground.page.get_by_role("alert")).to_be_visible()
    held[0].continue_()
    expect(playground.page.get_by_text("1 tokens")).to_be_visible()
    expect(playground.page.get_by_role("alert")).to_be_visible()


def test_a_server_with_keys_shows_no_model_and_asks_for_one(browser: Browser, locked: str) -> None:
    context = open_context(browser)
    playground = Playground(context.new_page(), locked).open()
    page = playground.page
    assert "toy" not in page.content()
    field = page.get_by_label("This server's key")
    field.fill("sk-wrong")
    page.get_by_role("button", name="Use this key").click()
    expect(page.get_by_role("dialog").get_by_role("alert")).to_contain_text("Incorrect API key")
    field.fill(KEY)
    page.get_by_role("button", name="Use this key").click()
    expect(page.get_by_role("dialog")).to_have_count(0)
    expect(page.get_by_label("Model")).to_have_value("toy")
    prompt = playground.text
    playground.generate()
    assert len(playground.text) > len(prompt)
    assert KEY not in page.evaluate("JSON.stringify([{...localStorage}, {...sessionStorage}])")
    playground.open()
    expect(page.get_by_label("This server's key")).to_be_visible()
    context.close()


def test_a_key_is_kept_in_the_session_if_the_box_is_ticked(browser: Browser, locked: str) -> None:
    context = open_context(browser)
    playground = Playground(context.new_page(), locked).open()
    playground.page.get_by_label("This server's key").fill(KEY)
    playground.page.get_by_label("Keep it until this tab is closed").check()
    playground.page.get_by_role("button", name="Use this key").click()
    expect(playground.page.get_by_label("Model")).to_have_value("toy")
    playground.open()
    expect(playground.page.get_by_label("Model")).to_have_value("toy")
    assert KEY not in playground.page.evaluate("JSON.stringify({...localStorage})")
    context.close()


def change_models(url: str, admin: str, method: str, path: str = "", body: object = None) -> None:
    headers = {"authorization": f"Bearer {admin}"}
    answer = httpx2.request(method, f"{url}/v1/admin/models{path}", json=body, headers=headers, timeout=60)
    assert answer.status_code == 200, answer.text


def test_the_list_of_models_is_that_of_the_moment(browser: Browser, tmp_path: Path) -> None:
    folder = tmp_path / "models" / "guest"
    folder.mkdir(parents=True)
    (folder / "toy.json").write_text(json.dumps({"blocks": 256, "context_length": 2048}), encoding="utf-8")
    data = ("--data-dir", str(tmp_path / "data"))
    admin, user = (onward("key", "new", *new, *data).stdout.strip() for new in (("chief", "--admin"), ("alice",)))
    context = open_context(browser)
    with served(*data, "--model-folder", str(folder.parent), model="toy") as url:
        playground = Playground(context.new_page(), url).open()
        page = playground.page
        page.get_by_label("This server's key").fill(user)
        page.get_by_role("button", name="Use this key").click()
        shown = page.get_by_label("Model")
        expect(shown).to_have_value("toy")

        change_models(url, admin, "POST", body={"model": "guest"})
        shown.focus()
        shown.select_option("guest")
        expect(page.locator(".bar").get_by_role("option", name="guest")).to_be_attached()
        playground.generate()

        change_models(url, admin, "DELETE", "/guest")
        playground.generate()
        expect(page.get_by_role("alert")).to_contain_text("`guest` does not exist")
        expect(playground.notice).to_have_text("This server no longer has the model “guest”: “toy” is selected.")
        expect(shown).to_have_value("toy")
        prompt = playground.text
        playground.generate()
        assert len(playground.text) > len(prompt)

        change_models(url, admin, "POST", body={"model": "guest"})
        page.evaluate("dispatchEvent(new Event('focus'))")  # as the browser does when one returns to the page
        expect(page.locator(".bar").get_by_role("option", name="guest")).to_be_attached()
        playground.show("Compare")
        right = page.get_by_label("Right").get_by_role("combobox").first
        right.select_option("guest")
        change_models(url, admin, "DELETE", "/guest")
        page.locator(".compare .primary").click()
        expect(page.get_by_role("alert")).to_contain_text("`guest` does not exist")
        expect(right).to_have_value("toy")
        page.locator(".compare .primary").click()
        expect(page.locator(".compare [role=status]")).to_be_visible()

        page.route("**/v1/models", lambda route: route.abort())
        with page.expect_event("requestfailed"):
            page.evaluate("dispatchEvent(new Event('focus'))")
        expect(page.get_by_role("alert")).to_have_count(0)
    context.close()
    assert not playground.problems
