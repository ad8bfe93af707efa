"""A fault-injecting proxy in front of a real server: it makes clients retry, and breaks streams.

`/retry/ID/…` returns 429 for the first two requests of each ID, `/busy/ID/…` 503 for the first one, `/stop/ID/…` always
429 with `x-should-retry: false`; `/seen/ID` lists the retry counters in an ID's requests. `/status/CODE/…` returns an
error with that status. `/error/…` inserts an error event into a stream, `/cut/…` closes the connection after the first
event.
"""

from __future__ import annotations

import json
import socket
import threading
from collections import defaultdict
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

import httpx2
import uvicorn

Scope = MutableMapping[str, Any]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
LIMITED = {"error": {"message": "slow down", "type": "requests", "param": None, "code": "rate_limit_exceeded"}}
FAILED = {"error": {"message": "failed on purpose", "type": "test_error", "param": "prompt", "code": "on_purpose"}}
BROKEN = b'data: {"error":{"message":"broke","type":"server_error","param":null,"code":null}}\n\n'


class FaultProxy:
    """An ASGI application in a thread of its own. `url` is its root."""

    def __init__(self, target: str) -> None:
        self._target = target
        self._seen: dict[str, list[str]] = defaultdict(list)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self._server = uvicorn.Server(uvicorn.Config(self, log_level="critical", lifespan="off"))
        self._thread = threading.Thread(target=lambda: self._server.run(sockets=[self._listener]), daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._server.should_exit = True
        self._thread.join(10)
        self._listener.close()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        body, more = b"", True
        while more:
            message = await receive()
            body += message.get("body", b"")
            more = message.get("more_body", False)
        fault, _, rest = scope["path"].removeprefix("/").partition("/")
        name, _, path = rest.partition("/")
        headers = {key.decode(): value.decode() for key, value in scope["headers"]}
        if fault == "seen":
            await answer(send, 200, json.dumps(self._seen[name]).encode())
        elif fault == "status":
            await answer(send, int(name), json.dumps(FAILED).encode(), [(b"x-should-retry", b"false")])
        elif fault == "busy" and not self._seen[name]:
            self._seen[name].append(headers.get("x-stainless-retry-count", ""))
            await answer(send, 503, json.dumps(FAILED).encode(), [(b"retry-after", b"1")])
        elif fault == "stop" or (fault == "retry" and len(self._seen[name]) < 2):
            self._seen[name].append(headers.get("x-stainless-retry-count", ""))
            extra = [(b"x-should-retry", b"false")] if fault == "stop" else []
            await answer(send, 429, json.dumps(LIMITED).encode(), [(b"retry-after-ms", b"50"), *extra])
        else:
            self._seen[name].append(headers.get("x-stainless-retry-count", ""))
            await self._forward(scope["method"], "/" + path, headers, body, fault, send)

    async def _forward(
        self, method: str, path: str, headers: dict[str, str], body: bytes, fault: str, send: Send
    ) -> None:
        async with (
            httpx2.AsyncClient(base_url=self._target, timeout=30) as client,
            client.stream(method, path, content=body, headers=headers) as got,
        ):
            head = [(key, value) for key, value in got.headers.raw if key.lower() == b"content-type"]
            await send({"type": "http.response.start", "status": got.status_code, "headers": head})
            async for chunk in got.aiter_raw():
                await send({"type": "http.response.body", "body": chunk, "more_body": True})
                if fault == "error":
                    await send({"type": "http.response.body", "body": BROKEN, "more_body": False})
                    return
                if fault == "cut":
                    raise ConnectionResetError("closed on purpose")
        await send({"type": "http.response.body", "body": b"", "more_body": False})


async def answer(send: Send, status: int, body: bytes, headers: list[tuple[bytes, bytes]] | None = None) -> None:
    head = [(b"content-type", b"application/json"), *(headers or [])]
    await send({"type": "http.response.start", "status": status, "headers": head})
    await send({"type": "http.response.body", "body": body, "more_body": False})
