"""Every version is a node: candidates, names, bookmarks, pruning, files, and the browser's own database."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("playwright.sync_api", reason="needs Playwright: pip install 'onward[browser]'")

from playwright.sync_api import expect

if TYPE_CHECKING:
    from playwright.sync_api import Locator

    from tests.playground.pages import Playground

pytestmark = pytest.mark.slow


def tree(playground: Playground) -> Locator:
    """Open the tree; return its rows."""
    playground.page.get_by_role("tab", name="Tree").click()
    return playground.page.locator(".node")


def test_trying_again_loses_nothing(playground: Playground) -> None:
    playground.generate()
    first = playground.text
    playground.click("Another")
    second = playground.text
    assert first != second
    rows = tree(playground)
    expect(rows).to_have_count(3)
    rows.nth(1).locator(".node-text").click()
    assert playground.text == first
    rows.nth(2).locator(".node-text").click()
    assert playground.text == second
    assert playground.page.locator(".editor .generated").count() > 0, "its colours come back with it"


def test_several_candidates_are_shown_side_by_side_and_chosen_from(playground: Playground) -> None:
    prompt = playground.text
    playground.set("n", "3").set("max_tokens", "20").generate()
    cards = playground.page.locator(".candidates li")
    expect(cards).to_have_count(3)
    text = cards.nth(2).locator("p").inner_text()
    cards.nth(2).get_by_role("button").click()
    assert playground.text == prompt + text
    expect(cards.nth(2)).to_have_class("on-path")


def test_the_best_of_several_is_shown_although_it_cannot_be_streamed(playground: Playground) -> None:
    prompt = playground.text
    playground.set("best_of", "3").set("max_tokens", "10").generate()
    assert playground.text.startswith(prompt) and len(playground.text) > len(prompt)


def test_a_node_gets_a_name_and_a_bookmark(playground: Playground) -> None:
    playground.generate()
    rows = tree(playground)
    rows.nth(1).get_by_role("button", name="Rename").click()
    playground.page.keyboard.type("My ending")
    playground.page.keyboard.press("Enter")
    expect(rows.nth(1)).to_contain_text("My ending")
    rows.nth(1).get_by_role("button", name="Bookmark").click()
    playground.page.get_by_label("Bookmarks (1)").check()
    expect(rows).to_have_count(1)


def test_a_branch_is_pruned(playground: Playground) -> None:
    prompt = playground.text
    playground.generate()
    rows = tree(playground)
    rows.nth(1).get_by_role("button", name="Remove").click()
    expect(rows).to_have_count(1)
    assert playground.text == prompt


def test_the_tree_and_the_document_survive_a_reload(playground: Playground) -> None:
    playground.generate()
    playground.page.keyboard.press("Control+End")
    playground.page.keyboard.type(" And so on.")
    text = playground.text
    playground.page.wait_for_timeout(500)  # it is kept after 300 ms without a change
    playground.open()
    assert playground.text == text
    assert tree(playground).count() == 2


def test_the_tree_is_exported_and_imported(playground: Playground, tmp_path: Path) -> None:
    playground.generate()
    rows = tree(playground)
    with playground.page.expect_download() as download:
        playground.button("Export").click()
    file = tmp_path / "tree.json"
    download.value.save_as(file)
    nodes = json.loads(file.read_text(encoding="utf-8"))["nodes"]
    assert "".join(node["text"] for node in nodes) == playground.text
    playground.page.get_by_label("Import").set_input_files(file)
    expect(playground.notice).to_have_text("2 nodes were imported.")
    expect(rows).to_have_count(4)


@pytest.mark.parametrize(("content", "message"), [("{", "not JSON"), ("{}", "not a tree")])
def test_a_wrong_file_is_refused(playground: Playground, tmp_path: Path, content: str, message: str) -> None:
    file = tmp_path / "tree.json"
    file.write_text(content)
    tree(playground)
    playground.page.get_by_label("Import").set_input_files(file)
    expect(playground.page.get_by_role("alert")).to_contain_text(message)


def test_a_new_document_leaves_the_old_one_in_the_tree(playground: Playground) -> None:
    old = playground.text
    playground.button("New").click()
    assert playground.text == ""
    playground.page.keyboard.type("Else")
    playground.generate()
    rows = tree(playground)
    expect(rows).to_have_count(3)
    rows.nth(0).locator(".node-text").click()
    assert playground.text == old
