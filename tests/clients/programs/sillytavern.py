"""SillyTavern's own server and its page in Chromium: each connection type chats through Onward, streamed and not."""

from __future__ import annotations

import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from report import URLS, check
from web_page import WebPage, browsing, running, shown

PACKAGE, _, NODE = sys.argv[1:4]
START_SECONDS = 120
"""Its server bundles the page's libraries at the first start."""
MESSAGE = "ab ab ab ab"
TYPES = ("vllm", "generic", "llamacpp", "aphrodite", "ollama", "ooba")


@contextmanager
def sillytavern() -> Iterator[str]:
    """Run SillyTavern's server with new data, and yield its address."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        flags = {
            "dataRoot": f"{folder}/data",
            "configPath": f"{folder}/config.yaml",
            "port": str(port),
            "listen": "false",
            "browserLaunchEnabled": "false",
        }
        command = [NODE, "server.js", *(word for name, value in flags.items() for word in (f"--{name}", value))]
        with (
            Path(folder, "log.txt").open("w+", encoding="utf-8") as log,
            subprocess.Popen(command, cwd=PACKAGE, stdout=log, stderr=subprocess.STDOUT) as server,
        ):
            try:
                _wait(f"http://127.0.0.1:{port}", server, log)
                yield f"http://127.0.0.1:{port}"
            finally:
                server.terminate()


def _wait(url: str, server: subprocess.Popen, log) -> None:
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline and server.poll() is None:
        try:
            urllib.request.urlopen(url, timeout=5).close()
            return
        except OSError:
            time.sleep(0.2)
    log.seek(0)
    raise AssertionError("SillyTavern did not start:\n" + log.read()[-3000:])


def welcome(site: str) -> None:
    """Answer the question for a name, which the first visit asks."""
    with browsing(site) as web_page:
        web_page.page.goto(site)
        web_page.page.locator(".popup-button-ok:visible").click()
        web_page.page.locator(".popup:visible").wait_for(state="detached")
        web_page.page.wait_for_timeout(2000)  # it saves settings a second after they change


@contextmanager
def connected(site: str, kind: str) -> Iterator[WebPage]:
    """Open the page, choose the type, enter Onward's address, connect, and choose the model where one can be chosen."""
    with browsing(site) as web_page:
        page = web_page.page
        page.goto(site)
        page.locator("#preloader").wait_for(state="detached")
        page.locator("#sys-settings-button .drawer-toggle").click()
        page.locator("#main_api").select_option("textgenerationwebui")
        page.locator("#textgen_type").select_option(kind)
        address = page.locator(f"#{'textgenerationwebui' if kind == 'ooba' else kind}_api_url_text")
        address.fill(URLS["default"])
        address.blur()
        page.locator("#api_button_textgenerationwebui").click()
        web_page.until(lambda: "toy" in page.locator(".online_status_text:visible").all_inner_texts(), "connected")
        if kind == "generic":
            page.locator("#generic_model_select").select_option("toy")
        if kind == "ooba":
            page.locator("#custom_model_textgenerationwebui").fill("toy")
            page.locator("#custom_model_textgenerationwebui").blur()
        page.locator("#sys-settings-button .drawer-toggle").click()
        yield web_page


def settle(web_page: WebPage, *, streams: bool, amount: int) -> None:
    page = web_page.page
    page.locator("#ai-config-button .drawer-toggle").click()
    page.locator("#streaming_textgenerationwebui").set_checked(streams)
    page.locator("#amount_gen_counter").fill(str(amount))
    page.locator("#amount_gen_counter").blur()
    page.locator("#ai-config-button .drawer-toggle").click()


def say(web_page: WebPage) -> None:
    web_page.page.locator("#send_textarea").fill(MESSAGE)
    web_page.page.locator("#send_but").click()


def assert_replied(web_page: WebPage, kind: str, *, streams: bool) -> None:
    settle(web_page, streams=streams, amount=60)
    text = web_page.completed(lambda: say(web_page))
    fields = web_page.sent[-1]
    assert fields["api_type"] == kind and bool(fields.get("stream")) == streams and shown(text)
    last = web_page.page.locator("#chat .mes_text").last
    web_page.until(lambda: shown(last.inner_text()) == shown(text), f"{shown(text)!r} is shown")


def assert_stopped(web_page: WebPage) -> None:
    settle(web_page, streams=True, amount=1500)
    written = (
        "[...document.querySelectorAll('#chat .mes[is_user=false] .mes_text')].map(each => each.innerText).join('')"
    )
    before = len(web_page.page.evaluate(written))
    web_page.interrupted(lambda: say(web_page), written, "document.getElementById('mes_stop').click()")
    web_page.until(lambda: running(URLS["default"]) == 0, "the server is idle")
    assert before < len(web_page.page.evaluate(written)) < before + 1200


with sillytavern() as site:
    welcome(site)
    for kind in TYPES:

        @check(f"{kind}: a reply streamed, one as a whole, and a third is stopped, which ends the work on the server")
        def replies(kind=kind):
            with connected(site, kind) as web_page:
                assert_replied(web_page, kind, streams=True)
                assert_replied(web_page, kind, streams=False)
                assert_stopped(web_page)
