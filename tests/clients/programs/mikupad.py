"""Mikupad in Chromium, with both of its types: it streams, shows probabilities, counts tokens, and cancels."""

import re

from playwright.sync_api import Page
from report import KEY, URLS, check
from web_page import WebPage, ask, opened, running

SITE = "https://lmg-anon.github.io"
PROMPT = "ab ab ab ab"
TYPES = {"OpenAI Compatible": "/v1/completions", "llama.cpp": "/completion"}


def select(page: Page, label: str, option: str) -> None:
    page.locator("label.SelectBox").filter(has_text=re.compile(f"^{label}")).locator("select").select_option(
        label=option
    )


def connect(web_page: WebPage, kind: str, url: str, key: str = "", amount: int = 60) -> None:
    """Enter the server and how much to write, and the prompt."""
    page = web_page.page
    select(page, "API", kind)
    page.get_by_label("Server").fill(url)
    page.get_by_label("API Key").fill(key)
    if kind == "llama.cpp":
        page.get_by_label("Post Sampling Probs").uncheck()
    else:
        page.get_by_label("Model").fill("toy")
    page.get_by_label("Max Predict Tokens").fill(str(amount))
    page.locator("#prompt-area").fill(PROMPT)


def predict(web_page: WebPage) -> None:
    web_page.page.get_by_role("button", name="Predict", exact=True).click()


def assert_written(web_page: WebPage, text: str) -> None:
    area = web_page.page.locator("#prompt-area")
    web_page.until(lambda: area.input_value() == PROMPT + text, f"{PROMPT + text!r} is shown")


def assert_probabilities(web_page: WebPage) -> None:
    """Point at a token: ten likely ones are shown, each with its probability."""
    box = web_page.page.locator("#prompt-overlay .machine").nth(2).bounding_box()
    web_page.page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    shares = web_page.page.locator("#probs .prob")
    web_page.until(lambda: shares.count() == 10, "ten probabilities")
    percents = [float(share.removesuffix("%")) for share in shares.all_inner_texts()]
    assert 0 < sum(percents) <= 100.1 and percents == sorted(percents, reverse=True), percents


for kind, path in TYPES.items():

    @check(f"{kind}: a text is continued as a stream, with the probabilities of each token")
    def streamed(kind=kind, path=path):
        with opened() as web_page:
            connect(web_page, kind, URLS["default"])
            text = web_page.completed(lambda: predict(web_page))
            assert web_page.sent[0]["stream"] is True and web_page.paths[0] == path and text
            assert_written(web_page, text)
            assert_probabilities(web_page)

    @check(f"{kind}: without token streaming")
    def whole(kind=kind):
        with opened() as web_page:
            connect(web_page, kind, URLS["default"])
            web_page.page.get_by_label("Token Streaming").uncheck()
            text = web_page.completed(lambda: predict(web_page))
            assert web_page.sent[0]["stream"] is False
            assert_written(web_page, text)

    @check(f"{kind}: cancel ends the work on the server")
    def cancelled(kind=kind):
        with opened() as web_page:
            connect(web_page, kind, URLS["default"], amount=1900)
            text = "document.getElementById('prompt-area').value"
            button = "[...document.querySelectorAll('button')].find(each => each.innerText === 'Cancel').click()"
            web_page.interrupted(lambda: predict(web_page), text, button)
            web_page.until(lambda: running(URLS["default"]) == 0, "the server is idle")
            assert len(PROMPT) < len(web_page.page.evaluate(text)) < 1600


@check("llama.cpp: the tokens of the text are counted")
def counted():
    with opened() as web_page:
        connect(web_page, "llama.cpp", URLS["default"])
        count = str(len(ask(URLS["default"] + "/tokenize", {"content": PROMPT})["tokens"]) + 1)  # it adds a start token
        field = web_page.page.locator("label.InputBox").filter(has_text=re.compile("^Tokens")).locator("input")
        web_page.until(lambda: field.count() == 1 and field.input_value() == count, f"{count} tokens")


@check(f"from {SITE}: a server with keys, in both types; another server refuses the page")
def elsewhere():
    for kind in TYPES:
        with opened(SITE) as web_page:
            connect(web_page, kind, URLS["keyed"], KEY)
            assert_written(web_page, web_page.completed(lambda: predict(web_page)))
    with opened(SITE) as web_page:
        status = "url => fetch(url + '/v1/models').then(() => 'answered', () => 'refused')"
        assert web_page.page.evaluate(status, URLS["default"]) == "refused"
