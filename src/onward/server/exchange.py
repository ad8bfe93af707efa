"""One HTTP request and its one answer, over ASGI's receive and send."""

from __future__ import annotations

import asyncio
import time
import urllib.parse
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from onward.errors import BodyTimeout, RequestTooLarge
from onward.server.access_log import Record

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]

BODY_SECONDS = 60.0
"""A request body may make no progress for this time."""
BODY_TOTAL_SECONDS = 600.0
"""A request body must be complete after this time, however steadily it comes."""
DISCARD_SECONDS = 5.0
DISCARD_BYTES = 64_000_000


class ClientGone(Exception):
    """The client closed the connection before its answer was complete."""


class Exchange:
    """A request being answered: its body is read first, then its answer sent.

    Every answer carries the headers in `headers`; handlers may add to them until the answer starts. `record` is
    what the access log will say. Parts may be sent from several tasks: they keep the order of the calls.
    """

    def __init__(self, scope: Scope, receive: Receive, send: Send, request_id: str) -> None:
        self.method: str = scope["method"]
        self.path: str = scope["path"]
        self.scheme: str = scope.get("scheme", "http")
        self.client: str = (scope.get("client") or ("-",))[0]
        self.id = request_id
        self.started = self._last_sent = time.perf_counter()
        self.record = Record()
        self.answering = False
        self.ended = False
        self.with_schema = False
        self.headers: list[tuple[bytes, bytes]] = []
        self._received: list[tuple[bytes, bytes]] = scope["headers"]
        self._query: bytes = scope.get("query_string", b"")
        self._receive = receive
        self._send = send
        self._sending = asyncio.Lock()

    def header(self, name: bytes) -> str | None:
        """The request's first header of this lower-case name."""
        for key, value in self._received:
            if key == name:
                return value.decode("latin-1")
        return None

    def query(self, name: str) -> str | None:
        """The first value of this name in the URL's query."""
        return dict(reversed(urllib.parse.parse_qsl(self._query.decode("latin-1")))).get(name)

    async def body(self, limit: int) -> bytes:
        """The whole request body. Raises RequestTooLarge over `limit` bytes, BodyTimeout when it takes too long."""
        declared = self.header(b"content-length") or "0"
        too_large = declared.isdecimal() and int(declared) > limit
        more = True
        pieces: list[bytes] = []
        size = 0
        deadline = time.perf_counter() + BODY_TOTAL_SECONDS
        while more and not too_large:
            piece, more = await self._piece_by(deadline)
            pieces.append(piece)
            size += len(piece)
            too_large = size > limit
        if not too_large:
            return b"".join(pieces)
        pieces.clear()
        if more:
            await self._discard_body()
        raise RequestTooLarge(f"The request body is larger than the {limit} bytes that this server accepts.")

    async def _piece_by(self, deadline: float) -> tuple[bytes, bool]:
        """The next piece of the body, and whether more follow. Raises BodyTimeout."""
        left = deadline - time.perf_counter()
        try:
            async with asyncio.timeout(min(BODY_SECONDS, left)):
                return await self._piece()
        except TimeoutError:
            self.headers.append((b"connection", b"close"))
        if left > BODY_SECONDS:
            raise BodyTimeout(f"No more of the request body came for {BODY_SECONDS:.0f} seconds.")
        raise BodyTimeout(f"The request body was not complete after {BODY_TOTAL_SECONDS:.0f} seconds.")

    async def _piece(self) -> tuple[bytes, bool]:
        message = await self._receive()
        if message["type"] == "http.disconnect":
            raise ClientGone
        return message.get("body", b""), message.get("more_body", False)

    async def _discard_body(self) -> None:
        """Read on for a while, keeping nothing: a client that is cut off while it writes never reads the 413."""
        self.headers.append((b"connection", b"close"))
        if self.header(b"expect") is not None:
            return
        discarded, more = 0, True
        try:
            async with asyncio.timeout(DISCARD_SECONDS):
                while more and discarded < DISCARD_BYTES:
                    piece, more = await self._piece()
                    discarded += len(piece)
        except TimeoutError:
            pass

    async def wait_until_gone(self) -> None:
        """Return when the client has closed the connection. To be called after the body was read."""
        while (await self._receive())["type"] != "http.disconnect":
            pass

    async def answer(self, status: int, body: bytes, content_type: str) -> None:
        """Send the whole answer."""
        if status != 204:
            self.headers.append((b"content-length", str(len(body)).encode()))
        await self.start(status, content_type)
        await self.end(body)

    async def start(self, status: int, content_type: str) -> None:
        """Send status and headers of an answer whose body follows in parts."""
        assert not self.answering, "an answer starts once"
        self.answering = True
        self.record.status = status
        self.headers.append((b"openai-processing-ms", b"%d" % self.elapsed_ms))
        if content_type:
            self.headers.append((b"content-type", content_type.encode()))
        await self._deliver({"type": "http.response.start", "status": status, "headers": self.headers})

    async def part(self, body: bytes) -> None:
        """Send a part of the body at once. Waits while the client does not read."""
        self.touch()
        await self._deliver({"type": "http.response.body", "body": body, "more_body": True})

    async def end(self, body: bytes = b"") -> None:
        """Send the last part and close the body."""
        assert self.answering and not self.ended, "an answer ends once, after its start"
        self.ended = True
        await self._deliver({"type": "http.response.body", "body": body, "more_body": False})

    async def _deliver(self, message: Message) -> None:
        try:
            async with self._sending:
                await self._send(message)
        except OSError:  # how a server that speaks ASGI 2.4 tells of a closed connection
            raise ClientGone from None

    def touch(self) -> None:
        """Count the silence from now on."""
        self._last_sent = time.perf_counter()

    @property
    def silent_seconds(self) -> float:
        """Time since the last part was sent, or the request came in."""
        return time.perf_counter() - self._last_sent

    @property
    def elapsed_ms(self) -> float:
        """Time since the request's headers were read, in milliseconds."""
        return (time.perf_counter() - self.started) * 1000
