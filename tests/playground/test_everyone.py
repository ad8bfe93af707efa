"""For everyone: keyboard, screen readers, small screens, dark and light, reduced motion."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("playwright.sync_api", reason="needs Playwright: pip install 'onward[browser]'")

from playwright.sync_api import expect

from tests.playground.pages import BACKGROUND, PHONE, Playground, open_context, violations

if TYPE_CHECKING:
    from playwright.sync_api import Browser

pytestmark = pytest.mark.slow


def generated(playground: Playground) -> None:
    playground.set("n", "2").set("max_tokens", "24").generate()


def with_tree(playground: Playground) -> None:
    playground.generate()
    playground.tab("Tree")


def versions(playground: Playground) -> None:
    playground.set("n", "3").set("max_tokens", "24").generate()
    playground.button("Side by side").click()


def menu(playground: Playground) -> None:
    playground.generate()
    playground.page.get_by_role("button", name="More", exact=True).click()


def probabilities(playground: Playground) -> None:
    playground.generate().colour("Probability")


def library(playground: Playground) -> None:
    playground.generate().new_story().write("Another story").kept()
    expect(playground.stories()).to_have_count(2)


def context(playground: Playground) -> None:
    playground.write("The door was open.\n" * 400).tab("Context")
    playground.page.get_by_label("Memory").fill("Lily is seven.")
    playground.page.get_by_role("button", name="Add an entry").click()
    playground.page.get_by_label("Keys").fill("door")
    playground.page.get_by_label("Text", exact=True).fill("The door is blue.")
    expect(playground.page.locator(".part-lore")).to_be_visible()


def numbers(playground: Playground) -> None:
    playground.generate().button("Score").click()
    expect(playground.page.locator(".score")).to_be_visible()
    playground.tab("Numbers")


def template(playground: Playground) -> None:
    playground.button("Template").click()
    expect(playground.page.get_by_role("dialog")).to_be_visible()


def with_alternatives(playground: Playground) -> None:
    playground.generate()
    playground.page.keyboard.press("Control+End")
    playground.page.keyboard.press("Control+Space")
    expect(playground.page.locator(".alternatives")).to_be_visible()


def surprised(playground: Playground) -> None:
    playground.button("Score").click()
    expect(playground.page.locator(".score")).to_be_visible()


def compared(playground: Playground) -> None:
    playground.show("Compare")
    playground.page.locator(".compare .primary").click()
    expect(playground.page.locator(".compare [role=status]")).to_be_visible()
    playground.page.locator(".sides summary").first.click()


def tokens(playground: Playground) -> None:
    playground.show("Tokens")
    expect(playground.page.locator(".pieces li").first).to_be_visible()


def settings(playground: Playground) -> None:
    playground.tab("Settings")
    expect(playground.page.locator(".settings summary").first).to_be_visible()
    for summary in playground.page.locator(".settings summary").all():
        summary.click()
    playground.page.locator("#write-temperature").fill("9")


def help_dialog(playground: Playground) -> None:
    playground.page.keyboard.press("F1")
    expect(playground.page.get_by_role("dialog", name="Help")).to_be_visible()


def copy_dialog(playground: Playground) -> None:
    playground.button("Copy as").click()
    expect(playground.page.get_by_role("dialog", name="Copy as")).to_be_visible()


def failed(playground: Playground) -> None:
    playground.set("max_tokens", "5000").generate()


def page_menu(playground: Playground) -> None:
    playground.page.get_by_role("button", name="Page").click()
    expect(playground.page.locator(".menu:popover-open")).to_be_visible()


def candidates(playground: Playground) -> None:
    playground.set("n", "3").set("max_tokens", "24").generate()
    playground.tab("Candidates")
    expect(playground.page.locator(".candidates li")).to_have_count(3)


def filled_in(playground: Playground) -> None:
    playground.write("Once upon a time They lived happily.").set("seed", "3").set("max_tokens", "8")
    playground.focus()
    playground.during(lambda: playground.page.keyboard.press("Alt+Enter"))
    expect(playground.button("Accept")).to_be_visible()


def biased(playground: Playground) -> None:
    with_alternatives(playground)
    playground.page.locator(".alternatives .weights").get_by_role("button", name="Ban").click()
    expect(playground.notice).to_contain_text("is banned from now on")
    playground.tab("Settings")
    expect(playground.page.get_by_role("list", name="Biased tokens")).to_be_visible()


def shared(playground: Playground) -> None:
    playground.generate().button("Share").click()
    expect(playground.notice).to_contain_text("The link was copied.")
    link = playground.page.evaluate("navigator.clipboard.readText()")
    playground.page.goto("about:blank")
    playground.open(link.removeprefix(playground.url))
    expect(playground.button("Reproduce")).to_be_visible()


def renaming(playground: Playground) -> None:
    library(playground)
    playground.page.locator(".stories li").first.get_by_role("button", name="Change").click()
    playground.page.get_by_role("button", name="Rename").click()
    expect(playground.page.get_by_label("Title", exact=True)).to_be_visible()


def own_template(playground: Playground) -> None:
    template(playground)
    playground.page.get_by_label("Request", exact=True).fill("Tell a story.")
    expect(playground.page.get_by_label("What is inserted")).to_contain_text("[answer]")


def refused_template(playground: Playground) -> None:
    template(playground)
    playground.page.get_by_label("Instructions").fill("Be brief.")
    expect(playground.page.get_by_role("alert")).to_be_visible()


def key_dialog(playground: Playground) -> None:
    playground.page.get_by_label("This server's key").fill("sk-wrong")
    playground.page.get_by_role("button", name="Use this key").click()
    expect(playground.page.get_by_role("dialog").get_by_role("alert")).to_be_visible()


def reference(playground: Playground) -> None:
    playground.page.goto(f"{playground.url}/docs")


VIEWS: dict[str, list[Callable[[Playground], None]]] = {
    "site": [
        generated, library, renaming, context, probabilities, menu, page_menu, versions, with_tree, candidates,
        with_alternatives, biased, surprised, compared, numbers, template, filled_in, tokens, settings, help_dialog,
        copy_dialog, shared, failed, reference,
    ],
    "instruct": [own_template, refused_template],
    "locked": [key_dialog],
}  # fmt: skip
"""By the server that has them."""


@pytest.mark.parametrize("device", [{}, PHONE], ids=["1280", "400"])
@pytest.mark.parametrize(
    ("server", "show"),
    [pytest.param(server, show, id=show.__name__) for server, shows in VIEWS.items() for show in shows],
)
def test_axe_finds_no_violation(
    browser: Browser,
    request: pytest.FixtureRequest,
    server: str,
    show: Callable[[Playground], None],
    device: dict[str, Any],
) -> None:
    """Neither in light nor in dark. Also checks that nothing is wider than the screen."""
    context = open_context(browser, reduced_motion="reduce", **device)
    playground = Playground(context.new_page(), request.getfixturevalue(server)).open()
    show(playground)
    width = playground.page.evaluate("document.documentElement.scrollWidth")
    seen = violations(playground.page)
    context.close()
    assert not seen
    assert width <= (400 if device else 1280)


def test_the_colours_follow_the_system_or_the_users_choice(browser: Browser, site: str) -> None:
    context = open_context(browser, color_scheme="dark")
    playground = Playground(context.new_page(), site).open()
    dark = playground.page.evaluate(BACKGROUND)
    playground.page.get_by_role("button", name="Page").click()
    playground.page.get_by_label("Theme").select_option("light")
    light = playground.page.evaluate(BACKGROUND)
    assert dark != light
    playground.open()
    assert playground.page.evaluate(BACKGROUND) == light
    playground.page.get_by_role("button", name="Page").click()
    playground.page.get_by_label("Theme").select_option("dark")
    assert playground.page.evaluate(BACKGROUND) == dark
    context.close()


@pytest.mark.parametrize("device", [{}, PHONE], ids=["1280", "400"])
def test_every_panel_has_room_for_its_tab(browser: Browser, site: str, device: dict[str, Any]) -> None:
    context = open_context(browser, **device)
    playground = Playground(context.new_page(), site).open().tab("Numbers")
    for tab in playground.page.get_by_role("tab").all():
        expect(tab).to_be_in_viewport(ratio=1)
    context.close()


@pytest.mark.parametrize("width", [320, 360, 400])
def test_no_button_is_cut_off_on_a_narrow_phone(browser: Browser, site: str, width: int) -> None:
    context = open_context(browser, **PHONE | {"viewport": {"width": width, "height": 700}})
    playground = Playground(context.new_page(), site).open()
    page = playground.page
    page.get_by_role("button", name="Continue").tap()
    expect(page.get_by_role("group", name="Versions")).to_contain_text("1/1")
    playground.wait()
    for button in page.locator(".bar > button:visible, .bar .model select, .foot .toolbar > * > button:visible").all():
        expect(button).to_be_in_viewport(ratio=1)
    if width > 320:
        for tab in playground.tab("Numbers").page.get_by_role("tab").all():
            expect(tab).to_be_in_viewport(ratio=1)
        playground.close_panels()
    else:  # it is in the menu
        page.get_by_role("button", name="More", exact=True).tap()
    playground.during(page.locator(".foot").get_by_role("button", name="Another").tap)
    context.close()


@pytest.mark.parametrize("path", ["/docs", "/usage"])
def test_the_other_pages_are_not_wider_than_a_narrow_phone(browser: Browser, site: str, path: str) -> None:
    context = open_context(browser, **PHONE | {"viewport": {"width": 320, "height": 700}})
    page = context.new_page()
    page.goto(site + path)
    expect(page.get_by_role("navigation").first).to_be_visible()
    width = page.evaluate("document.documentElement.scrollWidth")
    context.close()
    assert width == 320


def test_the_tree_is_next_to_document_and_settings_where_there_is_room(browser: Browser, site: str) -> None:
    context = open_context(browser, viewport={"width": 1700, "height": 900})
    playground = Playground(context.new_page(), site).open().generate()
    expect(playground.page.get_by_role("complementary", name="Tree").locator(".node")).to_have_count(2)
    expect(playground.page.locator("#write-temperature")).to_be_visible()
    expect(playground.page.get_by_role("tab", name="Tree")).to_have_count(0)
    context.close()


def test_nothing_moves_where_motion_is_reduced(browser: Browser, site: str) -> None:
    context = open_context(browser, reduced_motion="reduce")
    playground = Playground(context.new_page(), site).open()
    moving = (
        "[...document.querySelectorAll('body *')].filter(e => parseFloat(getComputedStyle(e).transitionDuration) > 0)"
    )
    assert playground.page.evaluate(f"{moving}.length") == 0
    context.close()


def test_the_help_sheet_opens_and_closes_by_keyboard(playground: Playground) -> None:
    page = playground.page
    playground.button("Continue").focus()
    page.keyboard.press("?")
    expect(page.get_by_role("dialog", name="Help")).to_contain_text("Ctrl Enter")
    page.keyboard.press("Escape")
    expect(page.get_by_role("dialog")).to_have_count(0)
    playground.focus()
    before = playground.text
    page.keyboard.press("Control+End")
    page.keyboard.type("?")
    playground.shows(before + "?")  # in the document, the key types a character
    expect(page.get_by_role("dialog")).to_have_count(0)


def test_every_control_is_reached_by_tab(playground: Playground) -> None:
    page = playground.page
    playground.generate()
    page.get_by_label("Model").focus()
    assert {"Another", "Undo", "Redo", "Probabilities", "More", "Next version"} <= reached_by_tab(playground, 20)
    page.get_by_role("button", name="More", exact=True).focus()
    page.keyboard.press("Enter")
    wanted = {"Same again", "Fill in", "Rewrite", "Score", "Share", "Copy as…", "New story"}
    reached = reached_by_tab(playground, 12)
    assert all(any(name.startswith(each) for name in reached) for each in wanted), reached
    page.keyboard.press("Escape")
    expect(page.locator(".menu:popover-open")).to_have_count(0)
    page.get_by_role("button", name="Page").focus()
    page.keyboard.press("Enter")
    assert {"Help and keys ?", "API reference"} <= reached_by_tab(playground, 4)


def reached_by_tab(playground: Playground, presses: int) -> set[str]:
    """Return the names of the elements that get the focus."""
    name = "(document.activeElement.ariaLabel || document.activeElement.textContent).trim()"
    reached = set()
    for _ in range(presses):
        playground.page.keyboard.press("Tab")
        reached.add(playground.page.evaluate(name))
    return reached


@pytest.mark.parametrize("device", [{}, PHONE], ids=["1280", "400"])
def test_the_toolbar_never_moves(browser: Browser, site: str, device: dict[str, Any]) -> None:
    context = open_context(browser, **device)
    playground = Playground(context.new_page(), site).open()
    primary = playground.page.locator(".foot .toolbar .primary")
    place = primary.bounding_box()
    playground.click("Continue")
    assert primary.bounding_box() == place
    playground.set("max_tokens", "5000").click("Continue")
    expect(playground.page.get_by_role("alert")).to_be_visible()
    assert primary.bounding_box() == place
    playground.colour("Probability")
    assert primary.bounding_box() == place
    playground.write("A line.\n" * 200)
    assert primary.bounding_box() == place
    assert place and 0 < place["y"] < 800 - place["height"]
    panels = playground.page.locator(".foot .toolbar .panels")
    panels_place = panels.bounding_box()
    playground.set("max_tokens", "8").focus()
    playground.during(lambda: playground.page.keyboard.press("Alt+Enter"))
    accept = playground.button("Accept").bounding_box()
    assert accept and (accept["x"], accept["y"]) == (place["x"], place["y"])
    assert panels.bounding_box() == panels_place
    context.close()


def test_screen_readers_hear_what_happens(playground: Playground) -> None:
    playground.set("seed", "1").generate()  # a text that does not end immediately
    playground.announced("Done: ")
    playground.announced("tokens.")
