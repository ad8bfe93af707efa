"""Links and programs that reproduce a completion."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("playwright.sync_api", reason="needs Playwright: pip install 'onward[browser]'")

from playwright.sync_api import expect

from tests.playground.pages import Playground, open_context

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Locator, Route

pytestmark = pytest.mark.slow
PROMPT = 'It\'s a "fine" day for $HOME, é🦊\\\nThe fox'


def share(playground: Playground) -> str:
    """Return the path and hash of the link to the last completion."""
    playground.button("Share").click()
    expect(playground.notice).to_contain_text("The link was copied.")
    link: str = playground.page.evaluate("navigator.clipboard.readText()")
    assert playground.page.url == f"{playground.url}/", "a reload must not open it in place of the story"
    return link.removeprefix(playground.url)


def test_a_link_reproduces_the_same_bytes_in_another_profile(playground: Playground, browser: Browser) -> None:
    playground.write(PROMPT).set("temperature", "1.1").set("stop", "zebra").generate()
    link = share(playground)
    context = open_context(browser)
    other = Playground(context.new_page(), playground.url).open(link)
    assert other.text == PROMPT
    assert other.page.url == f"{other.url}/", "the link is used once: a reload must not open it again"
    other.click("Reproduce")
    expect(other.notice).to_have_text("The same bytes as when this was shared.")
    assert other.text == playground.text
    context.close()


def test_a_link_that_may_not_be_copied_is_in_the_address_bar_until_the_text_changes(
    browser: Browser, site: str
) -> None:
    """Pages that come neither from this machine nor by HTTPS have no clipboard."""
    context = open_context(browser)
    context.add_init_script("Object.defineProperty(navigator, 'clipboard', {get: () => undefined})")
    playground = Playground(context.new_page(), site).open().write("The fox sleeps").generate()
    playground.button("Share").click()
    expect(playground.notice).to_contain_text("The link is in the address bar")
    assert playground.page.url.startswith(f"{site}/#p=")
    playground.focus()
    playground.page.keyboard.press("Control+End")
    playground.page.keyboard.type(" The end.")
    text = playground.text
    assert playground.page.url == f"{site}/"
    playground.kept().open().shows(text)
    context.close()


def test_a_link_says_that_the_fingerprint_differs(playground: Playground, browser: Browser) -> None:
    playground.generate()
    link = share(playground)
    context = open_context(browser)
    other = Playground(context.new_page(), playground.url)

    def differently(body: str) -> str:
        return body.replace('"system_fingerprint":"fp_', '"system_fingerprint":"fp_f').replace('"text":" ', '"text":"_')

    other.page.route("**/v1/completions", lambda route: route.fulfill(body=differently(route.fetch().text())))
    other.open(link).button("Reproduce").click()
    expect(other.notice).to_contain_text("The text differs: this server's fingerprint is fp_f")
    context.close()


def test_a_link_to_an_unknown_model_says_so(playground: Playground) -> None:
    playground.generate()
    link = share(playground)
    models = {"object": "list", "data": [{"id": "toy", "object": "model", "created": 1, "owned_by": "onward"}]}
    playground.page.route("**/v1/models", lambda route: route.fulfill(json=models))
    playground.page.goto("about:blank")
    playground.open(link).button("Reproduce").click()
    expect(playground.page.get_by_role("alert")).to_contain_text("has no model 'storyteller'")


def test_a_damaged_link_says_so(playground: Playground) -> None:
    playground.page.goto("about:blank")
    playground.open("/#p=AAAA")
    expect(playground.page.get_by_role("alert")).to_contain_text("This link is damaged")


def test_the_document_that_was_open_is_kept_when_a_link_is_opened(playground: Playground) -> None:
    playground.generate()
    link = share(playground)
    playground.write("Something of my own").kept()
    playground.page.goto("about:blank")
    playground.open(link)
    expect(playground.button("Reproduce")).to_be_visible()
    playground.page.get_by_role("button", name="Stories:").click()
    expect(playground.page.locator(".stories li")).to_have_count(2)
    playground.page.locator(".stories button.story", has_text="Something of my own").click()
    playground.shows("Something of my own")
    expect(playground.button("Reproduce")).to_have_count(0)  # it would overwrite this one


def run_program(language: str, source: str, folder: Path) -> str:
    """Run the copied program; return its output."""
    environment = os.environ | {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    command = ["bash", "-c", source]
    if language == "Python":
        command = [sys.executable, "-c", source]
    elif language == "JavaScript":
        script = folder / "copied.mjs"
        script.write_text(source, encoding="utf-8")
        command = [shutil.which("node") or "node", str(script)]
    ran = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


STARTS = {
    "curl": "curl ",
    "Python": "from openai import ",
    "JavaScript": "const response = ",
    "Command line": "onward completions create ",
}
"""How the program of each language begins."""


def choose_language(dialog: Locator, language: str) -> None:
    dialog.get_by_text(language, exact=True).click()
    expect(dialog.get_by_role("radio", name=language)).to_be_checked()
    expect(dialog.get_by_role("region", name="Program")).to_have_text(re.compile(f"^{STARTS[language]}"))


def test_the_dialog_of_programs_opens_with_the_program_and_its_languages_stay_in_place(playground: Playground) -> None:
    """It opens when the server has counted the tokens of the memory that the program has to contain."""
    page = playground.page
    playground.write("Once").tab("Context")
    counted = threading.Event()
    held: list[Route] = []
    page.route("**/tokenize", lambda route: route.continue_() if counted.is_set() else held.append(route))
    with page.expect_request("**/tokenize"):
        page.get_by_label("Memory").fill("Lily is seven.")
        playground.button("Copy as").click()
    dialog = page.get_by_role("dialog", name="Copy as")
    assert dialog.count() == 0
    counted.set()
    for route in held:
        route.continue_()
    expect(dialog).to_be_visible()
    assert "Lily is seven." in dialog.get_by_role("region", name="Program").inner_text()
    place = dialog.locator("fieldset").bounding_box()
    for language in STARTS:
        choose_language(dialog, language)
        assert dialog.locator("fieldset").bounding_box() == place


def test_copied_is_said_only_of_the_program_that_was_copied(playground: Playground) -> None:
    playground.button("Copy as").click()
    dialog = playground.page.get_by_role("dialog", name="Copy as")
    copied = dialog.get_by_text("Copied.")
    dialog.get_by_role("button", name="Copy", exact=True).click()
    expect(copied).to_be_visible()
    choose_language(dialog, "Python")
    expect(copied).to_have_count(0)
    dialog.get_by_role("button", name="Copy", exact=True).click()
    expect(copied).to_be_visible()
    playground.page.keyboard.press("Escape")
    expect(dialog).to_have_count(0)
    playground.button("Copy as").click()
    expect(dialog.get_by_role("radio", name="Python")).to_be_checked()  # the language is kept
    expect(copied).to_have_count(0)


@pytest.mark.skipif(sys.platform == "win32", reason="needs bash")
@pytest.mark.parametrize("language", STARTS)
def test_copied_programs_run_and_return_the_same_text(playground: Playground, tmp_path: Path, language: str) -> None:
    if language == "JavaScript" and shutil.which("node") is None:
        pytest.skip("needs Node")
    playground.write(PROMPT).set("min_p", "0.01").set("max_tokens", "12").set("stop", "zebra").generate()
    generated = playground.text.removeprefix(PROMPT)
    page = playground.page
    playground.button("Copy as").click()
    dialog = page.get_by_role("dialog", name="Copy as")
    choose_language(dialog, language)
    dialog.get_by_role("button", name="Copy", exact=True).click()
    expect(dialog.get_by_text("Copied.")).to_be_visible()
    source: str = page.evaluate("navigator.clipboard.readText()")
    printed = run_program(language, source, tmp_path)
    if language == "curl":
        printed = json.loads(printed)["choices"][0]["text"]
    assert generated.strip() and printed.rstrip("\n") == generated.rstrip("\n")
