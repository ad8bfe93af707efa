"""The same servers without sockets: the application of each profile, over an engine in this process."""

from __future__ import annotations

import asyncio
import urllib.parse
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx2

from onward.compose import compose
from onward.compose.team import open_team
from onward.loop_thread import LoopThread
from onward.server.app import App
from tests.listening import parsed

from .servers import COMPLETIONS, KEY, Answer, Server

GUARD_SECONDS = 60.0
HOST = "127.0.0.1:8000"


class InProcess(Server):
    """The application that `onward serve` would serve with these flags, called as uvicorn calls it, on `loop`."""

    def __init__(self, loop: LoopThread, *flags: str, model: str | Path = "toy") -> None:
        settings = parsed("--model", str(model), *flags)
        self.url = f"http://{HOST}"
        self._key = {"authorization": f"Bearer {KEY}"} if KEY in flags else {}
        self._loop = loop
        self._team = open_team(settings)
        self._backend = compose(settings, lambda message: None)
        self._app = App(self._backend, settings, team=self._team)
        self.data_dir = settings.data_dir or Path()
        runner = self._app.batches
        self._working = None if runner is None else asyncio.run_coroutine_threadsafe(runner.run(), loop.loop)

    def close(self) -> str:
        if self._working is not None:
            self._working.cancel()
        self._loop.run(self._backend.aclose())
        if self._team is not None:
            self._team.close()
        return ""

    def send(self, method: str, path: str, body: bytes = b"", headers: Mapping[str, str] | None = None) -> Answer:
        given = {"content-type": "application/json"} if body else {}
        return self._loop.run(_Request(self._app, method, path, body, given | dict(headers or {})).answer())

    @contextmanager
    def streaming(self, body: Mapping[str, Any], headers: Mapping[str, str] | None = None) -> Iterator[None]:
        content = httpx2.Request("POST", self.url, json=body).content
        request = _Request(self._app, "POST", COMPLETIONS, content, dict(headers or {}))
        self._loop.run(request.first_bytes())
        try:
            yield
        finally:
            self._loop.run(request.leave())


class _Request:
    """One request to an ASGI application."""

    def __init__(self, app: Any, method: str, target: str, body: bytes, headers: Mapping[str, str]) -> None:
        path, _, query = target.partition("?")
        sent = {"host": HOST, "accept-encoding": "identity", "content-length": str(len(body))}
        sent |= {name.lower(): value for name, value in headers.items()}
        self._scope = {
            "type": "http",
            "http_version": "1.1",
            "method": method,
            "scheme": "http",
            "path": urllib.parse.unquote(path),
            "raw_path": path.encode(),
            "query_string": query.encode(),
            "headers": [(name.encode(), value.encode("latin-1")) for name, value in sent.items()],
            "client": ("127.0.0.1", 1),
            "server": ("127.0.0.1", 8000),
        }
        self._app, self._body = app, body
        self._is_received = False
        self._left, self._has_bytes = asyncio.Event(), asyncio.Event()
        self._status, self._headers, self._content = 0, httpx2.Headers(), b""

    async def answer(self) -> Answer:
        async with asyncio.timeout(GUARD_SECONDS):
            await self._app(self._scope, self._receive, self._send)
        return Answer(self._status, self._headers, b"" if self._scope["method"] == "HEAD" else self._content)

    async def first_bytes(self) -> None:
        self._running = asyncio.create_task(self._app(self._scope, self._receive, self._send))
        async with asyncio.timeout(GUARD_SECONDS):
            await self._has_bytes.wait()

    async def leave(self) -> None:
        self._left.set()
        async with asyncio.timeout(GUARD_SECONDS):
            await self._running

    async def _receive(self) -> dict[str, Any]:
        if self._is_received:
            await self._left.wait()
            return {"type": "http.disconnect"}
        self._is_received = True
        return {"type": "http.request", "body": self._body, "more_body": False}

    async def _send(self, message: dict[str, Any]) -> None:
        if message["type"] == "http.response.start":
            self._status, self._headers = message["status"], httpx2.Headers(message["headers"])
        else:
            self._content += message.get("body", b"")
            self._has_bytes.set()
