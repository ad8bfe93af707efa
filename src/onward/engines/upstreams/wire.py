"""One connection to an upstream: a request goes out, its answer comes in, bounded in size and in time.

What arrives is limited by what was asked for, whoever sends it: the head by MAX_HEAD_BYTES, a body or the bytes between
two events by what its reader expects. What is not read yet is limited by MAX_BUFFERED_BYTES: then reading pauses.
"""

from __future__ import annotations

import asyncio
import math
from collections import deque
from collections.abc import Callable

import httptools

from onward.engines.upstreams.base import UpstreamError

KEEP_ALIVE_SECONDS = 4.0
"""Idle connections are closed before the upstream does: llama-server closes its own after 5."""
MAX_HEAD_BYTES = 1 << 16
MAX_BUFFERED_BYTES = 1 << 20
SLACK_BYTES = 2 * MAX_BUFFERED_BYTES
"""What may arrive before it is looked at, and what the framing of chunks may add to twice the expected bytes."""


class Wire(asyncio.Protocol):
    """One connection, one request at a time. `on_data` is called whenever some of an answer has arrived, `on_lost`
    once, when it has been closed."""

    def __init__(self, url: str, on_data: Callable[[], object], on_lost: Callable[[Wire], object]) -> None:
        self._url = url
        self._on_data = on_data
        self._on_lost = on_lost
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._parser = httptools.HttpResponseParser(self)
        self._timer: asyncio.TimerHandle | None = None
        """Times the silence while a request runs, and how long the connection is idle afterwards."""
        self._is_busy = False
        self._begin()

    def _begin(self) -> None:
        self.status = 0
        self.headers: dict[bytes, bytes] = {}
        self._chunks: deque[bytes] = deque()
        self._num_buffered = self._num_received = 0
        self._room, self._expected = MAX_HEAD_BYTES, 0
        """Bytes that may still arrive until what is expected has, and how many are expected."""
        self._has_head = self._is_complete = self._keeps_alive = False
        self._data_counts = False
        """Whether whatever arrives ends the silence; else only `progressed` does."""
        self._silence, self._active_at, self._ends_at = 0.0, self._loop.time(), math.inf
        self._num_unsent = 0
        self._error: UpstreamError | None = None
        self._waiter: asyncio.Future[None] | None = None

    # The client.

    @property
    def can_be_reused(self) -> bool:
        """Whether another request may follow: the answer was read to its end, and the server keeps the connection."""
        return self.is_open and self._is_complete and not self._chunks and self._keeps_alive

    @property
    def is_open(self) -> bool:
        return self._transport is not None and not self._transport.is_closing()

    @property
    def was_dropped(self) -> bool:
        """Whether the server closed the connection without a byte of an answer."""
        return self._error is not None and self._transport is None and not self._num_received

    async def send(self, message: bytes, silence: float) -> None:
        """Send a request, and wait for the head of its answer: for `silence` seconds since the last byte of the request
        left, 0: any time. Raises UpstreamError."""
        self._stop_timer()
        self._begin()
        self._is_busy = True
        if self._transport is None:
            self._fail("closed the connection before it answered")
        else:
            self._transport.write(message)
            self._silence, self._num_unsent = silence, self._transport.get_write_buffer_size()
            self._set_timer()
        while not self._has_head:
            if self._error is not None:
                raise self._error
            self._waiter = self._loop.create_future()
            await self._waiter

    def expect(self, num_bytes: int, seconds: float = math.inf, *, data_counts: bool = False) -> None:
        """Limit what arrives from now on, to as many bytes and seconds. `data_counts`: whether any of it ends the
        silence; else only `progressed` does."""
        self._expected = num_bytes
        self._data_counts = data_counts
        self.progressed()
        self._ends_at = self._active_at + seconds
        self._set_timer()

    def allow(self, seconds: float) -> None:
        """Let the answer take longer."""
        self._ends_at += seconds

    def progressed(self) -> None:
        """What was expected has arrived: the silence begins again, and as many bytes may follow."""
        self._active_at = self._loop.time()
        self._room = 2 * self._expected + SLACK_BYTES

    async def chunk(self) -> bytes:
        """Return what has arrived of the body, b"" at its end. Raises UpstreamError."""
        while not self._chunks and not self._is_complete:
            if self._error is not None:
                raise self._error
            self._waiter = self._loop.create_future()
            await self._waiter
        chunk = b"".join(self._chunks)
        self._chunks.clear()
        if self._num_buffered > MAX_BUFFERED_BYTES and self.is_open:
            self._transport.resume_reading()  # type: ignore[union-attr]
        self._num_buffered = 0
        return chunk

    def rest(self) -> None:
        """No request runs: close soon, unless there is another."""
        self._stop_timer()
        self._is_busy = False
        self._timer = self._loop.call_later(KEEP_ALIVE_SECONDS, self.abort)

    def abort(self) -> None:
        """Close at once."""
        self._stop_timer()
        if self._transport is not None:
            self._transport.abort()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def _fail(self, what: str, *, is_lost: bool = True) -> None:
        if self._error is None:
            self._error = UpstreamError(f"{self._url} {what}.", is_lost=is_lost)
        self._wake()

    def _due(self) -> float:
        """Return when the answer is given up unless something happens, on the event loop's clock."""
        return min(self._active_at + self._silence if self._silence else math.inf, self._ends_at)

    def _set_timer(self) -> None:
        self._stop_timer()
        if self._due() < math.inf:
            self._timer = self._loop.call_at(self._due(), self._check)

    def _check(self) -> None:
        """Give the answer up if nothing has happened, and nothing of the request has left, for too long."""
        if self._transport is None:
            return
        now, unsent = self._loop.time(), self._transport.get_write_buffer_size()
        if unsent < self._num_unsent:
            self._active_at, self._num_unsent = now, unsent
        if now < self._due():
            self._set_timer()
            return
        if now >= self._ends_at:
            self._fail("takes too long to send its answer")
        else:
            self._fail(f"sent {'nothing' if self._data_counts or not self._has_head else 'no token'} for too long")
        self.abort()

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    # The event loop.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport  # type: ignore[assignment]  # uvloop's is not an asyncio.Transport

    def data_received(self, data: bytes) -> None:
        if not self._is_busy or self._is_complete:
            self.abort()  # nothing was asked for
            return
        self._on_data()
        self._num_received += len(data)
        self._room -= len(data)
        if self._data_counts:
            self._active_at = self._loop.time()
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade):
            self._fail("does not answer as an HTTP server does", is_lost=False)
            self.abort()
        if self._room < 0:
            what = "more than what it was asked for takes" if self._has_head else "headers that are too long"
            self._fail(f"sent {what}", is_lost=False)
            self.abort()
        self._wake()

    def connection_lost(self, error: Exception | None) -> None:
        self._stop_timer()
        self._transport = None
        self._on_lost(self)
        if self._has_head and not self._is_complete and error is None and self._ends_with_connection:
            self._is_complete = True
        if not self._is_complete:
            self._fail(
                "closed its answer half-way" if self._num_received else "closed the connection without an answer"
            )
        self._wake()

    @property
    def _ends_with_connection(self) -> bool:
        """Whether nothing else marks the end of the body."""
        return b"content-length" not in self.headers and b"transfer-encoding" not in self.headers

    # The parser.

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self._has_head:  # else it follows the body
            self.headers[name.lower()] = value

    def on_headers_complete(self) -> None:
        self.status = self._parser.get_status_code()
        self._keeps_alive = self._parser.should_keep_alive()
        self._has_head = self.status >= 200
        if self._has_head:
            self._room = SLACK_BYTES  # until its reader says what it expects

    def on_body(self, body: bytes) -> None:
        self._chunks.append(body)
        was_paused = self._num_buffered > MAX_BUFFERED_BYTES
        self._num_buffered += len(body)
        if not was_paused and self._num_buffered > MAX_BUFFERED_BYTES and self.is_open:
            self._transport.pause_reading()  # type: ignore[union-attr]

    def on_message_complete(self) -> None:
        if self._has_head:
            self._is_complete = True
        else:
            self.headers.clear()  # an interim answer (status 1xx); the answer follows
