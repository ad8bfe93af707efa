"""Whatever a model generates is shown as text."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("playwright.sync_api", reason="needs Playwright: pip install 'onward[browser]'")

from playwright.sync_api import expect

from tests.journeys.test_served_names import ALIASES, FOLDERS, NAMES
from tests.processes import served
from tests.test_compose import toy_folder

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Route

    from tests.playground.pages import Playground

pytestmark = pytest.mark.slow
HOSTILE = {
    "markup": '<img src=x onerror="window.hacked=1"><script>window.hacked=1</script></textarea></style>',
    "bidi": "user\u202etxt.exe\u2066 \u2069\u200b\ufeff",
    "control": "a\u0000b\u0007c\r\nd\u2028e\u0085f",
    "surrogates": "\ud800 \udc00 lone",
    "wide": "🦊" * 300 + "é" * 300 + "e\u0301" * 100,
    "long line": "x" * 1_000_000,
}


def stream_of(text: str) -> str:
    """Return the events of a stream that generates `text` as one token with hostile alternatives."""
    logprobs = {
        "tokens": [text[:50]],
        "token_logprobs": [-1.0],
        "top_logprobs": [{text[:50]: -1.0, "<b>bold</b>": -2.0}],
        "text_offset": [0],
    }
    choice = {"text": text, "index": 0, "logprobs": logprobs, "finish_reason": "length"}
    chunk = {"id": "cmpl-1", "object": "text_completion", "created": 1, "model": "storyteller", "choices": [choice]}
    return f"id: 1\ndata: {json.dumps(chunk)}\n\nid: 2\ndata: [DONE]\n\n"


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_text_is_shown_as_text(playground: Playground, name: str) -> None:
    text = HOSTILE[name]

    def answer(route: Route) -> None:
        route.fulfill(body=stream_of(text), content_type="text/event-stream")

    playground.page.route("**/v1/completions", answer)
    playground.write("Say: ")
    playground.generate()
    if name == "surrogates":  # which cannot be passed to a page and back
        assert playground.text.endswith(" lone")
    else:
        assert playground.text == "Say: " + text
    assert playground.page.evaluate("window.hacked") is None
    for panel in ("Tree", "Candidates"):
        playground.tab(panel)
    playground.show("Compare")
    playground.page.locator(".compare .primary").click()
    expect(playground.page.locator(".result").first).to_contain_text(text[:3].strip() or "lone")
    expect(playground.page.locator("main img:not(.cm-widgetBuffer), main script, b:text('bold')")).to_have_count(0)
    assert playground.page.evaluate("window.hacked") is None


def test_invisible_characters_are_made_visible(playground: Playground) -> None:
    playground.page.route("**/v1/completions", lambda route: route.fulfill(body=stream_of(HOSTILE["bidi"])))
    playground.write("Say: ")
    playground.generate()
    expect(playground.page.locator(".editor .cm-specialChar").nth(3)).to_be_attached()


def test_a_hostile_prompt_cannot_break_out_of_the_link(playground: Playground) -> None:
    playground.write(HOSTILE["markup"])
    playground.generate()
    playground.button("Share").click()
    expect(playground.notice).to_contain_text("The link was copied.")
    link: str = playground.page.evaluate("navigator.clipboard.readText()")
    playground.page.goto("about:blank")
    playground.open(link.removeprefix(playground.url))
    assert playground.text == HOSTILE["markup"]
    assert playground.page.evaluate("window.hacked") is None


def test_names_of_models_are_text_and_sent_as_they_are(browser: Browser, tmp_path: Path) -> None:
    from tests.playground.pages import Playground, open_context

    models = [toy_folder(tmp_path / name) for name in FOLDERS]
    flags = [word for model in models[1:] for word in ("--model", model)]
    flags += [word for alias in ALIASES for word in ("--alias", f"{alias}={models[0]}")]
    with served(*flags, "--engine-process", "off", model=models[0]) as url, open_context(browser) as context:
        playground = Playground(context.new_page(), url).open()
        chooser = playground.page.get_by_role("banner").get_by_label("Model")
        assert set(NAMES) <= set(chooser.locator("option").evaluate_all("all => all.map(each => each.value)"))
        for name in NAMES:
            chooser.select_option(value=name)
            playground.write("a")
            assert playground.request_of(playground.generate)["model"] == name
        assert not playground.problems and playground.page.locator("main img:not(.cm-widgetBuffer)").count() == 0


TOKEN = {"from": 0, "to": 3, "text": "abc", "ids": [1], "alternatives": [], "logprob": -1.0}
HOSTILE_NODES: dict[str, dict[str, object]] = {
    "alternatives": {"tokens": [{**TOKEN, "alternatives": [None, 5, {"text": {}}, "x"]}]},
    "ids": {"tokens": [{**TOKEN, "ids": ["x", None, {}]}]},
    "overlapping tokens": {"tokens": [{**TOKEN, "from": 2, "to": 6}, TOKEN, TOKEN]},
    "unknown fields": {"tokens": [{**TOKEN, "inner": 5, "rank": {}, "bytes": [None]}]},
    "run": {"run": {"settings": None, "model": {}, "seed": "x", "usage": 5, "prompt": None}},
    "run that is a list": {"run": [1, 2, 3]},
    "markup": {"text": HOSTILE["markup"], "name": HOSTILE["markup"]},
}


@pytest.mark.parametrize("name", HOSTILE_NODES)
def test_a_tree_of_strange_nodes_is_shown_and_kept_without_an_error(
    playground: Playground, tmp_path: Path, name: str
) -> None:
    """It stays in the browser's database, so a page that failed on it would fail forever."""
    errors: list[str] = []
    playground.page.on("pageerror", lambda error: errors.append(str(error)))
    node: dict[str, object] = {"id": 1, "parent": None, "origin": "generated", "text": "abcdef", **HOSTILE_NODES[name]}
    file = tmp_path / "tree.json"
    file.write_text(json.dumps({"format": "onward-tree", "version": 1, "nodes": [node]}), encoding="utf-8")
    playground.import_file(file)
    expect(playground.notice).to_contain_text("imported")
    playground.tab("Tree")
    playground.page.locator(".node").last.click()
    for panel in ("Candidates", "Context", "Tree"):
        playground.tab(panel)
    playground.kept().page.reload()
    expect(playground.page.locator(".editor .cm-content").first).to_contain_text(str(node["text"])[:4])
    assert not errors
    assert playground.page.evaluate("window.hacked") is None


NODE = {"id": 1, "parent": None, "origin": "written", "text": "My own."}
GOOD = {"format": "onward-tree", "version": 1, "nodes": [NODE]}
LISTED = {"id": "good", "title": "My <img src=x onerror=window.hacked=1>", "start": "My", "words": 2, "changed": 1}
KEPT: dict[str, Any] = {
    "story-good": {"file": GOOD, "notes": {"memory": 5, "lore": [{"keys": 5}, None]}},
    "draft-good": {"current": 1, "text": "My own."},
}
JUNK = [None, 5, "x", {}, {"id": 5}]
DATABASES: dict[str, dict[str, Any]] = {
    "a list that is a text": {"stories": "x", **KEPT},
    "a list with junk": {"stories": [*JUNK, LISTED], **KEPT},
    "entries of wrong types": {"stories": [{**LISTED, "title": {}, "start": 5, "words": "x", "changed": None}], **KEPT},
    "a newer story that is damaged": {
        "stories": [{**LISTED, "id": "bad", "title": "Bad", "changed": 2}, LISTED],
        "story-bad": {"file": "x", "notes": 5},
        "draft-bad": {"current": {}, "text": 5},
        **KEPT,
    },
    "a draft of wrong types": {"stories": [LISTED], **KEPT, "draft-good": {"current": {}, "text": 5}},
    "the first edition's tree, damaged": {"tree": {"file": 5, "current": "x", "text": 7}, "stories": [LISTED], **KEPT},
}
PUT = """values => new Promise((resolve, reject) => {
    const opened = indexedDB.open("onward");
    opened.onsuccess = () => {
        const change = opened.result.transaction("values", "readwrite");
        const store = change.objectStore("values");
        store.clear();
        for (const [name, value] of Object.entries(values)) store.put(value, name);
        change.oncomplete = () => { opened.result.close(); resolve(); };
        change.onerror = reject;
    };
})"""


@pytest.mark.parametrize("name", DATABASES)
def test_a_damaged_database_costs_no_story_that_can_be_read(playground: Playground, name: str) -> None:
    page = playground.page
    playground.kept()  # the page has made its database
    page.goto(f"{playground.url}/health")
    page.evaluate(PUT, DATABASES[name])
    playground.open()
    if name == "a draft of wrong types":
        page.locator("main").wait_for()  # its tree is valid, the position in it is not
    else:
        expect(playground.stories().filter(has_text="My")).to_have_count(1)
        page.locator(".stories button.story", has_text="My").click()
        expect(page.get_by_role("dialog")).to_have_count(0)
        expect(page.locator(".editor .cm-content").first).to_contain_text("My own.")
    playground.focus()
    page.keyboard.press("Control+End")
    page.keyboard.insert_text(" More.")
    playground.kept().open()
    expect(page.locator(".editor .cm-content").first).to_contain_text("More.")
    assert page.evaluate("window.hacked") is None
