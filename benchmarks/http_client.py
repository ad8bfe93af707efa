"""A minimal HTTP/1.1 client that times streams: it timestamps the bytes that arrive and parses them afterwards.

A load generator that parses while it measures competes for the cores that it measures.
"""

from __future__ import annotations

import asyncio
import json
import time
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from benchmarks.measure import BenchmarkError

LAST_CHUNK = b"\r\n0\r\n\r\n"
LOOPBACK = {"127.0.0.1", "localhost", "::1"}


class ConnectionFailed(Exception):
    """The server closed the connection before its response was complete, or did not accept one."""


class IdleConnectionClosed(ConnectionFailed):
    """The server closed an idle kept-alive connection just as it was reused: the request was not received, send it
    again."""


@dataclass(frozen=True, slots=True)
class Target:
    """A server's address. `path` is that of the completions endpoint."""

    host: str
    port: int
    path: str
    key: str | None = None

    @classmethod
    def parse(cls, base_url: str, *, key: str | None = None, allow_remote: bool = False) -> Target:
        """Parse `http://host:port[/v1]`. Raises BenchmarkError for https, and without `allow_remote` for others."""
        parts = urlsplit(base_url if "//" in base_url else f"http://{base_url}")
        if parts.scheme != "http":
            raise BenchmarkError(f"{base_url}: only http:// URLs are supported.")
        host = parts.hostname or ""
        if host not in LOOPBACK and not allow_remote:
            raise BenchmarkError(f"{host!r} is another machine. Pass --allow-remote to send load to it.")
        prefix = parts.path.rstrip("/").removesuffix("/v1")
        return cls(host, parts.port or 80, f"{prefix}/v1/completions", key)

    def request(self, body: dict[str, Any]) -> bytes:
        """Return the bytes of the HTTP request."""
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
    """The raw response to one request: what each socket read returned, and when (perf_counter seconds)."""

    sent: float
    reads: list[bytes] = field(default_factory=list)
    times: list[float] = field(default_factory=list)
    ended: float = 0.0


class Connection(asyncio.Protocol):
    """One kept-alive connection, one request at a time."""

    def __init__(self) -> None:
        self._transport: asyncio.Transport | None = None
        self._received = Received(0.0)
        self._done: asyncio.Future[None] | None = None
        self._tail = b""
        self._remaining: int | None = None
        self._num_responses = 0

    @property
    def open(self) -> bool:
        return self._transport is not None and not self._transport.is_closing()

    async def send(self, request: bytes, sent: float | None = None) -> Received:
        """Send a request and wait for its complete response. `sent`: when it was due, if that was earlier.

        Raises ConnectionFailed or IdleConnectionClosed.
        """
        if self._transport is None:
            raise (IdleConnectionClosed if self._num_responses else ConnectionFailed)("the connection is closed")
        self._received = Received(time.perf_counter() if sent is None else sent)
        self._tail, self._remaining = b"", None
        self._done = asyncio.get_running_loop().create_future()
        self._transport.write(request)
        await self._done
        return self._received

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport) or hasattr(transport, "write")
        self._transport = transport  # type: ignore[assignment]  # uvloop's is not an asyncio.Transport

    def connection_lost(self, error: Exception | None) -> None:
        self._transport = None
        if self._done is not None and not self._done.done():
            kind = IdleConnectionClosed if self._num_responses and not self._received.reads else ConnectionFailed
            self._done.set_exception(kind("the server closed the connection"))

    def data_received(self, data: bytes) -> None:
        received = self._received
        received.times.append(time.perf_counter())
        received.reads.append(data)
        if self._remaining is None:
            self._remaining = _remaining_body_bytes(received.reads)
        elif self._remaining >= 0:
            self._remaining -= len(data)
        self._tail = (self._tail + data[-len(LAST_CHUNK) :])[-len(LAST_CHUNK) :]
        if (self._remaining == 0 or self._tail == LAST_CHUNK) and self._done is not None and not self._done.done():
            received.ended = received.times[-1]
            self._num_responses += 1
            self._done.set_result(None)


CHUNKED = -1


async def send_once(base_url: str, body: dict[str, Any]) -> Received:
    """Send one completion request over a connection of its own. Raises ConnectionFailed."""
    target = Target.parse(base_url)
    connection = await connect(target)
    try:
        return await connection.send(target.request(body))
    finally:
        connection.close()


def _remaining_body_bytes(reads: list[bytes]) -> int | None:
    """Return how many bytes of the body are missing, CHUNKED if it has no length, None before the head is complete."""
    data = b"".join(reads)
    head, separator, body = data.partition(b"\r\n\r\n")
    if not separator:
        return None
    length = _headers(head).get("content-length")
    return CHUNKED if length is None else max(0, int(length) - len(body))


async def connect(target: Target) -> Connection:
    """Open a connection. Raises ConnectionFailed."""
    try:
        _, connection = await asyncio.get_running_loop().create_connection(Connection, target.host, target.port)
    except OSError as error:
        raise ConnectionFailed(str(error)) from error
    return connection


@dataclass(frozen=True, slots=True)
class Response:
    """A parsed response. `events` are the data of server-sent events, each with the arrival time of its last byte.
    The names of `headers` are lower-case."""

    status: int
    headers: dict[str, str]
    events: list[tuple[float, bytes]]
    body: bytes


def parse_response(received: Received) -> Response:
    """Parse head, chunks and events of a complete response. Raises ValueError if it is malformed."""
    data = b"".join(received.reads)
    head, _, body = data.partition(b"\r\n\r\n")
    status = int(head.split(b" ", 2)[1])
    headers = _headers(head)
    ends = _ends(received)
    if "content-length" in headers:
        return Response(status, headers, _events([(body, ends[-1][1])]), body)
    offset = len(head) + 4
    parts: list[tuple[bytes, float]] = []
    read_index = 0
    while True:
        size_end = data.index(b"\r\n", offset)
        size = int(data[offset:size_end].partition(b";")[0], 16)
        if not size:
            break
        begin, end = size_end + 2, size_end + 2 + size
        while ends[read_index][0] < end:
            read_index += 1
        parts.append((data[begin:end], ends[read_index][1]))
        offset = end + 2
    return Response(status, headers, _events(parts), b"".join(part for part, _ in parts))


def _headers(head: bytes) -> dict[str, str]:
    lines = head.decode("latin-1").split("\r\n")[1:]
    return {name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}


def _ends(received: Received) -> list[tuple[int, float]]:
    """Return (total bytes, time) after each socket read."""
    total, ends = 0, []
    for data, time_read in zip(received.reads, received.times, strict=True):
        total += len(data)
        ends.append((total, time_read))
    return ends


def _events(parts: list[tuple[bytes, float]]) -> list[tuple[float, bytes]]:
    events, rest = [], b""
    for part, arrived in parts:
        *complete, rest = (rest + part).replace(b"\r\n", b"\n").split(b"\n\n")
        for event in complete:
            data = [line[5:].strip() for line in event.split(b"\n") if line.startswith(b"data:")]
            if data:
                events.append((arrived, b"\n".join(data)))
    return events
