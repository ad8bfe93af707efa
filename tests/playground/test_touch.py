"""A phone: taps, holds and swipes on the document, panels as a sheet, and a keyboard that covers half of the screen."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("playwright.sync_api", reason="needs Playwright: pip install 'onward[browser]'")

from playwright.sync_api import expect

from tests.playground.pages import PHONE, Playground, open_context

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Locator

pytestmark = pytest.mark.slow


@pytest.fixture
def phone(browser: Browser, site: str) -> Iterator[Playground]:
    """The page on a phone, after a short generation."""
    context = open_context(browser, **PHONE)
    opened = Playground(context.new_page(), site).open()
    opened.set("seed", "3").set("max_tokens", "24").click("Continue")
    opened.set("seed", "")
    yield opened
    context.close()
    assert not opened.problems


def touch(phone: Playground, token: Locator, *, right: int = 0, until: Callable[[], object] = lambda: None) -> None:
    """Put a finger on a token, move it, and lift it when `until` has returned."""
    box = token.bounding_box()
    assert box
    x, y = box["x"] + min(box["width"], 30) / 2, box["y"] + box["height"] / 2
    session = phone.page.context.new_cdp_session(phone.page)
    session.send("Input.dispatchTouchEvent", {"type": "touchStart", "touchPoints": [{"x": x, "y": y}]})
    for step in range(1, 6 if right else 1):
        point = {"x": x + right * step / 5, "y": y}
        session.send("Input.dispatchTouchEvent", {"type": "touchMove", "touchPoints": [point]})
    until()
    session.send("Input.dispatchTouchEvent", {"type": "touchEnd", "touchPoints": []})


def test_a_tap_on_a_token_opens_its_alternatives_and_choosing_one_continues(phone: Playground) -> None:
    before = phone.text
    touch(phone, phone.page.locator(".editor .generated").nth(2))
    box = phone.page.locator(".alternatives")
    expect(box).to_be_visible()
    place = box.bounding_box()
    assert place and place["x"] >= 0 and place["x"] + place["width"] <= 400
    phone.during(box.locator(".choice:enabled").nth(1).tap)
    assert phone.text != before


def test_a_tap_elsewhere_closes_the_alternatives(phone: Playground) -> None:
    touch(phone, phone.page.locator(".editor .generated").nth(2))
    expect(phone.page.locator(".alternatives")).to_be_visible()
    phone.page.touchscreen.tap(200, 560)
    expect(phone.page.locator(".alternatives")).to_have_count(0)


def test_holding_a_token_bans_it(phone: Playground) -> None:
    footer = phone.page.locator(".alternatives .held")
    touch(phone, phone.page.locator(".editor .generated").nth(2), until=lambda: expect(footer).to_be_visible())
    footer.get_by_role("button", name="Ban").tap()
    expect(phone.notice).to_contain_text("is banned from now on")
    phone.tab("Settings")
    expect(phone.page.get_by_role("list", name="Biased tokens").get_by_role("listitem")).to_have_count(1)
    phone.close_panels()
    phone.page.get_by_role("button", name="Remove bias").tap()
    assert "logit_bias" not in phone.request_of(lambda: phone.click("Another"))


def test_swipes_switch_versions_and_generate_another_after_the_last(phone: Playground) -> None:
    first = phone.text
    token = phone.page.locator(".editor .generated").nth(3)
    phone.during(lambda: touch(phone, token, right=-150))
    second = phone.text
    assert second != first
    touch(phone, phone.page.locator(".editor .generated").nth(1), right=150)
    phone.announced("Version 1 of 2.")
    assert phone.text == first
    expect(phone.page.locator(".alternatives")).to_have_count(0)


def test_a_soft_keyboard_covers_neither_caret_nor_action(phone: Playground) -> None:
    phone.write("A line of a long story.\n" * 60)
    phone.page.keyboard.press("Control+End")
    phone.page.set_viewport_size({"width": 400, "height": 420})
    caret = phone.page.locator(".editor .cm-cursor-primary")
    expect(caret).to_be_in_viewport()
    primary = phone.page.get_by_role("button", name="Continue")
    expect(primary).to_be_in_viewport(ratio=1)
    place, edge = caret.bounding_box(), phone.page.locator(".foot").bounding_box()
    assert place and edge and place["y"] + place["height"] <= edge["y"]


def test_the_panels_are_a_sheet_that_closes_by_button_and_escape(phone: Playground) -> None:
    panels = phone.page.get_by_role("complementary", name="Details")
    expect(panels).not_to_be_visible()
    phone.tab("Tree")
    expect(panels).to_be_visible()
    phone.close_panels()
    expect(panels).not_to_be_visible()
    phone.tab("Candidates")
    phone.page.keyboard.press("Escape")
    expect(panels).not_to_be_visible()


def test_what_is_touched_is_large_enough(phone: Playground) -> None:
    for button in phone.page.locator(".foot button:visible, .bar button:visible").all():
        box = button.bounding_box()
        assert box and box["height"] >= 40 and box["width"] >= 30, button.inner_text()


def test_a_setting_out_of_range_is_named_beside_the_document_and_found_from_there(phone: Playground) -> None:
    """The panel that explains it is out of sight."""
    page, before = phone.page, phone.text
    phone.set("temperature", "5")
    phone.button("Continue").click()
    problem = page.locator(".problem")
    expect(problem).to_contain_text("temperature: The maximum is 2.")
    expect(problem).to_be_in_viewport(ratio=1)
    assert phone.text == before
    problem.get_by_role("button", name="Show the setting").click()
    field = page.locator("#write-temperature")
    expect(field).to_be_focused()
    expect(field).to_be_in_viewport()
    field.fill("1.5")
    phone.close_panels()
    expect(problem).to_have_count(0)
    assert phone.request_of(lambda: phone.click("Continue"))["temperature"] == 1.5
