"""Every version is a node: candidates, names, bookmarks, pruning, files, and the browser's database."""

from __future__ import annotations

import pytest

pytest.importorskip("playwright.sync_api", reason="needs Playwright: pip install 'onward[browser]'")

from playwright.sync_api import Browser, Locator, expect

from tests.playground.pages import Playground, open_context

pytestmark = pytest.mark.slow


def tree(playground: Playground) -> Locator:
    """Open the tree; return its rows."""
    playground.tab("Tree")
    return playground.page.locator(".node")


def change(row: Locator, action: str) -> None:
    """Choose from the menu of a node."""
    row.get_by_role("button", name="Change").click()
    row.get_by_role("button", name=action).click()


def test_trying_again_loses_nothing(playground: Playground) -> None:
    playground.generate()
    first = playground.text
    playground.click("Another")
    second = playground.text
    assert first != second
    rows = tree(playground)
    expect(rows).to_have_count(3)
    rows.nth(1).locator(".node-text").click()
    playground.shows(first)
    rows.nth(2).locator(".node-text").click()
    playground.shows(second)
    expect(playground.page.locator(".editor .generated")).not_to_have_count(0)  # its colours come back with it


def test_several_candidates_are_shown_side_by_side_and_chosen_from(playground: Playground) -> None:
    prompt = playground.text
    playground.set("n", "3").set("max_tokens", "20").generate()
    cards = playground.page.locator(".candidates li")
    expect(cards).to_have_count(3)
    text = cards.nth(2).locator("p").inner_text()
    cards.nth(2).get_by_role("button").click()
    playground.shows(prompt + text)
    expect(cards.nth(2)).to_have_class("on-path")
    playground.button("Side by side").click()
    wide = playground.page.get_by_role("dialog", name="Versions side by side").locator("li")
    expect(wide).to_have_count(3)
    tops = [box["y"] for box in map(Locator.bounding_box, wide.all()) if box]
    assert len(set(tops)) == 1, "beside one another"
    wide.nth(0).get_by_role("button").click()
    expect(playground.page.get_by_role("dialog")).to_have_count(0)
    expect(cards.nth(0)).to_have_class("on-path")


def test_what_versions_share_is_quiet_and_the_rest_is_not(playground: Playground) -> None:
    playground.set("temperature", "0").set("max_tokens", "12").set("n", "2").generate()
    cards = playground.page.locator(".candidates li")
    expect(cards.first.locator(".shared")).to_have_text("")  # equal texts do not diverge
    playground.set("temperature", "1.3").click("Another")
    playground.tab("Candidates")
    expect(cards).to_have_count(4)
    texts = cards.locator("p").all_inner_texts()
    shared = cards.locator(".shared").all_inner_texts()
    assert all(text.startswith(beginning) for text, beginning in zip(texts, shared, strict=True))


def test_branches_are_drawn(playground: Playground) -> None:
    playground.set("max_tokens", "8").generate()
    playground.click("Another")
    playground.click("Continue")
    expect(tree(playground)).to_have_count(4)
    places = playground.page.locator(".graph .dot").evaluate_all("dots => dots.map(dot => dot.getAttribute('cx'))")
    assert places[0] == places[2] == places[3] != places[1], "the first version branches off, the last one goes on"
    expect(playground.page.locator(".graph .dot.on-path")).to_have_count(3)


def test_keys_and_buttons_switch_versions_and_generate_another_after_the_last(playground: Playground) -> None:
    playground.set("max_tokens", "8").generate()
    first = playground.text
    playground.focus()
    playground.during(lambda: playground.page.keyboard.press("Alt+ArrowRight"))
    second = playground.text
    assert second != first
    playground.page.keyboard.press("Alt+ArrowLeft")
    playground.shows(first).announced("Version 1 of 2.")
    playground.button("Next version").click()
    playground.shows(second)
    expect(playground.page.get_by_role("group", name="Versions")).to_contain_text("2/2")


def test_any_node_is_continued_with_other_settings(playground: Playground) -> None:
    prompt = playground.text
    playground.set("max_tokens", "8").generate().click("Continue")
    rows = tree(playground)
    expect(rows).to_have_count(3)
    rows.first.locator(".node-text").click()
    playground.shows(prompt).set("temperature", "0").set("max_tokens", "4")
    body = playground.request_of(playground.generate)
    assert (body["prompt"], body["temperature"], body["max_tokens"]) == (prompt, 0, 4)
    expect(tree(playground)).to_have_count(4)


def test_same_again_and_another_work_after_a_reload(playground: Playground) -> None:
    playground.set("max_tokens", "12").generate()
    text, seed = playground.text, playground.meter("seed")
    playground.kept().open()
    expect(playground.button("Another")).to_be_enabled()
    playground.click("Same again")
    assert (playground.text, playground.meter("seed")) == (text, seed)
    playground.kept().open().click("Another")
    assert playground.text != text
    assert playground.meter("seed") != seed


def test_a_page_that_is_left_at_once_has_kept_what_it_shows(playground: Playground) -> None:
    for _ in range(5):
        playground.set("max_tokens", "12").generate()
        text = playground.text
        playground.open().shows(text)
        expect(playground.button("Another")).to_be_enabled()


def test_on_a_mac_option_and_an_arrow_move_by_words_in_a_text(browser: Browser, site: str) -> None:
    context = open_context(browser)
    context.add_init_script("Object.defineProperty(navigator, 'platform', {get: () => 'MacIntel'})")
    playground = Playground(context.new_page(), site).open()
    page = playground.focus().page
    page.keyboard.press("Meta+a")  # what Control+a is elsewhere
    page.keyboard.insert_text("The fox sleeps and then")
    page.keyboard.press("Alt+ArrowLeft")
    page.keyboard.type("only ")
    assert playground.text == "The fox sleeps and only then"
    playground.generate().click("Another")
    page.get_by_role("button", name="Previous version").focus()
    page.keyboard.press("Alt+ArrowLeft")
    expect(page.locator(".versions")).to_contain_text("1/2")
    context.close()


def test_the_best_of_several_is_shown_although_it_cannot_be_streamed(playground: Playground) -> None:
    prompt = playground.text
    playground.set("best_of", "3").set("max_tokens", "10").generate()
    assert playground.text.startswith(prompt) and len(playground.text) > len(prompt)


def test_a_node_gets_a_name_and_a_bookmark(playground: Playground) -> None:
    playground.generate()
    rows = tree(playground)
    change(rows.nth(1), "Rename")
    playground.page.keyboard.type("My ending")
    playground.page.keyboard.press("Enter")
    expect(rows.nth(1)).to_contain_text("My ending")
    change(rows.nth(1), "Bookmark")
    playground.page.get_by_label("Bookmarks (1)").check()
    expect(rows).to_have_count(1)


def test_a_branch_is_pruned(playground: Playground) -> None:
    prompt = playground.text
    playground.generate()
    rows = tree(playground)
    text = playground.text
    change(rows.nth(1), "Remove")
    expect(rows).to_have_count(1)
    playground.shows(prompt)
    playground.page.get_by_role("button", name="Put it back").click()
    expect(rows).to_have_count(2)
    playground.shows(text)
    expect(playground.button("Another")).to_be_enabled()


def test_a_branch_is_not_put_back_after_another_text(playground: Playground) -> None:
    playground.generate()
    rows = tree(playground)
    change(rows.nth(1), "Remove")
    playground.write("One night, the sun").generate()
    expect(playground.page.get_by_role("button", name="Put it back")).to_have_count(0)


def test_the_tree_and_the_document_survive_a_reload(playground: Playground) -> None:
    playground.generate()
    playground.page.keyboard.press("Control+End")
    playground.page.keyboard.type(" And so on.")
    text = playground.text
    playground.kept().open()
    assert playground.text == text
    expect(tree(playground)).to_have_count(2)
