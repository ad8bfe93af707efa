"""Shared by the clients that are web pages: one page in Chromium, what it sends, and what is sent to it."""

from __future__ import annotations

import json
import re
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import urlsplit

from playwright.sync_api import Page, Request, Response, TimeoutError, sync_playwright
from report import URLS

FILE = Path(sys.argv[1])
CHROMIUM = sys.argv[2]
PATIENCE_MS = 20_000
COMPLETIONS = ("/v1/completions", "/completion", "/text-completions/generate")
"""Ends of the addresses of completion requests, to Onward and to SillyTavern's server."""
QUIET = ("--no-sandbox", "--disable-dev-shm-usage", "--disable-background-networking", "--disable-component-update")


class WebPage:
    """An open page. `sent` has the bodies of its completion requests, `paths` their paths, the newest last."""

    def __init__(self, page: Page) -> None:
        self.page = page
        self.sent: list[dict] = []
        self.paths: list[str] = []
        page.set_default_timeout(PATIENCE_MS)
        page.on("request", self._note)

    def _note(self, request: Request) -> None:
        if _is_completion(request):
            self.sent.append(json.loads(request.post_data))
            self.paths.append(urlsplit(request.url).path)

    def until(self, holds: Callable[[], bool], what: str) -> None:
        """Wait until `holds()` is true, and let the page's events arrive meanwhile. Raises AssertionError."""
        deadline = time.monotonic() + PATIENCE_MS / 1000
        while not holds():
            assert time.monotonic() < deadline, f"never: {what}; sent {self.sent[-1:]}"
            self.page.wait_for_timeout(50)

    def completed(self, act: Callable[[], object]) -> str:
        """Do what makes the page ask for a completion, and return the text that the server sent. It must be a 200."""
        with self.page.expect_response(lambda response: _is_completion(response.request)) as found:
            act()
        assert found.value.status == 200, found.value.text()
        found.value.finished()
        return _sent_text(found.value)

    def interrupted(self, act: Callable[[], object], written: str, stop: str) -> None:
        """Do what makes the page ask for a completion, and run the script `stop` in the page as soon as the text that
        the script `written` returns has grown: a test's own click would come too late. A completion may end by itself
        before, so it is tried again."""
        script = f"before => ({written}).length > before.length + 20 && ({stop}, true)"
        for is_last in (False, False, True):
            before = self.page.evaluate(written)
            act()
            try:
                self.page.wait_for_function(script, arg=before, timeout=PATIENCE_MS / 4)
                return
            except TimeoutError:
                if is_last:
                    raise


def _sent_text(response: Response) -> str:
    """Return the text of an answer of /v1/completions or /completion, streamed or not."""
    body = response.body().decode()
    if "data: " in body:
        data = [line.removeprefix("data: ") for line in _utf8(body).splitlines() if line.startswith("data: ")]
        parts = [json.loads(each) for each in data if each != "[DONE]"]
    else:
        parts = [json.loads(body)]
    return "".join(map(_text, parts))


def _utf8(body: str) -> str:
    """Return a stream's text. Where it has no character set, Chromium passes its bytes on as Windows-1252."""
    try:
        return b"".join(each.encode("latin-1" if each <= "\xff" else "cp1252") for each in body).decode()
    except UnicodeError:
        return body


def _text(part: dict) -> str:
    """Return the text in an answer or a chunk, of any API here."""
    if "choices" in part:
        return part["choices"][0]["text"]
    return part["content"] if "content" in part else part["response"]


def _is_completion(request: Request) -> bool:
    return request.method == "POST" and request.url.endswith(COMPLETIONS)


def shown(text: str) -> str:
    """Return a text as pages show it: each run of whitespace is one space."""
    return re.sub(r"\s+", " ", text).strip()


def ask(url: str, body: dict) -> dict:
    """Send a request to the server."""
    request = urllib.request.Request(url, json.dumps(body).encode(), {"content-type": "application/json"})
    with urllib.request.urlopen(request) as answer:
        return json.load(answer)


def running(url: str) -> float:
    """Return how many sequences the server computes."""
    with urllib.request.urlopen(url + "/metrics") as answer:
        found = re.search(r'^onward_engine_running\{model="toy"\} (\S+)$', answer.read().decode(), re.MULTILINE)
    return float(found[1])


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        """Write nothing."""


@contextmanager
def opened(origin: str = "") -> Iterator[WebPage]:
    """Open the page of the file FILE in a new profile: from a web server of this machine, or as the front page of the
    site `origin`."""
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(_Quiet, directory=FILE.parent)) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        here = f"http://localhost:{server.server_port}"
        with browsing(here, *URLS.values()) as web_page:
            if origin:
                web_page.page.context.grant_permissions(["local-network-access"], origin=origin)
                html = {"body": FILE.read_text(encoding="utf-8"), "content_type": "text/html; charset=utf-8"}
                web_page.page.route(f"{origin}/", lambda route: route.fulfill(**html))
            web_page.page.goto(f"{origin}/" if origin else f"{here}/{FILE.name}")
            yield web_page
        server.shutdown()


@contextmanager
def browsing(*allowed: str) -> Iterator[WebPage]:
    """Start Chromium with a new profile and an empty page. Requests to other addresses than the `allowed` ones fail."""
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=CHROMIUM, args=list(QUIET))
        page = chromium.new_page(viewport={"width": 1200, "height": 900})
        page.route(lambda url: not url.startswith((*allowed, "data:", "blob:")), lambda route: route.abort())
        yield WebPage(page)
        chromium.close()
