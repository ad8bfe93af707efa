"""The document: streaming, stopping, undo, and explanations of what went wrong."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("playwright.sync_api", reason="needs Playwright: pip install 'onward[browser]'")

from playwright.sync_api import expect

from tests.engines.upstreams.standin import stand_in
from tests.playground.pages import Playground, open_context
from tests.processes import served

if TYPE_CHECKING:
    from playwright.sync_api import Browser

    from tests.playground.proxy import Proxy

pytestmark = pytest.mark.slow


def test_the_first_page_has_a_model_a_prompt_and_one_button(playground: Playground) -> None:
    expect(playground.page.get_by_label("Model")).to_have_value("storyteller")
    assert len(playground.text) > 20
    expect(playground.button("Continue")).to_be_enabled()
    expect(playground.editor).to_be_focused()


def test_text_streams_into_the_document_and_is_marked_until_it_is_edited(playground: Playground) -> None:
    prompt = playground.text
    playground.generate()
    assert playground.text.startswith(prompt) and len(playground.text) > len(prompt)
    marked = playground.page.locator(".editor .generated")
    assert "".join("".join(marked.all_inner_texts()).split()) == "".join(playground.text[len(prompt) :].split())
    number = marked.count()
    playground.page.keyboard.press("Control+End")
    playground.page.keyboard.press("Backspace")
    expect(marked).to_have_count(number - 1)


def test_the_button_does_what_the_keys_do(playground: Playground) -> None:
    prompt = playground.text
    playground.click("Continue")
    assert len(playground.text) > len(prompt)


def test_escape_stops_and_keeps_what_has_arrived(browser: Browser, proxy: Proxy) -> None:
    context = open_context(browser)
    playground = Playground(context.new_page(), proxy.url).open()
    playground.set("max_tokens", "900").set("min_tokens", "900")
    prompt = "Stop me"
    playground.write(prompt)
    proxy.hold_after(8_000)  # so that the text does not end before
    playground.page.keyboard.press("Control+Enter")
    expect(playground.page.locator(".editor .generated").first).to_be_visible()
    playground.page.keyboard.press("Escape")
    playground.wait()
    playground.announced("Stopped")
    assert playground.text.startswith(prompt) and len(playground.text) > len(prompt)
    context.close()
    assert not playground.problems


def test_undo_takes_a_generation_back_as_a_whole_and_redo_restores_it(playground: Playground) -> None:
    playground.write("The fox")
    playground.generate()
    whole = playground.text
    marked = playground.page.locator(".editor .generated").count()
    playground.focus()
    playground.page.keyboard.press("Control+z")
    playground.shows("The fox").page.keyboard.press("Control+y")
    playground.shows(whole)
    expect(playground.page.locator(".editor .generated")).to_have_count(marked)


def test_undo_of_an_edit_restores_the_mark(playground: Playground) -> None:
    playground.generate()
    marked = playground.page.locator(".editor .generated").count()
    playground.page.keyboard.press("Control+End")
    playground.page.keyboard.press("Backspace")
    playground.page.keyboard.press("Control+z")
    expect(playground.page.locator(".editor .generated")).to_have_count(marked)


def test_the_same_seed_returns_the_same_text_and_another_seed_another_text(playground: Playground) -> None:
    playground.generate()
    first, seed = playground.text, playground.meter("seed")
    playground.click("Same again")
    assert (playground.text, playground.meter("seed")) == (first, seed)
    playground.click("Another")
    assert playground.meter("seed") != seed
    assert playground.text != first


def test_a_seed_that_was_entered_is_used(playground: Playground) -> None:
    playground.set("seed", "7").generate()
    assert playground.meter("seed") == "7"


def test_an_engine_without_seeds_gets_no_seed_that_the_page_drew(browser: Browser) -> None:
    """The engine also reports no log-probabilities of the raw distribution where a temperature acts."""
    with (
        stand_in("sglang") as engine,
        served("--model", f"there=sglang+{engine.url}", "--tokenizer", "there=toy", model=None) as url,
    ):
        context = open_context(browser)
        playground = Playground(context.new_page(), url).open()
        playground.write("x").set("temperature", "0.5").set("max_tokens", "3").generate().shows("xbcd")
        expect(playground.page.locator(".meter")).not_to_contain_text("seed")
        expect(playground.button("Same again")).to_be_disabled()
        playground.page.keyboard.press("Escape")
        playground.set("temperature", "0").generate()
        assert playground.meter("seed").isdecimal(), "it makes no difference where the most likely token is taken"
        playground.set("temperature", "0.5").set("seed", "7").generate()
        expect(playground.page.get_by_role("alert")).to_contain_text("does not have `seed`")
        context.close()
    assert not playground.problems


def test_only_changed_settings_are_sent(playground: Playground) -> None:
    playground.set("temperature", "0.5")
    body = playground.request_of(playground.generate)
    assert body["temperature"] == 0.5
    assert not {"top_p", "presence_penalty", "n", "best_of", "echo"} & body.keys()


def test_a_setting_out_of_range_is_explained_and_nothing_is_sent_without_it(playground: Playground) -> None:
    page = playground.page
    page.locator("#write-temperature").fill("3")
    expect(page.get_by_text("The maximum is 2.")).to_be_visible()
    playground.tab("Numbers").tab("Settings")
    expect(page.locator("#write-temperature")).to_have_value("3")
    for name in ("Continue", "Share", "Copy as"):
        playground.button(name).click()
        expect(page.locator(".problem")).to_contain_text("temperature: The maximum is 2.")
        page.get_by_role("button", name="Dismiss", exact=True).click()
    assert not [url for url in playground.requests if url.endswith("/v1/completions")]
    page.get_by_role("combobox", name="Preset").select_option("Careful")
    expect(page.locator("#write-temperature")).to_have_value("0.3")
    page.locator("#write-temperature").fill("x")
    page.get_by_role("button", name="Reset temperature").click()
    assert "temperature" not in playground.request_of(playground.generate)


def test_a_setting_that_another_version_has_kept_out_of_range_is_shown_and_can_be_changed(
    playground: Playground,
) -> None:
    page = playground.page
    page.evaluate("localStorage.setItem('onward-settings', JSON.stringify({temperature: 5}))")
    page.goto("about:blank")
    playground.open()
    expect(page.locator("#write-temperature")).to_have_value("5")
    page.get_by_role("combobox", name="Preset").select_option("Careful")
    expect(page.locator("#write-temperature")).to_have_value("0.3")


def test_a_comparison_names_the_setting_that_is_out_of_range(playground: Playground) -> None:
    page = playground.page
    playground.show("Compare")
    page.get_by_role("article", name="Right").locator("summary").filter(has_text="Settings").click()
    page.locator("#side-1-temperature").fill("3")
    page.get_by_role("button", name="Compare", exact=True).last.click()
    expect(page.locator(".compare .problem")).to_contain_text("temperature: The maximum is 2.")
    page.locator("#side-1-temperature").fill("1")
    expect(page.locator(".compare .problem")).to_have_count(0)


def test_an_error_is_shown_in_place_in_the_server_s_words(playground: Playground) -> None:
    playground.generate()
    playground.set("max_tokens", "5000").generate()
    alert = playground.page.get_by_role("alert").first
    expect(alert).to_contain_text("context")
    expect(playground.button("Same again")).to_be_enabled()
    playground.page.get_by_role("button", name="Dismiss", exact=True).click()
    expect(playground.page.locator(".problem")).to_have_count(0)


def test_the_meter_counts_generated_cached_and_remaining_tokens(playground: Playground) -> None:
    playground.set("max_tokens", "12").generate()
    assert 1 <= int(playground.meter("generated")) <= 12
    assert playground.meter("first token").endswith(" ms")
    assert int(playground.meter("context left")) < 1024
    playground.click("Same again")
    assert int(playground.meter("cached")) > 0


def test_a_preset_changes_settings_and_a_new_one_can_be_saved(playground: Playground) -> None:
    page = playground.page
    page.get_by_label("Preset").select_option("Most likely")
    expect(page.locator("#write-temperature")).to_have_value("0")
    playground.set("top_k", "3")
    page.get_by_label("Name of a new preset").fill("Mine")
    page.keyboard.press("Enter")
    page.get_by_label("Preset").select_option("Story")
    expect(page.locator("#write-top_k")).to_have_value("")
    playground.open()
    page.get_by_label("Preset").select_option("Mine")
    expect(page.locator("#write-top_k")).to_have_value("3")
    page.get_by_role("button", name="Remove preset").click()
    expect(page.get_by_label("Preset").get_by_role("option", name="Mine")).to_have_count(0)


def test_a_setting_can_be_reset(playground: Playground) -> None:
    playground.button("Reset temperature").click()
    expect(playground.page.locator("#write-temperature")).to_have_value("")
    expect(playground.page.locator("#write-temperature")).to_have_attribute("placeholder", "1")


def test_the_strict_profile_gets_openai_s_fields_only(browser: Browser) -> None:
    with served("--profile", "strict") as url:
        context = open_context(browser)
        playground = Playground(context.new_page(), url).open()
        prompt = playground.text
        body = playground.request_of(playground.generate)
        assert not {"return_token_ids", "min_p"} & body.keys()
        assert body["stream_options"] == {"include_usage": True}
        assert len(playground.text) > len(prompt)
        expect(playground.page.locator("#write-min_p")).to_have_count(0)
        context.close()


def test_the_page_says_what_it_is_before_its_script_has_arrived(browser: Browser, site: str) -> None:
    context = open_context(browser)
    page = context.new_page()
    page.route("**/playground.js*", lambda route: route.abort())
    page.goto(site)
    expect(page.get_by_role("heading", name="Onward")).to_be_visible()
    context.close()


def end_at_once(playground: Playground) -> None:
    """Answer the next completions with a text that the model ended itself."""
    end = {"id": "cmpl-1", "object": "text_completion", "created": 1, "model": "storyteller"}
    choice = {"text": " The end.", "index": 0, "logprobs": None, "finish_reason": "stop"}
    events = f"id: 1\ndata: {json.dumps(end | {'choices': [choice]})}\n\nid: 2\ndata: [DONE]\n\n"
    playground.page.route("**/v1/completions", lambda route: route.fulfill(body=events))


def test_a_text_that_the_model_has_ended_can_be_continued_anyway(playground: Playground) -> None:
    end_at_once(playground)
    playground.generate()
    expect(playground.notice).to_have_text("The model ended the text here.")
    playground.page.unroute("**/v1/completions")
    before = playground.text
    body = playground.request_of(lambda: playground.click("Continue anyway"))
    assert body["ban_eos_token"] is True
    assert playground.text.startswith(before) and len(playground.text) > len(before)


def test_the_notice_about_the_end_of_a_text_disappears_with_it(playground: Playground) -> None:
    end_at_once(playground)
    playground.generate()
    expect(playground.notice).to_have_text("The model ended the text here.")
    playground.new_story()
    expect(playground.notice).to_have_count(0)


@pytest.mark.parametrize(
    ("until", "cut"), [("a sentence ends", r"[^.!?]*[.!?]+[\"']*"), ("a paragraph ends", r"\n*[^\n]+")]
)
def test_a_text_continues_until_a_sentence_or_a_paragraph_ends(playground: Playground, until: str, cut: str) -> None:
    playground.set("max_tokens", "300").set("seed", "4").write("Once upon a time")
    playground.page.get_by_label("Continue until").select_option(until)
    playground.generate()
    text = playground.text.removeprefix("Once upon a time")
    assert text.strip() and re.fullmatch(cut, text)
    expect(playground.page.locator(".editor .generated")).not_to_have_count(0)
    playground.click("Same again")
    assert playground.text == "Once upon a time" + text


def test_a_text_that_the_model_ends_at_once_is_explained(playground: Playground) -> None:
    playground.set("max_tokens", "0").generate()
    expect(playground.notice).to_contain_text("generated nothing")
    playground.tab("Tree")
    expect(playground.page.locator(".node")).to_have_count(1)


def test_a_second_tab_takes_over_the_tree(playground: Playground) -> None:
    playground.generate()
    playground.kept()
    other = Playground(playground.page.context.new_page(), playground.url).open()
    assert other.text == playground.text
    expect(playground.notice).to_contain_text("opened in another tab")
    other.write("Of the second tab").kept()
    playground.open()
    assert playground.text == "Of the second tab"
