"""Filling in text at the cursor, and rewriting with a prediction."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

pytest.importorskip("playwright.sync_api", reason="needs Playwright: pip install 'onward[browser]'")

from playwright.sync_api import expect

if TYPE_CHECKING:
    from tests.playground.pages import Playground

pytestmark = pytest.mark.slow
BEFORE, AFTER = "Once upon a time", " They lived happily ever after."


def fill(playground: Playground) -> str:
    """Fill in text between two sentences; return the document with the proposal."""
    playground.write(BEFORE + AFTER).set("seed", "3").set("max_tokens", "24")
    playground.focus()
    playground.page.keyboard.press("Control+End")
    for _ in AFTER:
        playground.page.keyboard.press("ArrowLeft")
    playground.during(lambda: playground.page.keyboard.press("Alt+Enter"))
    expect(playground.page.get_by_text("Keep the text that was filled in?")).to_be_visible()
    return playground.text


def test_enter_accepts_a_proposal(playground: Playground) -> None:
    filled = fill(playground)
    assert filled.startswith(BEFORE) and filled.endswith(AFTER) and len(filled) > len(BEFORE + AFTER)
    playground.page.keyboard.press("Enter")
    expect(playground.page.get_by_text("Keep the text that was filled in?")).to_have_count(0)
    assert playground.text == filled
    playground.tab("Tree")
    expect(playground.page.locator(".node.on-path")).to_have_count(3)


def test_escape_rejects_a_proposal(playground: Playground) -> None:
    fill(playground)
    playground.page.keyboard.press("Escape")
    playground.shows(BEFORE + AFTER)
    playground.page.keyboard.type("!")
    playground.shows(f"{BEFORE}!{AFTER}")  # the cursor is where it was


def test_the_suffix_is_what_follows_the_cursor(playground: Playground) -> None:
    body = playground.request_of(lambda: fill(playground))
    assert (body["prompt"], body["suffix"]) == (BEFORE, AFTER)


def test_rewriting_predicts_what_follows_the_cursor(playground: Playground) -> None:
    playground.write("Once upon a time").set("temperature", "0").set("max_tokens", "60").generate()
    whole = playground.text
    playground.focus()
    playground.page.keyboard.press("Control+Home")
    for _ in BEFORE:
        playground.page.keyboard.press("ArrowRight")
    body = playground.request_of(lambda: playground.click("Rewrite"))
    assert body["prediction"] == {"type": "content", "content": whole.removeprefix(BEFORE)}
    assert playground.text == whole, "a prediction changes no token"
    expect(playground.notice).to_contain_text("predicted tokens were accepted")
    assert int(playground.notice.inner_text().split()[0]) > 0
