"""HTTP/1.1 to one server, as an upstream needs it: a request, its status, its body as it arrives.

Over httptools, the parser that uvicorn serves with. With httpx the first token came 1.5 ms later: it needs that much
processor time for a request on a new connection, which llama-server demands for each stream (`python -m
benchmarks.upstream` measures what an upstream adds). Redirects, proxies, cookies and compressed answers are not
supported.
"""

from __future__ import annotations

import asyncio
import ipaddress
import os
import socket
import ssl
from collections import deque
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from urllib.parse import urlsplit

import certifi
import httptools

from onward.upstreams.base import UpstreamError

CONNECT_SECONDS = 5.0
KEEP_ALIVE_SECONDS = 4.0
"""Idle connections are closed before the upstream does: llama-server closes its own after 5."""
MAX_HEAD_BYTES = 1 << 16


class HTTPClient:
    """Connections to the server at a URL without a path. Used on one event loop.

    `headers` are sent with each request. `silence_seconds`: how long the server may send nothing while it should; 0:
    any time.
    """

    def __init__(self, url: str, headers: dict[str, str], silence_seconds: float) -> None:
        parts = urlsplit(url)
        self._url = url
        self._host = parts.hostname or ""
        self._is_address = _is_address(self._host)
        self._last = ""
        """The address that was connected to last, or tried."""
        self._tls = _tls() if parts.scheme == "https" else None
        self._port = parts.port or (443 if self._tls else 80)
        self._headers = {"host": parts.netloc, "accept-encoding": "identity", **headers}
        self._silence_seconds = silence_seconds
        self._idle: list[_Connection] = []
        self._connections: set[_Connection] = set()

    async def close(self) -> None:
        """Close all connections. Those that requests use are lost to them."""
        for connection in list(self._connections):
            connection.abort()
        while self._connections:  # the event loop closes their sockets when it comes to it
            await asyncio.sleep(0)

    @asynccontextmanager
    async def request(
        self,
        method: str,
        path: str,
        content: bytes | None = None,
        *,
        keep_alive: bool = True,
        silence_seconds: float | None = None,
    ) -> AsyncGenerator[Response]:
        """Send a request, `content` as JSON, and wait for the head of its answer. Raises UpstreamError, also while the
        body is read.

        The connection is used again if the body was read to its end, unless the server or `keep_alive` says otherwise;
        else it is closed, which cancels the request. `silence_seconds` replaces those of the client.
        """
        silence = self._silence_seconds if silence_seconds is None else silence_seconds
        message = self._message(method, path, content, keep_alive)
        connection = await self._send(message, silence)
        try:
            yield Response(connection)
        finally:
            self._release(connection, keep_alive)

    async def _send(self, message: bytes, silence: float) -> _Connection:
        """Return a connection on which the head of the answer has arrived. A server may close an idle connection just
        as a request is sent: then it is sent again, on a new one."""
        while True:
            is_new = not self._idle
            connection = await self._connect() if is_new else self._idle.pop()
            try:
                await connection.send(message, silence)
                return connection
            except UpstreamError:
                if is_new or not connection.was_dropped:
                    raise
            except BaseException:
                connection.abort()
                raise

    async def _connect(self) -> _Connection:
        try:
            return await self._connect_to_any(await self._addresses())
        except TimeoutError:
            reason = f"no connection within {CONNECT_SECONDS:g} seconds"
        except (OSError, UnicodeError) as error:
            reason = _reason(error)
        raise UpstreamError(f"{self._url} could not be reached: {reason}.", is_lost=True, is_unsent=True)

    async def _addresses(self) -> list[str]:
        """Return the IP addresses of the server, the one that answered last before others."""
        if self._is_address:
            return [self._host]
        loop = asyncio.get_running_loop()
        async with asyncio.timeout(CONNECT_SECONDS):
            found = await loop.getaddrinfo(self._host, self._port, type=socket.SOCK_STREAM)
        return sorted(dict.fromkeys(str(entry[4][0]) for entry in found), key=lambda address: address != self._last)

    async def _connect_to_any(self, addresses: list[str]) -> _Connection:
        """Try one after the other (uvloop cannot try them side by side). Raises the OSError of the last one."""
        loop, problem = asyncio.get_running_loop(), OSError("it has no address")
        name = self._host if self._tls else None
        for self._last in addresses:
            try:
                async with asyncio.timeout(CONNECT_SECONDS / len(addresses)):
                    _, connection = await loop.create_connection(
                        self._new, self._last, self._port, ssl=self._tls, server_hostname=name
                    )
                return connection
            except OSError as error:  # a timeout is one
                problem = error
        raise problem

    def _new(self) -> _Connection:
        return _Connection(self._url, self._connections, self._idle)

    def _release(self, connection: _Connection, keep_alive: bool) -> None:
        if keep_alive and connection.can_go_on:
            connection.rest()
            self._idle.append(connection)
        else:
            connection.abort()

    def _message(self, method: str, path: str, content: bytes | None, keep_alive: bool) -> bytes:
        fields = dict(self._headers)
        if content is not None:
            fields |= {"content-type": "application/json", "content-length": str(len(content))}
        if not keep_alive:
            fields["connection"] = "close"
        head = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
        return f"{method} {path} HTTP/1.1\r\n{head}\r\n".encode() + (content or b"")


class Response:
    """An answer whose body has not been read yet."""

    def __init__(self, connection: _Connection) -> None:
        self._connection = connection
        self.status = connection.status
        self.content_type = connection.headers.get(b"content-type", b"").decode("latin-1")

    async def chunk(self) -> bytes:
        """Return what has arrived of the body since the last call, b"" at its end. Raises UpstreamError."""
        return await self._connection.chunk()

    async def read(self) -> bytes:
        """Return the whole body. Raises UpstreamError."""
        chunks = []
        while chunk := await self.chunk():
            chunks.append(chunk)
        return b"".join(chunks)


class _Connection(asyncio.Protocol):
    """One connection, one request at a time."""

    def __init__(self, url: str, connections: set[_Connection], idle: list[_Connection]) -> None:
        self._url = url
        self._connections, self._idle = connections, idle
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._parser = httptools.HttpResponseParser(self)
        self._timer: asyncio.TimerHandle | None = None
        """Of the silence while a request runs, of the rest afterwards."""
        self._active_at = 0.0
        """When something last arrived or left, on the event loop's clock."""
        self._is_busy = False
        self._begin()

    def _begin(self) -> None:
        self.status = 0
        self.headers: dict[bytes, bytes] = {}
        self._chunks: deque[bytes] = deque()
        self._num_received = 0
        self._has_head = self._is_complete = self._keeps_alive = False
        self._error: UpstreamError | None = None
        self._waiter: asyncio.Future[None] | None = None

    # The client.

    @property
    def can_go_on(self) -> bool:
        """Whether another request may follow: the answer was read to its end, and the server keeps the connection."""
        is_open = self._transport is not None and not self._transport.is_closing()
        return is_open and self._is_complete and not self._chunks and self._keeps_alive

    @property
    def was_dropped(self) -> bool:
        """Whether the server closed the connection without a byte of an answer."""
        return self._error is not None and self._transport is None and not self._num_received

    async def send(self, message: bytes, silence: float) -> None:
        """Send a request, and wait for the head of its answer. Raises UpstreamError."""
        self._stop_timer()
        self._begin()
        self._is_busy = True
        if self._transport is None:
            self._fail("closed the connection before it answered")
        else:
            self._transport.write(message)
            self._watch(silence)
        while not self._has_head:
            await self._wait()

    async def chunk(self) -> bytes:
        """Return what has arrived of the body, b"" at its end. Raises UpstreamError."""
        while not self._chunks and not self._is_complete:
            await self._wait()
        chunk = b"".join(self._chunks)
        self._chunks.clear()
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

    async def _wait(self) -> None:
        if self._error is not None:
            raise self._error
        self._waiter = self._loop.create_future()
        await self._waiter

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def _fail(self, what: str, *, is_lost: bool = True) -> None:
        if self._error is None:
            self._error = UpstreamError(f"{self._url} {what}.", is_lost=is_lost)
        self._wake()

    def _watch(self, silence: float) -> None:
        """Fail when nothing arrives, and nothing of the request leaves, for so many seconds; 0: never."""
        if silence and self._transport is not None:
            self._active_at = self._loop.time()
            unsent = self._transport.get_write_buffer_size()
            self._timer = self._loop.call_later(silence, self._check, silence, unsent)

    def _check(self, silence: float, unsent_before: int) -> None:
        if self._transport is None:
            return
        now, unsent = self._loop.time(), self._transport.get_write_buffer_size()
        if unsent < unsent_before:
            self._active_at = now
        remaining = self._active_at + silence - now
        if remaining > 0:
            self._timer = self._loop.call_later(remaining, self._check, silence, unsent)
        else:
            self._fail("sent nothing for too long")
            self.abort()

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    # The event loop.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport  # type: ignore[assignment]  # uvloop's is not an asyncio.Transport
        self._connections.add(self)

    def data_received(self, data: bytes) -> None:
        if not self._is_busy or self._is_complete:
            self.abort()  # nothing was asked for
            return
        self._num_received += len(data)
        self._active_at = self._loop.time()
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade):
            self._fail("does not answer as an HTTP server does", is_lost=False)
            self.abort()
        if not self._has_head and self._num_received > MAX_HEAD_BYTES:
            self._fail("sent headers that are too long", is_lost=False)
            self.abort()
        self._wake()

    def connection_lost(self, error: Exception | None) -> None:
        self._stop_timer()
        self._transport = None
        self._connections.discard(self)
        if self in self._idle:
            self._idle.remove(self)
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
        self.headers[name.lower()] = value

    def on_headers_complete(self) -> None:
        self.status = self._parser.get_status_code()
        self._keeps_alive = self._parser.should_keep_alive()
        self._has_head = self.status >= 200

    def on_body(self, body: bytes) -> None:
        self._chunks.append(body)

    def on_message_complete(self) -> None:
        if self._has_head:
            self._is_complete = True
        else:
            self.headers.clear()  # an interim answer (status 1xx); the answer follows


def _is_address(host: str) -> bool:
    with suppress(ValueError):
        return bool(ipaddress.ip_address(host))
    return False


def _tls() -> ssl.SSLContext:
    """Return a context that trusts what SSL_CERT_FILE or SSL_CERT_DIR says; otherwise the system's authorities, and
    those of certifi, since some systems have none."""
    context = ssl.create_default_context()
    if not os.environ.keys() & {"SSL_CERT_FILE", "SSL_CERT_DIR"}:
        context.load_verify_locations(certifi.where())
    return context


def _reason(error: OSError | UnicodeError) -> str:
    match error:
        case ssl.SSLCertVerificationError():
            return f"its certificate is not trusted ({error.verify_message})"
        case ssl.SSLError(reason="WRONG_VERSION_NUMBER"):
            return "it does not speak TLS (should its address begin with http://?)"
        case ssl.SSLError():
            return f"TLS failed ({error.reason or error})"
        case socket.gaierror() | UnicodeError():
            return "its name cannot be resolved"
        case OSError(errno=int(number)):
            return os.strerror(number)
    return str(error).rstrip(".")
