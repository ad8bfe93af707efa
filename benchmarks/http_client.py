"""The cheapest HTTP/1.1 client that can time a stream: it stamps what arrives, and reads it when all is over.

A load generator that parses while it measures takes the cores that it measures.
"""

from __future__ import annotations

import asyncio
import json
import time
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

LAST_CHUNK = b"\r\n0\r\n\r\n"
LOOPBACK = {"127.0.0.1", "localhost", "::1"}


class NotThere(Exception):
    """The server closed the connection before its answer was complete, or was never there."""


class ClosedIdle(NotThere):
    """The server closed a kept connection just when it was used again: the request was not seen, ask once more."""


@dataclass(frozen=True, slots=True)
class Target:
    """Where requests go. `path` is that of the completions endpoint."""

    host: str
    port: int
    path: str
    key: str | None = None

    @classmethod
    def parse(cls, base_url: str, *, key: str | None = None, allow_remote: bool = False) -> Target:
        """From `http://host:port[/v1]`. ValueError: https, or another machine without `allow_remote`."""
        parts = urlsplit(base_url if "//" in base_url else f"http://{base_url}")
        if parts.scheme != "http":
            raise ValueError(f"{base_url}: only http is spoken here.")
        host = parts.hostname or ""
        if host not in LOOPBACK and not allow_remote:
            raise ValueError(f"{host!r} is another machine: give --allow-remote if load there is wanted.")
        prefix = parts.path.rstrip("/").removesuffix("/v1")
        return cls(host, parts.port or 80, f"{prefix}/v1/completions", key)

    def request(self, body: dict[str, Any]) -> bytes:
        """The whole HTTP request."""
        content = json.dumps(body, separators=(",", ":")).encode()
        lines = [
            f"POST {self.path} HTTP/1.1",
            f"Host: {self.host}:{self.port}",
            "Content-Type: application/json",
            f"Content-Length: {len(content)}",
        ]
        if self.key:
            lines.append(f"Authorization: Bearer {self.key}")
        return ("\r\n".join(lines) + "\r\n\r\n").encode() + content


@dataclass(slots=True)
class Received:
    """What arrived for one request: pieces as read from the socket, and when (perf_counter seconds)."""

    sent: float
    pieces: list[bytes] = field(default_factory=list)
    times: list[float] = field(default_factory=list)
    ended: float = 0.0


class Connection(asyncio.Protocol):
    """One kept-alive connection, one request at a time."""

    def __init__(self) -> None:
        self._transport: asyncio.Transport | None = None
        self._received = Received(0.0)
        self._done: asyncio.Future[None] | None = None
        self._tail = b""
        self._left: int | None = None
        self._answers = 0

    @property
    def open(self) -> bool:
        return self._transport is not None and not self._transport.is_closing()

    async def ask(self, request: bytes, sent: float | None = None) -> Received:
        """Send a request and wait for all of its answer. `sent`: when it was due, if that was earlier.

        Raises NotThere, ClosedIdle.
        """
        if self._transport is None:
            raise (ClosedIdle if self._answers else NotThere)("the connection is closed")
        self._received = Received(time.perf_counter() if sent is None else sent)
        self._tail, self._left = b"", None
        self._done = asyncio.get_running_loop().create_future()
        self._transport.write(request)
        await self._done
        return self._received

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport) or hasattr(transport, "write")
        self._transport = transport  # type: ignore[assignment]  # uvloop's is no asyncio.Transport

    def connection_lost(self, error: Exception | None) -> None:
        self._transport = None
        if self._done is not None and not self._done.done():
            kind = ClosedIdle if self._answers and not self._received.pieces else NotThere
            self._done.set_exception(kind("the server closed the connection"))

    def data_received(self, data: bytes) -> None:
        received = self._received
        received.times.append(time.perf_counter())
        received.pieces.append(data)
        if self._left is None:
            self._left = _content_left(received.pieces)
        elif self._left >= 0:
            self._left -= len(data)
        self._tail = (self._tail + data[-len(LAST_CHUNK) :])[-len(LAST_CHUNK) :]
        if (self._left == 0 or self._tail == LAST_CHUNK) and self._done is not None and not self._done.done():
            received.ended = received.times[-1]
            self._answers += 1
            self._done.set_result(None)


CHUNKED = -1


def _content_left(pieces: list[bytes]) -> int | None:
    """Bytes of body still to come, CHUNKED when the body says its own end, None before the head is complete."""
    data = b"".join(pieces)
    head, separator, body = data.partition(b"\r\n\r\n")
    if not separator:
        return None
    length = _headers(head).get("content-length")
    return CHUNKED if length is None else max(0, int(length) - len(body))


async def connect(target: Target) -> Connection:
    """Raises NotThere."""
    try:
        _, connection = await asyncio.get_running_loop().create_connection(Connection, target.host, target.port)
    except OSError as error:
        raise NotThere(str(error)) from error
    return connection


@dataclass(frozen=True, slots=True)
class Answered:
    """A parsed answer. `events` are the data of server-sent events, each with the time its last byte came."""

    status: int
    events: list[tuple[float, bytes]]
    body: bytes


def parse(received: Received) -> Answered:
    """Undo head, chunks and events of what was received."""
    data = b"".join(received.pieces)
    head, _, body = data.partition(b"\r\n\r\n")
    status = int(head.split(b" ", 2)[1])
    ends = _ends(received)
    if "content-length" in _headers(head):
        return Answered(status, _events([(body, ends[-1][1])]), body)
    offset = len(head) + 4
    parts: list[tuple[bytes, float]] = []
    at = 0
    while True:
        size_end = data.index(b"\r\n", offset)
        size = int(data[offset:size_end].partition(b";")[0], 16)
        if not size:
            break
        begin, end = size_end + 2, size_end + 2 + size
        while ends[at][0] < end:
            at += 1
        parts.append((data[begin:end], ends[at][1]))
        offset = end + 2
    return Answered(status, _events(parts), b"".join(part for part, _ in parts))


def _headers(head: bytes) -> dict[str, str]:
    lines = head.decode("latin-1").split("\r\n")[1:]
    return {name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}


def _ends(received: Received) -> list[tuple[int, float]]:
    """(bytes that had come, when) after each piece."""
    total, ends = 0, []
    for piece, moment in zip(received.pieces, received.times, strict=True):
        total += len(piece)
        ends.append((total, moment))
    return ends


def _events(parts: list[tuple[bytes, float]]) -> list[tuple[float, bytes]]:
    events, rest = [], b""
    for part, moment in parts:
        *whole, rest = (rest + part).replace(b"\r\n", b"\n").split(b"\n\n")
        for event in whole:
            data = [line[5:].strip() for line in event.split(b"\n") if line.startswith(b"data:")]
            if data:
                events.append((moment, b"\n".join(data)))
    return events
