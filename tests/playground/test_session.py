"""A writer's session, as it is: write, branch, ban, outgrow the context, rename, export, share, open elsewhere."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("playwright.sync_api", reason="needs Playwright: pip install 'onward[browser]'")

from playwright.sync_api import expect

from tests.playground.pages import PHONE, Playground, open_context

if TYPE_CHECKING:
    from pathlib import Path

    from playwright.sync_api import Browser

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("device", [{}, PHONE], ids=["1280", "400"])
def test_a_writer_needs_no_documentation(browser: Browser, site: str, device: dict[str, Any], tmp_path: Path) -> None:
    """No step needs the documentation: nothing fails, and the only notices say that a text has ended."""
    context = open_context(browser, **device)
    desk = Playground(context.new_page(), site).open()
    page = desk.page

    desk.set("max_tokens", "30").write("Lily found an old key in the garden.").click("Continue")
    desk.click("Continue").click("Another")
    page.get_by_role("button", name="Previous version").click()
    desk.announced("Version 1 of 2.")

    desk.colour("Probability")
    desk.focus()
    page.keyboard.press("Control+End")
    page.keyboard.press("Control+Space")
    alternatives = page.locator(".alternatives")
    desk.during(alternatives.locator(".choice:enabled").last.click)
    page.keyboard.press("Control+Space")
    alternatives.locator(".weights").get_by_role("button", name="Ban").click()
    expect(desk.notice).to_contain_text("is banned from now on")
    desk.colour("Plain")

    desk.tab("Context")
    page.get_by_label("Memory").fill("Lily is seven. Her grandmother lives by the sea.")
    page.get_by_label("Author's note").fill("[ It begins to rain. ]")
    desk.close_panels()
    desk.focus()
    page.keyboard.press("Control+End")
    page.keyboard.insert_text("\n" + "She looked at the key again, and at the door.\n" * 120)
    for _ in range(2):
        body = desk.request_of(lambda: desk.click("Continue"))
        assert body["prompt"].startswith("Lily is seven.") and "[ It begins to rain. ]" in body["prompt"]
    expect(page.get_by_role("alert")).to_have_count(0)

    rows = desk.stories()
    rows.first.get_by_role("button", name="Change").click()
    page.get_by_role("button", name="Rename").click()
    page.get_by_label("Title", exact=True).fill("The key")
    page.keyboard.press("Enter")
    expect(rows.first).to_contain_text("The key")
    with page.expect_download() as download:
        rows.first.get_by_role("button", name="Change").click()
        page.get_by_role("button", name="Export with its tree").click()
    file = tmp_path / "The key.json"
    download.value.save_as(file)
    page.get_by_role("button", name="Close", exact=True).click()
    desk.button("Share").click()
    expect(desk.notice).to_contain_text("The link was copied.")
    link: str = page.evaluate("navigator.clipboard.readText()")

    elsewhere = open_context(browser)
    other = Playground(elsewhere.new_page(), site).open(link.removeprefix(site))
    other.click("Reproduce")
    expect(other.notice).to_have_text("The same bytes as when this was shared.")
    assert other.text == desk.text
    other.import_file(file)
    expect(other.notice).to_contain_text("“The key” was imported.")
    assert other.text == desk.text
    other.tab("Tree")
    expect(other.page.locator(".node").nth(4)).to_be_attached()

    assert not desk.problems and not other.problems
    context.close()
    elsewhere.close()


def test_a_writer_needs_only_the_keyboard(playground: Playground, tmp_path: Path) -> None:
    page, keyboard = playground.page, playground.page.keyboard
    first = "Lily found an old key in the garden."
    playground.tab_to("Document")
    keyboard.press("Control+a")
    keyboard.press("Delete")
    keyboard.type(first)
    playground.during(lambda: keyboard.press("Control+Enter"))
    playground.tab_to("Another")
    playground.during(lambda: keyboard.press("Enter"))
    keyboard.press("Alt+ArrowLeft")
    playground.announced("Version 1 of 2.")

    playground.tab_to("Document")
    keyboard.press("Control+End")
    keyboard.press("Control+Space")
    expect(page.locator(".alternatives")).to_be_visible()
    keyboard.press("ArrowDown")
    keyboard.press("ArrowDown")
    playground.during(lambda: keyboard.press("Enter"))

    playground.tab_to("More")
    keyboard.press("Enter")
    playground.tab_to("Share")
    keyboard.press("Enter")
    expect(playground.notice).to_contain_text("The link was copied.")

    playground.tab_to("Settings")
    keyboard.press("ArrowRight")
    keyboard.press("ArrowRight")
    expect(page.get_by_role("tab", name="Tree")).to_be_focused()
    playground.tab_to(first)
    keyboard.press("Enter")
    playground.shows(first)

    playground.tab_to("Stories:")
    keyboard.press("Enter")
    playground.tab_to("Change")
    keyboard.press("Enter")
    playground.tab_to("Rename")
    keyboard.press("Enter")
    expect(page.get_by_label("Title", exact=True)).to_be_focused()
    keyboard.press("Control+a")
    keyboard.type("The key")
    keyboard.press("Enter")
    expect(page.locator(".stories li").first).to_contain_text("The key")
    playground.tab_to("Change")
    keyboard.press("Enter")
    playground.tab_to("Export with its tree")
    with page.expect_download() as download:
        keyboard.press("Enter")
    file = tmp_path / "The key.json"
    download.value.save_as(file)
    assert first in file.read_text(encoding="utf-8")
    keyboard.press("Escape")
    expect(page.get_by_role("dialog")).to_have_count(0)
