"""The library: many stories, searched, renamed, exported, and imported from files of other programs."""

from __future__ import annotations

import json
import re
import time
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("playwright.sync_api", reason="needs Playwright: pip install 'onward[browser]'")

from playwright.sync_api import expect

from tests.playground.pages import Playground

if TYPE_CHECKING:
    from pathlib import Path

    from playwright.sync_api import Locator, Route

pytestmark = pytest.mark.slow


def change(row: Locator, action: str) -> None:
    """Choose from the menu of a story."""
    row.get_by_role("button", name="Change").click()
    row.get_by_role("button", name=action).click()


def file_of(name: str, content: object) -> dict[str, Any]:
    text = content if isinstance(content, str) else json.dumps(content)
    return {"name": name, "mimeType": "application/octet-stream", "buffer": text.encode()}


IS_KEPT = """text => new Promise(resolve => {
    const opened = indexedDB.open("onward");
    opened.onsuccess = () => {
        const found = opened.result.transaction("values").objectStore("values").getAll();
        found.onsuccess = () => {
            opened.result.close();
            resolve(found.result.some(each => each?.text?.startsWith?.(text)));
        };
    };
})"""
"""Whether the browser's database has a document that begins with a text."""


def test_stories_are_opened_named_found_and_removed(playground: Playground) -> None:
    page = playground.page
    playground.write("The fox sleeps").generate()
    fox = playground.text
    playground.new_story()
    expect(page.locator(".meter")).to_have_count(0)
    expect(page.locator(".status")).to_have_text("0 words")
    page.keyboard.press("Control+z")
    assert playground.text == "", "undo does not lead into another story"
    playground.write("A hen walks")
    rows = playground.stories()
    expect(rows).to_have_count(2)
    change(rows.nth(0), "Rename")
    page.get_by_label("Title", exact=True).fill("About a hen")
    page.keyboard.press("Enter")
    expect(rows.nth(0)).to_contain_text("About a hen")
    page.get_by_label("Find in all stories").fill("fox sl")
    expect(rows).to_have_count(1)
    rows.nth(0).locator(".story").click()
    expect(playground.button("Another")).to_be_enabled()
    playground.shows(fox)
    playground.tab("Tree")
    expect(page.locator(".node")).to_have_count(2)
    rows = playground.stories()
    change(rows.filter(has_text="About a hen"), "Remove")
    expect(rows).to_have_count(1)
    change(rows.nth(0), "Remove")
    expect(rows).to_have_count(0)


def test_a_story_that_was_removed_can_be_put_back_while_the_list_is_open(playground: Playground) -> None:
    page = playground.page
    playground.write("A hen walks").new_story().write("The fox sleeps").generate()
    fox = playground.text
    rows = playground.stories()
    expect(rows).to_have_count(2)
    status = page.get_by_role("dialog").get_by_role("status")
    expect(status).to_have_count(1)  # screen readers read what changes in it, and may miss one that comes with its text
    change(rows.filter(has_text="The fox"), "Remove")
    expect(status).to_contain_text("“The fox")
    expect(rows).to_have_count(1)
    page.get_by_role("button", name="Put it back").click()
    expect(rows).to_have_count(2)
    expect(page.get_by_role("button", name="Put it back")).to_have_count(0)
    rows.filter(has_text="The fox").locator(".story").click()
    playground.shows(fox)
    playground.tab("Tree")
    expect(page.locator(".node")).to_have_count(2)
    change(playground.stories().filter(has_text="A hen"), "Remove")
    page.keyboard.press("Escape")
    expect(playground.stories()).to_have_count(1)
    expect(page.get_by_role("button", name="Put it back")).to_have_count(0)


def test_the_open_story_is_the_first_of_the_list_before_it_is_saved(playground: Playground) -> None:
    """Rows that change their places while the list is open move away from under the pointer."""
    playground.write("Of old").kept()
    playground.page.clock.install()  # nothing that waits happens any more: the page saves a while after a change
    playground.page.clock.pause_at(time.time() + 3600)
    playground.new_story().write("Of today")
    rows = playground.stories()
    expect(rows).to_have_count(2)
    expect(rows.first).to_contain_text("Of today")
    playground.kept()


def test_the_open_story_its_name_and_notes_survive_a_reload(playground: Playground) -> None:
    playground.write("The fox sleeps").tab("Context")
    playground.page.get_by_label("Memory").fill("Foxes are red.")
    change(playground.stories().first, "Rename")
    playground.page.get_by_label("Title", exact=True).fill("Fox")
    playground.page.keyboard.press("Enter")
    playground.kept().open()
    assert playground.text == "The fox sleeps"
    expect(playground.page.get_by_role("button", name="Stories:")).to_contain_text("Fox")
    playground.tab("Context")
    expect(playground.page.get_by_label("Memory")).to_have_value("Foxes are red.")


def test_a_page_that_is_left_while_text_is_generated_keeps_what_came(playground: Playground) -> None:
    playground.set("max_tokens", "900").write("The fox sleeps")
    playground.focus()
    playground.page.keyboard.press("Control+Enter")
    expect(playground.page.locator(".editor .cm-content")).to_contain_text(re.compile("The fox sleeps.+"))
    came = playground.text
    playground.page.wait_for_function(IS_KEPT, arg=came)
    playground.open()
    assert playground.text.startswith(came)


def test_two_tabs_lose_none_of_each_others_stories(playground: Playground) -> None:
    playground.write("Of the first tab").kept()
    other = Playground(playground.page.context.new_page(), playground.url).open()
    other.new_story().write("Of the second tab").kept()
    playground.open()
    playground.page.keyboard.type("!")
    playground.new_story().write("Of the first tab again").kept()
    other.write("Of the second tab still").kept()  # the first tab has opened this story: it becomes another one
    expect(other.notice).to_contain_text("kept as a copy")
    playground.open()
    expect(playground.stories()).to_have_count(4)


def test_what_is_written_in_a_tab_that_another_one_has_replaced_is_kept(playground: Playground) -> None:
    """Whoever looks at the page in a second tab, and goes on in the first one, loses nothing."""
    playground.write("The fox sleeps.").kept()
    other = Playground(playground.page.context.new_page(), playground.url).open()
    expect(playground.notice).to_contain_text("opened in another tab")
    other.page.close()
    playground.generate().kept()
    written = playground.text
    playground.open()
    assert playground.text == written
    rows = playground.stories()
    expect(rows).to_have_count(2)
    expect(rows.first).to_contain_text("The fox sleeps. (copy)")


HELD = """{
    const post = BroadcastChannel.prototype.postMessage, held = [];
    BroadcastChannel.prototype.postMessage = function (message) { held.push(() => post.call(this, message)); };
    window.sayAll = () => {
        BroadcastChannel.prototype.postMessage = post;
        held.forEach(say => say());
    };
}"""
"""A page says nothing to others until it is told to: as if they were opened at the same moment."""


def test_of_two_tabs_that_are_restored_at_the_same_moment_one_saves(playground: Playground) -> None:
    playground.write("The fox sleeps.").kept()
    playground.page.context.add_init_script(HELD)
    playground.open()
    other = Playground(playground.page.context.new_page(), playground.url).open()
    playground.page.evaluate("sayAll()")
    other.page.evaluate("sayAll()")
    expect(playground.notice).to_contain_text("opened in another tab")
    other.write("The hen walks.").kept()
    playground.page.close()
    other.open()
    assert other.text == "The hen walks."
    expect(other.stories()).to_have_count(1)


FULL = """() => {
    const put = IDBObjectStore.prototype.put;
    window.makeRoom = () => { IDBObjectStore.prototype.put = put; };
    IDBObjectStore.prototype.put = () => { throw new DOMException("full", "QuotaExceededError"); };
}"""


def test_a_story_that_there_is_no_room_for_is_not_left_and_is_kept_when_there_is(playground: Playground) -> None:
    page = playground.page
    playground.write("The fox sleeps").kept()
    page.evaluate(FULL)
    playground.generate()
    expect(playground.notice).to_contain_text("no room for the story")
    written = playground.text
    playground.button("New story").click()
    expect(page.get_by_role("alert")).to_contain_text("no room for the open story")
    playground.shows(written)
    page.evaluate("makeRoom()")
    playground.focus()
    page.keyboard.press("Control+End")
    page.keyboard.type("!")
    playground.kept().open()
    assert playground.text == written + "!"
    playground.tab("Tree")
    expect(page.locator(".node")).to_have_count(2)


def test_a_story_that_there_is_no_room_for_can_be_removed(playground: Playground) -> None:
    playground.write("The fox sleeps").kept()
    playground.page.evaluate(FULL)
    playground.generate()
    rows = playground.stories()
    change(rows.first, "Remove")
    expect(rows).to_have_count(0)
    expect(playground.editor).not_to_contain_text("The fox")


def test_what_was_asked_for_in_one_story_is_not_written_into_another(playground: Playground) -> None:
    """The server counts the tokens of the memory first, and may be away."""
    page = playground.page
    held: list[Route] = []
    playground.write("The fox sleeps").generate().tab("Context")
    playground.focus()
    page.keyboard.press("Control+Home")
    page.route("**/tokenize", lambda route: held.append(route))
    page.get_by_label("Memory").fill("Foxes are red.")
    playground.button("Rewrite").click()
    playground.shows("")
    playground.new_story().write("A hen walks").kept()
    page.wait_for_timeout(0)  # routes are known
    for route in held:
        route.abort()
    expect(page.locator(".problem")).to_contain_text("cannot be reached")  # the panel of the memory says so, too
    assert playground.text == "A hen walks"


def test_a_story_is_exported_as_text_markdown_and_json_and_read_again(playground: Playground, tmp_path: Path) -> None:
    playground.write("# The fox\n*sleeps*").generate()
    text = playground.text
    contents = {}
    for kind, label in (("txt", "plain text"), ("md", "Markdown"), ("json", "with its tree")):
        with playground.page.expect_download() as download:
            change(playground.stories().first, label)
        download.value.save_as(tmp_path / f"fox.{kind}")
        contents[kind] = (tmp_path / f"fox.{kind}").read_text(encoding="utf-8")
        playground.page.get_by_role("button", name="Close", exact=True).click()
    assert contents["txt"] == text
    assert "\\# The fox" in contents["md"] and "\\*sleeps" in contents["md"]
    assert "".join(node["text"] for node in json.loads(contents["json"])["nodes"]) == text
    playground.import_file(tmp_path / "fox.json")
    expect(playground.notice).to_contain_text("was imported")
    assert playground.text == text
    expect(playground.page.locator(".editor .generated")).not_to_have_count(0)  # tokens included
    playground.tab("Tree")
    expect(playground.page.locator(".node")).to_have_count(2)


KOBOLD = {
    "gamestarted": True,
    "prompt": "Begin.",
    "actions": [" <b>One</b>."],
    "memory": "Of old",
    "authorsnote": "dark",
}
MIKUPAD = {
    "prompt": [{"type": "user", "content": "Begin. <b>One</b>."}],
    "memoryTokens": {"prefix": "", "text": "Of old", "suffix": ""},
    "authorNoteTokens": {"prefix": "", "text": "dark", "suffix": ""},
}
FILES = {"kobold.json": KOBOLD, "mikupad.json": MIKUPAD, "story.txt": "Begin. <b>One</b>."}


@pytest.mark.parametrize("name", FILES)
def test_stories_of_other_programs_are_read(playground: Playground, name: str) -> None:
    playground.import_file(file_of(name, FILES[name]))
    expect(playground.notice).to_contain_text("was imported")
    assert playground.text == "Begin. <b>One</b>."
    playground.tab("Context")
    has_notes = name.endswith(".json")
    expect(playground.page.get_by_label("Memory")).to_have_value("Of old" if has_notes else "")
    expect(playground.page.get_by_label("Author's note")).to_have_value("dark" if has_notes else "")


@pytest.mark.parametrize(("content", "message"), [("{", "not JSON"), ("{}", "not a story that this page can read")])
def test_a_wrong_file_is_refused_and_nothing_is_lost(playground: Playground, content: str, message: str) -> None:
    before = playground.text
    playground.import_file(file_of("tree.json", content))
    expect(playground.page.get_by_role("dialog").get_by_role("alert")).to_contain_text(message)
    assert playground.text == before


def test_the_tree_of_the_first_edition_becomes_a_story(playground: Playground) -> None:
    playground.page.goto(f"{playground.url}/docs")
    playground.page.evaluate("indexedDB.deleteDatabase('onward')")
    playground.page.evaluate(
        """() => new Promise(done => {
            const request = indexedDB.open("onward", 1);
            request.onupgradeneeded = () => request.result.createObjectStore("values");
            request.onsuccess = () => {
                const nodes = [{id: 5, parent: null, origin: "written", text: "Of old"}];
                const kept = {file: {format: "onward-tree", version: 1, nodes}, current: 5, text: "Of old times"};
                const transaction = request.result.transaction("values", "readwrite");
                transaction.objectStore("values").put(kept, "tree");
                transaction.oncomplete = () => { request.result.close(); done(); };
            };
        })"""
    )
    playground.open()
    assert playground.text == "Of old times"
    playground.tab("Tree")
    expect(playground.page.locator(".node")).to_have_count(1)
