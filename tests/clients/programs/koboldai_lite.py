"""KoboldAI Lite in Chromium: connected as an OpenAI compatible API, it streams, shows probabilities, and aborts."""

from report import KEY, URLS, check
from web_page import WebPage, opened, running, shown

SITE = "https://lite.koboldai.net"
PROMPT = "ab ab ab ab"


def connect(web_page: WebPage, url: str, key: str = "", *, is_nonstandard: bool = False) -> None:
    """Enter the server as a person does, and choose the model of its list."""
    page = web_page.page
    box = page.locator("#msgboxcontainer")  # it says at the start that the AI Horde cannot be reached
    page.add_locator_handler(box, lambda: box.get_by_role("button", name="OK", exact=True).click())
    page.get_by_role("button", name="Set UI").click()
    page.get_by_text("Select Endpoint").click()
    page.locator("#customapidropdown").select_option(label="OpenAI Compatible API")
    page.locator("#custom_oai_endpoint").fill(url)
    page.locator("#custom_oai_key").fill(key)
    page.get_by_role("button", name="Fetch", exact=True).click()
    page.locator("#custom_oai_model option[value=toy]").wait_for(state="attached")
    page.locator("#custom_oai_model").select_option("toy")
    page.locator("#useoaichatcompl").uncheck()  # it is checked for models with unknown names
    if is_nonstandard:
        page.locator("#useoainonstandard").check()
    page.get_by_role("button", name="Ok", exact=True).first.click()


def settle(web_page: WebPage, *, amount: int = 60, streams: bool = True, is_story: bool = True) -> None:
    """Choose the mode, how much to write, and whether as a stream or with probabilities."""
    page = web_page.page
    page.get_by_text("Settings", exact=True).first.click()
    page.get_by_role("link", name="General").click()
    page.locator("#opmode").select_option(label="Story Mode" if is_story else "Instruct Mode")
    page.locator("#tokenstreammode").select_option(label="SSE" if streams else "Off")
    page.locator("#trimsentences").uncheck()
    page.get_by_role("link", name="Samplers").click()
    page.locator("#max_length").fill(str(amount))
    page.get_by_role("link", name="Misc").click()
    page.locator("#request_logprobs").set_checked(not streams)
    page.get_by_role("button", name="OK", exact=True).last.click()


def submit(web_page: WebPage) -> None:
    web_page.page.locator("#input_text").fill(PROMPT)
    web_page.page.locator("#btnsend").click()


def assert_written(web_page: WebPage, text: str) -> None:
    story = web_page.page.locator("#gametext")
    web_page.until(lambda: shown(story.inner_text()) == shown(PROMPT + text), f"{PROMPT + text!r} is shown")


@check("a story is continued: the model is chosen from the list, the text is streamed")
def story():
    with opened() as web_page:
        connect(web_page, URLS["default"])
        settle(web_page)
        text = web_page.completed(lambda: submit(web_page))
        assert web_page.sent[0]["stream"] is True and text
        assert_written(web_page, text)
        longer = web_page.completed(lambda: web_page.page.locator("#btnsend").click())
        assert web_page.sent[1]["prompt"].startswith(PROMPT + text[:20])
        assert_written(web_page, text + longer)


@check("instruct mode, with its stop sequences")
def instruct():
    with opened() as web_page:
        connect(web_page, URLS["default"])
        settle(web_page, is_story=False)
        text = web_page.completed(lambda: submit(web_page))
        assert web_page.sent[0]["stop"] and shown(text)
        story = web_page.page.locator("#gametext")
        web_page.until(lambda: shown(text) in shown(story.inner_text()), f"{text!r} is shown")


@check("a whole answer, and its token probabilities")
def probabilities():
    with opened() as web_page:
        connect(web_page, URLS["default"])
        settle(web_page, streams=False)
        text = web_page.completed(lambda: submit(web_page))
        assert "stream" not in web_page.sent[0] and web_page.sent[0]["logprobs"] == 5
        assert_written(web_page, text)
        web_page.page.get_by_text("(View Logprobs)").first.click()
        rows = web_page.page.locator(".logprobstable tr")
        assert 0 < rows.count() <= 60 and rows.first.locator("td").count() == 6
        assert "%" in rows.first.inner_text()


@check("abort ends the work on the server")
def abort():
    with opened() as web_page:
        connect(web_page, URLS["default"])
        settle(web_page, amount=1536)
        text = "document.getElementById('gametext').innerText"
        web_page.interrupted(lambda: submit(web_page), text, "document.getElementById('abortgen').click()")
        web_page.until(lambda: running(URLS["default"]) == 0, "the server is idle")
        assert web_page.sent[0]["max_tokens"] == 1536
        assert len(PROMPT) < len(web_page.page.evaluate(text)) < 1200


@check(f"from {SITE}: a server with keys, and one with --allowed-origin; another one refuses the page")
def elsewhere():
    for server, key in (("keyed", KEY), ("site", "")):
        with opened(SITE) as web_page:
            connect(web_page, URLS[server], key)
            settle(web_page)
            assert_written(web_page, web_page.completed(lambda: submit(web_page)))
    with opened(SITE) as web_page:
        status = "url => fetch(url + '/v1/models').then(() => 'answered', () => 'refused')"
        assert web_page.page.evaluate(status, URLS["default"]) == "refused"
