"""Colours of tokens, alternatives that branch, and the surprise of a text."""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("playwright.sync_api", reason="needs Playwright: pip install 'onward[browser]'")

from playwright.sync_api import expect

if TYPE_CHECKING:
    from tests.playground.pages import Playground

pytestmark = pytest.mark.slow
SHADED = (
    ".editor [class*='p1'], .editor [class*='p2'], .editor [class*='p3'], .editor [class*='p4'], .editor [class*='p5']"
)


def open_alternatives(playground: Playground) -> None:
    """Put the pointer on the second generated token."""
    playground.colour("Probability")
    playground.page.locator(".editor .generated").nth(1).hover()
    expect(playground.page.locator(".alternatives")).to_be_visible()


def test_tokens_are_coloured_by_probability_with_a_legend(playground: Playground) -> None:
    playground.generate()
    expect(playground.page.locator(SHADED)).to_have_count(0)
    playground.colour("Probability")
    expect(playground.page.get_by_role("list", name="Legend")).to_contain_text("≥ 80%")
    expect(playground.page.locator(SHADED)).not_to_have_count(0)
    playground.open().generate()
    expect(playground.page.locator(SHADED)).not_to_have_count(0)  # what was chosen is kept
    playground.colour("Plain")
    expect(playground.page.locator(SHADED)).to_have_count(0)
    expect(playground.page.get_by_role("list", name="Legend")).to_have_count(0)


def test_a_pointer_on_a_token_shows_alternatives_with_percentages(playground: Playground) -> None:
    playground.generate()
    open_alternatives(playground)
    shown = playground.page.locator(".alternatives li")
    expect(shown.nth(4)).to_be_visible()
    texts = playground.page.locator(".alternatives .choice span").all_inner_texts()
    shares = [float(re.sub("[<%]", "", text)) for text in texts]
    assert shares == sorted(shares, reverse=True) and sum(shares) <= 101


def test_choosing_an_alternative_branches_there_and_continues(playground: Playground) -> None:
    prompt = playground.text
    playground.generate()
    before = playground.text
    first = playground.page.locator(".editor .generated").first.inner_text()
    open_alternatives(playground)
    other = playground.page.locator(".alternatives .choice:enabled").nth(2)
    chosen = other.locator("code").inner_text().replace("·", " ").replace("↵", "\n")
    playground.during(other.click)
    assert playground.text.startswith(prompt + first + chosen)
    assert playground.text != before
    playground.tab("Tree")
    expect(playground.page.locator(".node").nth(3)).to_be_attached()  # with what was there before the branch


def test_alternatives_are_chosen_by_keyboard_alone(playground: Playground) -> None:
    playground.generate()
    before = playground.text
    page = playground.page
    page.keyboard.press("Control+End")
    page.keyboard.press("Control+Space")
    box = page.get_by_role("dialog", name="Alternatives to")
    expect(box).to_be_visible()
    name = box.get_attribute("aria-label")
    page.keyboard.press("ArrowLeft")
    expect(page.locator(".alternatives")).not_to_have_attribute("aria-label", name or "")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowDown")
    playground.during(lambda: page.keyboard.press("Enter"))
    assert playground.text != before
    page.keyboard.press("Control+Space")
    expect(page.locator(".alternatives")).to_be_visible()
    page.keyboard.press("Escape")
    expect(page.locator(".alternatives")).to_have_count(0)
    expect(playground.editor).to_be_focused()


def test_a_pasted_text_gets_a_heat_map_with_bits_per_byte_and_perplexity(playground: Playground) -> None:
    text = "Once upon a time there was a refrigerator."
    playground.write(text)
    playground.button("Score").click()
    figures = playground.page.locator(".score")
    expect(figures).to_contain_text("bits per byte")
    answer = playground.page.request.post(
        f"{playground.url}/v1/completions",
        data={"model": "storyteller", "prompt": text, "max_tokens": 0, "echo": True, "logprobs": 0},
    ).json()
    values = [value for value in answer["choices"][0]["logprobs"]["token_logprobs"] if value is not None]
    num_bytes = len(text.encode()) - len(answer["choices"][0]["logprobs"]["tokens"][0].encode())
    bits = -sum(values) / math.log(2)
    expect(figures).to_contain_text(f"{bits / num_bytes:.3f}")
    expect(figures).to_contain_text(f"{math.exp(-sum(values) / len(values)):.3g}")
    expect(figures).to_contain_text(f"{len(values)} tokens")
    expect(playground.page.locator(".editor .s5")).not_to_have_count(0)  # the refrigerator
    assert playground.text == text


def test_prompt_tokens_have_alternatives_too_once_scored(playground: Playground) -> None:
    playground.write("Once upon a time")
    playground.button("Score").click()
    expect(playground.page.locator(".score")).to_be_visible()
    playground.focus()
    playground.page.keyboard.press("Control+End")
    playground.page.keyboard.press("Control+Space")
    expect(playground.page.get_by_role("dialog", name="Alternatives to ·time")).to_be_visible()


def test_probabilities_after_an_edit_are_not_shown(playground: Playground) -> None:
    playground.colour("Probability").write("The fox")
    playground.generate()
    expect(playground.page.locator(SHADED)).not_to_have_count(0)
    playground.page.keyboard.press("Control+Home")
    playground.page.keyboard.type("See: ")
    expect(playground.page.locator(SHADED)).to_have_count(0)
    expect(playground.page.locator(".editor .generated")).not_to_have_count(0)
    playground.page.keyboard.press("Control+z")
    expect(playground.page.locator(SHADED)).not_to_have_count(0)


def test_a_token_is_banned_and_favoured_and_the_biases_are_listed_and_removed(playground: Playground) -> None:
    playground.set("max_tokens", "8").set("temperature", "0").generate()
    banned = playground.page.locator(".editor .generated").nth(1).inner_text()
    open_alternatives(playground)
    playground.page.locator(".alternatives .weights").get_by_role("button", name="Ban").click()
    expect(playground.notice).to_contain_text("is banned from now on")
    biases = playground.page.get_by_role("list", name="Biased tokens").get_by_role("listitem")
    expect(biases).to_have_count(1)
    body = playground.request_of(lambda: playground.click("Another"))
    assert list(body["logit_bias"].values()) == [-100]
    assert playground.page.locator(".editor .generated").nth(1).inner_text() != banned
    open_alternatives(playground)
    playground.page.locator(".alternatives .ban:enabled").nth(2).click()
    expect(biases).to_have_count(2)
    biases.first.get_by_role("spinbutton").fill("-3")
    biases.first.get_by_role("spinbutton").press("Tab")
    playground.button("Remove the bias of").click()
    expect(biases).to_have_count(1)
    playground.page.get_by_role("button", name="Remove the bias of").click()
    expect(biases).to_have_count(0)
    assert "logit_bias" not in playground.request_of(playground.generate)
