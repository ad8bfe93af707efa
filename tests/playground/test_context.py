"""Continuing a text that is longer than the context: which part of it is sent, and what is sent with it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

pytest.importorskip("playwright.sync_api", reason="needs Playwright: pip install 'onward[browser]'")

from playwright.sync_api import expect

if TYPE_CHECKING:
    from tests.playground.pages import Playground

pytestmark = pytest.mark.slow
LONG = "".join(f"Day {day}: Lily went to the garden and looked at the old tree.\n" for day in range(200))


def tokens_of(playground: Playground, text: str) -> int:
    body = {"model": "storyteller", "prompt": text, "add_special_tokens": False}
    count: int = playground.page.request.post(f"{playground.url}/tokenize", data=body).json()["count"]
    return count


def test_a_text_that_is_longer_than_the_context_continues(playground: Playground) -> None:
    playground.set("max_tokens", "40").write(LONG)
    body = playground.request_of(playground.generate)
    assert len(playground.text) > len(LONG)
    expect(playground.page.get_by_role("alert")).to_have_count(0)
    assert LONG.endswith(body["prompt"]) and body["prompt"].startswith("Day ")
    assert tokens_of(playground, body["prompt"]) <= 1024 - 40
    again = playground.request_of(lambda: playground.click("Continue"))
    assert again["prompt"].startswith(body["prompt"]), "the next one begins alike: its beginning is in the prefix cache"
    playground.focus()
    playground.page.keyboard.press("Control+Home")
    expect(playground.page.locator(".editor .left-out").first).to_be_visible()


def test_the_boundary_is_shown_in_the_text(playground: Playground) -> None:
    playground.set("max_tokens", "8").write(LONG).generate()
    cut = len(LONG) - len(playground.request_of(lambda: playground.click("Same again"))["prompt"])
    playground.page.locator(".editor .cm-content").evaluate(
        "(element, at) => element.cmTile.view.dispatch({selection: {anchor: at}, scrollIntoView: true})", cut
    )
    expect(playground.page.locator(".editor .cut")).to_have_text("the model reads from here on")
    playground.write("Short again").generate()
    expect(playground.page.locator(".editor .cut")).to_have_count(0)


def test_memory_note_and_lore_are_sent_and_shown_with_their_tokens(playground: Playground) -> None:
    page = playground.page
    playground.set("max_tokens", "8").write("She sat.\nShe opened the door").tab("Context")
    page.get_by_label("Memory").fill("Lily is seven.")
    page.get_by_label("Author's note").fill("[ It rains. ]")
    page.get_by_label("Lines after the note").fill("1")
    page.get_by_label("Lines after the note").press("Tab")
    for key, text in (("Door", "The door is blue."), ("dragon", "Dragons sing.")):
        page.get_by_role("button", name="Add an entry").click()
        page.get_by_label("Keys").last.fill(key)
        page.get_by_label("Text", exact=True).last.fill(text)
    parts = page.get_by_role("list", name="Parts of the prompt").get_by_role("listitem")
    expect(parts).to_have_count(5)
    lines = ["Lily is seven.\n", "The door is blue.\n", "She sat.\n", "[ It rains. ]\n", "She opened the door"]
    counts = [tokens_of(playground, line) for line in lines]
    expect(parts.locator("p")).to_have_text(lines)
    expect(parts.locator("span")).to_have_text(list(map(str, counts)))
    expect(page.get_by_text(f"{sum(counts)} of 1,016 tokens")).to_be_visible()
    assert playground.request_of(playground.generate)["prompt"] == "".join(lines)
    assert playground.text.startswith("She sat.\nShe opened the door"), "none of it is part of the text"


def test_same_again_sends_the_same_although_the_memory_changed_since(playground: Playground) -> None:
    playground.tab("Context")
    playground.page.get_by_label("Memory").fill("Lily is seven.")
    first = playground.request_of(playground.generate)
    text = playground.text
    playground.page.get_by_label("Memory").fill("Lily is eight.")
    playground.kept().open()
    again = playground.request_of(lambda: playground.click("Same again"))
    assert again["prompt"] == first["prompt"] and playground.text == text
    assert "eight" in playground.request_of(lambda: playground.click("Another"))["prompt"]


def test_a_memory_without_an_end_is_explained(playground: Playground) -> None:
    playground.tab("Context")
    playground.page.get_by_label("Memory").fill("It was so. " * 500)
    expect(playground.page.locator(".context [role=alert]")).to_contain_text("Memory is too long")
    playground.focus()
    playground.page.keyboard.press("Control+Enter")
    expect(playground.page.locator(".foot [role=alert]")).to_contain_text("Memory is too long")


def test_a_long_text_is_filled_in_and_scored(playground: Playground) -> None:
    playground.set("max_tokens", "8").write(LONG + LONG)
    playground.page.keyboard.press("Control+Home")
    playground.page.keyboard.press("ArrowDown")
    body = playground.request_of(lambda: playground.during(lambda: playground.page.keyboard.press("Alt+Enter")))
    assert (LONG + LONG).startswith(body["prompt"] + body["suffix"])
    playground.page.get_by_role("button", name="Accept").click()
    filled = playground.text
    assert len(filled) > len(LONG + LONG)
    playground.button("Score").click()
    expect(playground.page.locator(".score")).to_contain_text("bits per byte")
    scored = int(playground.page.locator(".score").inner_text().split("· ")[-1].split()[0])
    assert scored >= tokens_of(playground, filled) * 0.98
    assert playground.text == filled
