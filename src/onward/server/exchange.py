"""One HTTP request and its response, over ASGI's receive and send; its record, and the error that it may end with."""

from __future__ import annotations

import asyncio
import logging
import time
import urllib.parse
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping, MutableMapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from onward.api.errors import OPENAI_ERRORS, ErrorWords, api_error
from onward.api.reply import SinkClosed
from onward.errors import ApiError, BodyTimeout, Overloaded, RequestTooLarge, UnsupportedEncoding
from onward.server.addresses import network
from onward.server.keys import Key
from onward.service.grant import Grant
from onward.service.records import CLIENT_LEFT
from onward.tracing import RequestTrace

log = logging.getLogger("onward.server")

Scope = MutableMapping[str, Any]
ASGIMessage = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[ASGIMessage]]
Send = Callable[[ASGIMessage], Awaitable[None]]
BODY_IDLE_SECONDS = 60.0
"""Longest time without progress while a request body is received."""
BODY_TOTAL_SECONDS = 600.0
"""Longest time to receive a whole request body, however steadily it arrives."""
DISCARD_SECONDS = 5.0
"""Longest time spent on discarding the rest of a body that is too large."""
DISCARD_BYTES = 64_000_000
MAX_LENGTH_DIGITS = 18
BODY_ERROR = "onward.body_error"
"""Key in the scope's state of the ApiError that rejects a malformed body, if the HTTP protocol found one."""


@dataclass(slots=True)
class RequestRecord:
    """What is known about a request when it ends. Its handlers fill it; times are in milliseconds."""

    route: str = "-"
    model: str = "-"
    """The model that responds; until it is known, the requested name, which a client may have made up."""
    key: str = "-"
    """The name of the key that was sent, never the key; "-" for one without a name."""
    user: str = "-"
    stream: bool = False
    status: int = CLIENT_LEFT
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0
    first_token_ms: float | None = None
    cancelled: bool = False
    error: str = ""
    """Type of an error that was sent inside a stream, after its status 200."""
    stream_id: str = ""
    """Id of the completion whose stream is kept."""


class ClientDisconnected(SinkClosed):
    """The client closed the connection before its response was complete."""


class _TooLarge(Exception):
    """More of a body arrives than is accepted."""


class _Incoming:
    """A body that is being received: its limits, and how much of it has come."""

    __slots__ = ("deadline", "max_bytes", "num_bytes", "total_seconds")

    def __init__(self, max_bytes: int, total_seconds: float) -> None:
        self.max_bytes = max_bytes
        self.total_seconds = total_seconds
        self.deadline = asyncio.get_running_loop().time() + total_seconds
        self.num_bytes = 0


class HttpExchange:
    """A request and its response: first the request body is read, then the response is sent.

    Every response carries `headers`; handlers may append to them until the response starts. Handlers fill `record`,
    which the access log and the metrics read at the end. `client` is the address that the request came from, "-" if it
    is not known; the application replaces that of a trusted proxy. `key` is the key that was accepted, if one was sent.
    `words` has its errors and `path_value` the value of `{id}` in the path: those of the route, once it is found.
    Several tasks may send: chunks keep the order of the calls.
    """

    def __init__(self, scope: Scope, receive: Receive, send: Send, request_id: str) -> None:
        self.method: str = scope["method"]
        self.path: str = scope["path"]
        self.scheme: str = scope.get("scheme", "http")
        self.client: str = (scope.get("client") or ("-",))[0]
        self.id = request_id
        self.key: Key | None = None
        self.started = self._last_sent = time.perf_counter()
        self.record = RequestRecord()
        self.response_started = False
        self.response_complete = False
        self.with_schema = False
        self.path_value: str | None = None
        self.keeps_body = False
        self.kept_body = b""
        """The body of the request, for the log of requests."""
        self.trace: RequestTrace | None = None
        """Where requests are traced."""
        self.words: ErrorWords = OPENAI_ERRORS
        self.headers: list[tuple[bytes, bytes]] = []
        self._state: dict[str, Any] = scope.get("state", {})
        self._request_headers: list[tuple[bytes, bytes]] = scope["headers"]
        self._query: bytes = scope.get("query_string", b"")
        self._receive = receive
        self._send = send
        self._send_lock = asyncio.Lock()
        self._has_more = True
        """Whether more of the request body follows."""

    @property
    def sender(self) -> str:
        """Who sent the request, for fairness between clients: the key's id, without keys the address, of which IPv6
        clients have many."""
        return self.key.id if self.key is not None else network(self.client)

    @property
    def grant(self) -> Grant | None:
        """What the key may do, None for a key that is not of a database, or without one."""
        return None if self.key is None else self.key.grant

    def header(self, name: bytes) -> str | None:
        """Return the first request header of this lower-case name, or None."""
        for key, value in self._request_headers:
            if key == name:
                return value.decode("latin-1")
        return None

    def add_headers(self, headers: Mapping[str, str]) -> None:
        """Add headers to the response, which has not begun."""
        self.headers += [(name.encode(), value.encode()) for name, value in headers.items()]

    def headers_named(self, name: bytes) -> list[str]:
        """Return all request headers of this lower-case name."""
        return [value.decode("latin-1") for key, value in self._request_headers if key == name]

    def query(self, name: str) -> str | None:
        """Return the first query parameter of this name, or None."""
        return next((value for key, value in self.queries() if key == name), None)

    def queries(self) -> list[tuple[str, str]]:
        """Return all query parameters."""
        return urllib.parse.parse_qsl(self._query.decode("latin-1"))

    async def body(self, max_bytes: int) -> bytes:
        """Return the whole request body.

        Raises RequestTooLarge over `max_bytes`, UnsupportedEncoding for a compressed one, BodyTimeout when it takes too
        long, InvalidRequest for malformed chunks, ClientDisconnected.
        """
        chunks: list[bytes] = []
        incoming = _Incoming(max_bytes, BODY_TOTAL_SECONDS)
        try:
            self._check_head(max_bytes)
            while self._has_more:  # not `chunks`: starting a generator takes longer than most bodies
                chunks.append(await self._next_chunk(incoming))
            self._check_end()
        except _TooLarge:
            chunks.clear()
            raise await self._too_large(max_bytes) from None
        body = b"".join(chunks)
        if self.keeps_body:
            self.kept_body = body
        return body

    async def chunks(self, max_bytes: int, total_seconds: float) -> AsyncIterator[bytes]:
        """Yield the request body as it arrives, for at most `total_seconds`. Raises what `body` raises."""
        incoming = _Incoming(max_bytes, total_seconds)
        try:
            self._check_head(max_bytes)
            while self._has_more:
                if chunk := await self._next_chunk(incoming):
                    yield chunk
            self._check_end()
        except _TooLarge:
            raise await self._too_large(max_bytes) from None

    def _check_head(self, max_bytes: int) -> None:
        """Raise what the head says of a body: _TooLarge, or UnsupportedEncoding for a compressed one. Its size would
        have to be limited twice, and no known client of this API sends any."""
        encodings = ", ".join(self.headers_named(b"content-encoding")).strip()
        if encodings.lower() not in ("", "identity"):
            self.headers.append((b"accept-encoding", b"identity"))
            raise UnsupportedEncoding(
                f"The request body has the content encoding {encodings[:64]!r}: send it without compression."
            )
        declared = (self.header(b"content-length") or "").lstrip("0")  # Python converts no thousands of digits
        if declared.isdecimal() and (len(declared) > MAX_LENGTH_DIGITS or int(declared) > max_bytes):
            raise _TooLarge

    async def _next_chunk(self, incoming: _Incoming) -> bytes:
        """Return the next chunk of the body, it may be empty. Raises _TooLarge, BodyTimeout, ClientDisconnected."""
        remaining = incoming.deadline - asyncio.get_running_loop().time()
        try:
            async with asyncio.timeout(min(BODY_IDLE_SECONDS, remaining)):
                chunk = await self._receive_chunk()
        except TimeoutError:
            self.headers.append((b"connection", b"close"))
            if remaining > BODY_IDLE_SECONDS:
                words = f"No more of the request body arrived for {BODY_IDLE_SECONDS:.0f} seconds."
            else:
                words = f"The request body was not complete after {incoming.total_seconds:.0f} seconds."
            raise BodyTimeout(words) from None
        incoming.num_bytes += len(chunk)
        if incoming.num_bytes > incoming.max_bytes and BODY_ERROR not in self._state:
            raise _TooLarge
        return chunk

    def _check_end(self) -> None:
        """Raise the error of a malformed body."""
        if BODY_ERROR in self._state:
            self.headers.append((b"connection", b"close"))
            raise self._state[BODY_ERROR]

    async def _too_large(self, max_bytes: int) -> RequestTooLarge:
        """Return the error of a body that is too large, after some of its rest was dropped."""
        await self.discard_rest()
        return RequestTooLarge(f"The request body is larger than the {max_bytes} bytes that this server accepts.")

    async def _receive_chunk(self) -> bytes:
        """Return a part of the body, and note whether more follow. Raises ClientDisconnected."""
        message = await self._receive()
        if message["type"] == "http.disconnect":
            raise ClientDisconnected
        self._has_more = message.get("more_body", False)
        chunk: bytes = message.get("body", b"")
        return chunk

    async def discard_rest(self) -> None:
        """Receive and drop some of what follows of the body: a client that is disconnected while it sends never reads
        an error."""
        if not self._has_more:
            return
        self.headers.append((b"connection", b"close"))
        if self.header(b"expect") is not None:
            return
        discarded = 0
        with suppress(TimeoutError):
            async with asyncio.timeout(DISCARD_SECONDS):
                while self._has_more and discarded < DISCARD_BYTES:
                    discarded += len(await self._receive_chunk())

    async def wait_until_disconnected(self) -> None:
        """Return when the client has closed the connection. Call it only after the body was read."""
        while (await self._receive())["type"] != "http.disconnect":
            pass

    async def respond(self, status: int, body: bytes, content_type: str) -> None:
        """Send a whole response. Raises ClientDisconnected."""
        if status != 204:
            self.headers.append((b"content-length", str(len(body)).encode()))
        await self.start_response(status, content_type)
        await self.end_response(body)

    async def start_response(self, status: int, content_type: str) -> None:
        """Send status and headers; the body follows in chunks. Raises ClientDisconnected."""
        assert not self.response_started, "a response starts once"
        self.response_started = True
        self.record.status = status
        self.headers.append((b"openai-processing-ms", b"%d" % self.elapsed_ms))
        if content_type:
            self.headers.append((b"content-type", content_type.encode()))
        await self._deliver({"type": "http.response.start", "status": status, "headers": self.headers})

    def send_chunk(self, chunk: bytes) -> Coroutine[Any, Any, None]:
        """Send a chunk of the body at once. Waits while the client does not read. Raises ClientDisconnected."""
        self._last_sent = time.perf_counter()
        return self._deliver({"type": "http.response.body", "body": chunk, "more_body": True})

    async def end_response(self, chunk: bytes = b"") -> None:
        """Send the last chunk and end the body. Raises ClientDisconnected."""
        assert self.response_started and not self.response_complete, "a response ends once, after its start"
        self.response_complete = True
        await self._deliver({"type": "http.response.body", "body": chunk, "more_body": False})

    async def _deliver(self, message: ASGIMessage) -> None:
        try:
            await self._send_lock.acquire()  # `async with` takes three times as long
            try:
                await self._send(message)
            finally:
                self._send_lock.release()
        except OSError:  # servers that implement ASGI 2.4 raise it for a closed connection
            raise ClientDisconnected from None

    def reset_idle_timer(self) -> None:
        """Measure `idle_seconds` from now on."""
        self._last_sent = time.perf_counter()

    @property
    def idle_seconds(self) -> float:
        """Time since the last chunk was sent, or since the request arrived."""
        return time.perf_counter() - self._last_sent

    @property
    def elapsed_ms(self) -> float:
        """Time since the request's head was received, in milliseconds."""
        return (time.perf_counter() - self.started) * 1000


def convert_error(exception: Exception, request_id: str, words: ErrorWords = OPENAI_ERRORS) -> ApiError:
    """Return the error to send to the client, in the words of its API. Internal errors are logged with a traceback and
    the request's id."""
    error = api_error(exception, words)
    if error.status >= 500 and not isinstance(error, Overloaded):
        log.error("request %s failed: %s", request_id, exception, exc_info=exception)
    return error


async def send_error(exchange: HttpExchange, error: ApiError) -> None:
    """Send the error as a whole response, with its headers."""
    status, body, content_type = exchange.words.body(error)
    exchange.headers += [(name.lower().encode(), value.encode()) for name, value in error.headers.items()]
    await exchange.respond(status, body, content_type)
