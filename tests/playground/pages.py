"""`Playground`: an open page, as a person uses it."""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import pytest
from playwright.sync_api import Browser, BrowserContext, ConsoleMessage, Error, Locator, Page, expect

from tests.playground.browser import PATIENCE_MS, SOURCES

IN_MENU = frozenset(
    {"Same again", "Fill in", "Rewrite", "Template", "Score", "Side by side", "Share", "Copy as", "New story"}
)
"""What the toolbar's menu has."""
MAX_TABS = 120
DOCUMENT = "document.querySelector('.editor .cm-content').cmTile.view.state.doc.toString()"
SCHEMES: tuple[Literal["light", "dark"], ...] = ("light", "dark")
BACKGROUND = "getComputedStyle(document.body).backgroundColor"
AXE = SOURCES / "node_modules/axe-core/axe.min.js"
PHONE = {"viewport": {"width": 400, "height": 800}, "has_touch": True, "is_mobile": True}
SAME_SEEDS = """if (location.protocol !== "about:") {
    let state = Number(sessionStorage.getItem("loads")) + 1; // a page that is loaded again draws other ones
    sessionStorage.setItem("loads", state);
    Math.random = () => (state = (state * 16807) % 2147483647) / 2147483647;
}"""
"""The page draws the same seeds in each run, and so the same texts: what is to happen does not depend on luck."""

expect.set_options(timeout=PATIENCE_MS)


class Playground:
    """A page of a server at `url`. `problems` collects errors of scripts and violations of the content security
    policy."""

    def __init__(self, page: Page, url: str) -> None:
        self.page = page
        self.url = url
        self.problems: list[str] = []
        self.requests: list[str] = []
        page.set_default_timeout(PATIENCE_MS)
        page.on("pageerror", lambda error: self.problems.append(str(error)))
        page.on("console", self._note)
        page.on("request", lambda request: self.requests.append(request.url))

    def _note(self, message: ConsoleMessage) -> None:
        """Record an error; responses such as 400 are not errors of the page."""
        if message.type == "error" and not message.text.startswith("Failed to load resource"):
            self.problems.append(message.text)

    def open(self, path: str = "/") -> Playground:
        self.page.goto(self.url + path)
        ready = self.page.locator("html[data-ready]")
        expect(ready, f"the page did not start: {self.problems}, after {self.requests}").to_be_attached()
        return self

    @property
    def text(self) -> str:
        """The document, exactly."""
        lines: str = self.page.evaluate(DOCUMENT)
        return lines

    @property
    def editor(self) -> Locator:
        return self.page.get_by_role("textbox", name="Document")

    def focus(self) -> Playground:
        """Put the caret into the document, which a dialog that is still open would prevent."""
        self.editor.focus()
        expect(self.editor).to_be_focused()
        return self

    def button(self, name: str) -> Locator:
        """A button of the page; the toolbar's menu is opened for those that are in it."""
        if name in IN_MENU and not self.page.locator(".menu:popover-open").count():
            self.page.get_by_role("button", name="More", exact=True).click()
        return self.page.get_by_role("button", name=name, exact=False).first

    def show(self, view: str) -> Playground:
        """Show a view; on a small screen, views are in the page's menu."""
        if not self.page.get_by_role("navigation").is_visible():
            self.page.get_by_role("button", name="Page").click()
        self.page.get_by_role("button", name=view, exact=True).first.click()
        return self

    def tab(self, name: str) -> Playground:
        """Show a panel; on a small screen, the sheet of panels first."""
        tab = self.page.get_by_role("tab", name=name)
        if not tab.is_visible():
            self.page.get_by_role("button", name="Panels", exact=True).click()
        tab.click()
        return self

    def close_panels(self) -> Playground:
        """Close the sheet of panels where it covers the document."""
        close = self.page.get_by_role("button", name="Close the panels")
        if close.is_visible():
            close.click()
            expect(close).not_to_be_visible()
        return self

    def colour(self, by: str) -> Playground:
        """Colour tokens by `Probability` or `Surprise`; `Plain`: not at all."""
        self.page.get_by_role("button", name="Probabilities").click()
        self.page.get_by_text(by, exact=True).click()
        self.page.keyboard.press("Escape")
        return self

    def write(self, text: str) -> Playground:
        """Replace the document."""
        self.focus()
        self.page.keyboard.press("Control+a")
        self.page.keyboard.press("Delete")
        self.page.keyboard.insert_text(text)
        return self

    def set(self, name: str, value: str) -> Playground:
        """Change a setting."""
        self.tab("Settings")
        self.page.get_by_role("searchbox", name="Find a setting").fill(name)
        self.page.locator(f"#write-{name}").fill(value)
        self.page.get_by_role("searchbox", name="Find a setting").fill("")
        return self.close_panels()

    def shows(self, text: str) -> Playground:
        """Wait until the document is this text."""
        with contextlib.suppress(Error):
            self.page.wait_for_function(f"text => {DOCUMENT} === text", arg=text)
        assert self.text == text
        return self

    def kept(self) -> Playground:
        """Wait until the browser's database has everything."""
        expect(self.page.locator("html[data-kept=true]")).to_be_attached()
        return self

    def new_story(self) -> Playground:
        self.button("New story").click()
        return self.shows("")

    def stories(self) -> Locator:
        """Open the library; return its rows."""
        self.page.get_by_role("button", name="Stories:").click()
        return self.page.locator(".stories li")

    def import_file(self, file: Path | dict[str, Any]) -> Playground:
        """Open a file, or one of this name and content, as a story."""
        self.stories()
        self.page.get_by_label("Import").set_input_files(file)  # type: ignore[arg-type]
        return self

    def generate(self) -> Playground:
        self.focus()
        return self.during(lambda: self.page.keyboard.press("Control+Enter"))

    def click(self, name: str) -> Playground:
        """Press a button that sends a completion request; wait until it has ended."""
        return self.during(lambda: self.button(name).click())

    def during(self, act: Callable[[], object]) -> Playground:
        """Do `act`, which generates, and wait until generation has ended."""
        completions = int(self.page.evaluate("document.documentElement.dataset.completions ?? 0"))
        act()
        ended = self.page.locator(f"html[data-completions='{completions + 1}']")
        expect(ended).to_be_attached()
        return self.wait()

    def tab_to(self, name: str) -> Playground:
        """Press Tab until an element whose name begins with this has the focus."""
        named = "(({ariaLabel, labels, textContent}) => ariaLabel ?? labels?.[0]?.textContent ?? textContent)"
        reached: list[str] = []
        while len(reached) < MAX_TABS:
            self.page.keyboard.press("Tab")
            reached.append(self.page.evaluate(f"{named}(document.activeElement).trim()"))
            if reached[-1].startswith(name):
                return self
        raise AssertionError(f"{name} is not reached, but {reached}")

    def wait(self) -> Playground:
        """Wait until nothing is generated any more."""
        expect(self.page.get_by_role("button", name=re.compile("^Stop"))).to_have_count(0)
        return self

    def request_of(self, act: Callable[[], object]) -> dict[str, Any]:
        """Return the body of the completion request that `act` sends."""
        with self.page.expect_request("**/v1/completions") as sent:
            act()
        body: dict[str, Any] = json.loads(sent.value.post_data or "{}")
        return body

    @property
    def notice(self) -> Locator:
        return self.page.locator(".notice p")

    def announced(self, text: str) -> None:
        expect(self.page.locator("[role=status][aria-live]")).to_contain_text(text)

    def meter(self, name: str) -> str:
        return self.page.locator(f".meter div:has(dt:text-is('{name}')) dd").inner_text()


def violations(page: Page) -> list[tuple[str, str, list[str]]]:
    """Return the violations that axe finds in a page as it is shown, in light and in dark: the page takes the system's
    colours. Skips where `npm ci` did not run."""
    if not AXE.is_file():
        pytest.skip("needs axe-core: run `npm ci` in playground/")
    page.evaluate(AXE.read_text(encoding="utf-8"))
    found: list[tuple[str, str, list[str]]] = []
    backgrounds = set()
    for scheme in SCHEMES:
        page.emulate_media(color_scheme=scheme)
        backgrounds.add(page.evaluate(BACKGROUND))
        for each in page.evaluate("axe.run().then(({violations}) => violations)"):
            found.append((scheme, each["id"], [node["html"][:150] for node in each["nodes"][:3]]))
    assert len(backgrounds) == len(SCHEMES), "the page does not follow the system's colours"
    return found


def open_context(browser: Browser, **options: Any) -> BrowserContext:
    """Return a new profile: nothing is stored in it, and it draws the same seeds as every other profile."""
    context = browser.new_context(**({"viewport": {"width": 1280, "height": 800}} | options))
    context.add_init_script(SAME_SEEDS)
    context.grant_permissions(["clipboard-read", "clipboard-write"])
    return context
