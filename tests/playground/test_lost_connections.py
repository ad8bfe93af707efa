"""What the page does when its server is gone, restarted, or wants a key meanwhile."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

pytest.importorskip("playwright.sync_api", reason="needs Playwright: pip install 'onward[browser]'")

from playwright.sync_api import expect

from tests.playground.pages import Playground, open_context

if TYPE_CHECKING:
    from playwright.sync_api import Browser

    from tests.playground.proxy import Proxy

pytestmark = pytest.mark.slow

NUM_BYTES = 8_000
"""Of an answer, before its connection is lost: its head and some events, of hundreds."""


def test_a_stream_continues_after_a_lost_connection(browser: Browser, site: str, proxy: Proxy) -> None:
    context = open_context(browser)
    playground = Playground(context.new_page(), proxy.url).open()
    fields = {"max_tokens": 500, "min_tokens": 500, "seed": 5, "temperature": 1.5}
    playground.write("Once upon a time")
    for name, value in fields.items():
        playground.set(name, str(value))

    def cut_on_the_way() -> None:
        playground.focus()
        proxy.hold_after(NUM_BYTES)
        playground.page.keyboard.press("Control+Enter")
        expect(playground.page.locator(".editor .generated").first).to_be_visible()
        proxy.cut()

    playground.during(cut_on_the_way)
    whole = playground.page.request.post(
        f"{site}/v1/completions",
        data={"model": "storyteller", "prompt": "Once upon a time"} | fields,
    ).json()["choices"][0]["text"]
    assert playground.text == "Once upon a time" + whole
    assert any("completions/cmpl-" in address for address in playground.requests), "it was resumed"
    expect(playground.page.locator(".problem")).to_have_count(0)
    context.close()


def test_a_server_that_is_gone_is_reported(playground: Playground) -> None:
    playground.page.route("**/v1/completions", lambda route: route.abort())
    playground.generate()
    expect(playground.page.get_by_role("alert")).to_contain_text("cannot be reached")
    playground.page.unroute("**/v1/completions")
    prompt = playground.text
    playground.generate()
    assert len(playground.text) > len(prompt)


@pytest.mark.parametrize("name", ["Another", "Same again", "Rewrite"])
def test_what_was_to_be_replaced_stays_where_nothing_comes(playground: Playground, name: str) -> None:
    """What was typed since, too."""
    playground.set("max_tokens", "12").generate()
    playground.focus()
    playground.page.keyboard.press("Control+End")
    playground.page.keyboard.type(" And then")
    for _ in range(40):
        playground.page.keyboard.press("ArrowLeft")
    shown = playground.text
    playground.page.route("**/v1/completions", lambda route: route.abort())
    playground.button(name).click()
    expect(playground.page.get_by_role("alert")).to_contain_text("cannot be reached")
    playground.shows(shown)
    expect(playground.page.locator(".editor .generated").first).to_be_visible()
    playground.page.unroute("**/v1/completions")
    playground.click(name)
    assert playground.text != shown
    playground.tab("Tree")
    expect(playground.page.locator(".node").filter(has_text="And then")).not_to_have_count(0)


def test_a_server_that_was_restarted_while_it_wrote_is_explained(browser: Browser, site: str, proxy: Proxy) -> None:
    context = open_context(browser)
    playground = Playground(context.new_page(), proxy.url).open()
    playground.set("max_tokens", "500").set("min_tokens", "500")
    answer = {"error": {"message": "There is no stream.", "type": "invalid_request_error", "param": "id", "code": None}}
    playground.page.route("**/v1/completions/cmpl-*", lambda route: route.fulfill(status=404, json=answer))

    def cut_on_the_way() -> None:
        playground.focus()
        proxy.hold_after(NUM_BYTES)
        playground.page.keyboard.press("Control+Enter")
        expect(playground.page.locator(".editor .generated").first).to_be_visible()
        proxy.cut()

    playground.during(cut_on_the_way)
    expect(playground.page.get_by_role("alert")).to_contain_text("The server was restarted")
    expect(playground.page.locator(".editor .generated").first).to_be_visible()
    context.close()


def test_a_key_that_is_needed_since_the_page_was_opened_is_asked_for(playground: Playground) -> None:
    words = "You need to provide your API key in an Authorization header using Bearer auth"
    answer = {"error": {"message": words, "type": "invalid_request_error", "param": None, "code": None}}
    playground.page.route("**/v1/completions", lambda route: route.fulfill(status=401, json=answer))
    playground.generate()
    dialog = playground.page.get_by_role("dialog")
    expect(dialog).to_contain_text("This server needs an API key.")
    expect(dialog).not_to_contain_text("Bearer")
