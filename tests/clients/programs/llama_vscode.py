"""llama.vscode in VS Code, in the browser: it requests /infill while one types, and shows the text at the cursor."""

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from playwright.sync_api import Locator, Page, sync_playwright
from report import KEY, URLS, check, recipe, until

EXTENSIONS, CHROMIUM, *CODE_SERVER = sys.argv[1:]
SECTION = "VS Code: llama.vscode"
OURS = {
    "files.autoSave": "afterDelay",
    "files.autoSaveDelay": 100,
    "editor.quickSuggestions": {"other": "off"},
    "extensions.autoCheckUpdates": False,
    "telemetry.telemetryLevel": "off",
    "workbench.startupEditor": "none",
}
"""Settings for a program that looks at files, and with which Tab has one meaning."""
TEXT = "x = one two one two\ny = one two one two\nz = one"
TYPED = " two one"
PATIENCE_MS = 60_000
SETTLES_MS = 2000
"""Texts for what was typed before may come until then."""
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update"]


@contextlib.contextmanager
def code_server(home: Path, settings: dict[str, object]) -> Iterator[str]:
    """Run VS Code with these settings; yield its URL."""
    user = home / "data" / "User"
    user.mkdir(parents=True)
    (user / "settings.json").write_text(json.dumps(settings | OURS), encoding="utf-8")
    flags = ["--auth", "none", "--bind-addr", "127.0.0.1:0", "--disable-workspace-trust", "--disable-update-check"]
    places = ["--user-data-dir", str(home / "data"), "--extensions-dir", EXTENSIONS]
    with (home / "log.txt").open("w+") as log:
        command = [*CODE_SERVER, *flags, "--disable-telemetry", *places]
        running = subprocess.Popen(command, stdout=log, stderr=log, env=os.environ | {"HOME": str(home)})
        try:
            until(lambda: re.search(r"http://127.0.0.1:\d+", (home / "log.txt").read_text(encoding="utf-8")))
            yield re.findall(r"http://127.0.0.1:\d+", (home / "log.txt").read_text(encoding="utf-8"))[0]
        finally:
            running.terminate()
            running.wait(20)


@contextlib.contextmanager
def vscode(**more: object) -> Iterator[tuple[Page, Path]]:
    """Yield VS Code's page with a file open, and the file. `more`: settings in addition to those of the recipe."""
    url = URLS["keyed" if more else "editors"]
    named = {f"llama-vscode.{name}": value for name, value in more.items()}
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder, sync_playwright() as playwright:
        home = Path(folder)
        file = home / "work" / "text.txt"
        file.parent.mkdir()
        file.write_text(TEXT, encoding="utf-8")
        with code_server(home, json.loads(recipe(SECTION, url)) | named) as editor:
            browser = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
            page = browser.new_page(viewport={"width": 1200, "height": 700})
            page.set_default_timeout(PATIENCE_MS)
            page.goto(f"{editor}/?folder={file.parent}")
            page.get_by_role("treeitem", name=file.name).dblclick()
            page.get_by_role("tab", name="Information").wait_for()  # the extension shows its introduction once
            page.get_by_role("tab", name=file.name).click()
            page.locator(".view-line", has_text="z").click()
            try:
                yield page, file
            finally:
                browser.close()


def ghost(page: Page) -> Locator:
    """The pieces of the text that is shown and is not in the file, a line or a part of one each, in no order."""
    return page.locator(".view-line [class*=ghost-text]")


def squeezed(text: str) -> str:
    """Return a text without white space, which the page does not keep."""
    return "".join(text.split())


def accepted(file: Path) -> str:
    """Return what the file has after what was typed."""
    return squeezed(file.read_text(encoding="utf-8")).removeprefix(squeezed(TEXT + TYPED))


def ask(page: Page) -> None:
    page.keyboard.press("Control+End")
    page.keyboard.type(TYPED, delay=100)


@check("a completion is shown as one types, and Tab accepts it")
def shown():
    with vscode() as (page, file):
        ask(page)
        ghost(page).first.wait_for()
        page.wait_for_timeout(SETTLES_MS)
        pieces = [squeezed(piece) for piece in ghost(page).all_inner_texts()]
        assert any(pieces)
        page.keyboard.press("Tab")
        until(lambda: len(accepted(file)) >= len("".join(pieces)), lambda: (pieces, file.read_text(encoding="utf-8")))
        assert all(piece in accepted(file) for piece in pieces), (pieces, file.read_text(encoding="utf-8"))


@check("a server with keys")
def keyed():
    with vscode(api_key=KEY) as (page, _):
        ask(page)
        ghost(page).first.wait_for()
