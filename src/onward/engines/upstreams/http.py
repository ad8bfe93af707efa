"""HTTP/1.1 to one server, as an upstream needs it: a request, its status, its body as it arrives.

Over httptools, the parser that uvicorn serves with. A short stream on a new connection, which llama-server demands for
each, takes aiohttp 2.4 times the processor time of this client and httpx2 5 times (`python -m
benchmarks.upstream_clients`), and neither bounds what arrives between two events, or ends a silence by events that make
progress only. Redirects, proxies, cookies and compressed answers are not supported.
"""

from __future__ import annotations

import asyncio
import ipaddress
import os
import socket
import ssl
import time
from collections.abc import AsyncGenerator
from contextlib import AbstractContextManager, asynccontextmanager, nullcontext, suppress
from urllib.parse import urlsplit

import msgspec

from onward.engine_load import Certificate
from onward.engines.upstreams.base import UpstreamError
from onward.engines.upstreams.wire import Wire
from onward.network import trusted_certificates
from onward.tracing import EngineTrace, UpstreamCall

CONNECT_SECONDS = 5.0
BODY_SECONDS, MIN_BYTES_PER_SECOND = 30.0, 1 << 14
"""How long a body may take, and how many bytes of it extend that by a second."""
MAX_ERROR_BYTES, ERROR_SECONDS = 1 << 16, 5.0
"""How much is read of a body that only explains an error, and for how long."""


class HTTPClient:
    """Connections to the server at a URL without a path, or at `unix:PATH`, its socket. Used on one event loop.

    `headers` are sent with each request. `silence_seconds`: how long the server may send nothing while it should; 0:
    any time.
    """

    def __init__(self, url: str, headers: dict[str, str], silence_seconds: float) -> None:
        parts = urlsplit(url)
        self._url = url
        self._host = parts.hostname or ""
        self._is_address = _is_address(self._host)
        self._socket_path = parts.path if parts.scheme == "unix" else None
        self._last = ""
        """The address that was connected to last, or tried."""
        self._tls = trusted_certificates() if parts.scheme == "https" else None
        self.certificate = Certificate(url) if self._tls else None
        """The server's certificate as far as it is known, None without TLS."""
        self._port = parts.port or (443 if self._tls else 80)
        self._head = _lines({"host": parts.netloc or "localhost", "accept-encoding": "identity", **headers})
        self._silence_seconds = silence_seconds
        self._address: dict[str, str | int] = {"server.address": self._socket_path or self._host}
        """The attributes of spans that name the server."""
        if self._socket_path is None:
            self._address["server.port"] = self._port
        self._idle: list[Wire] = []
        self._connections: set[Wire] = set()
        self.heard_at = 0.0
        """When the server last sent something, in `time.monotonic`. May be read on any thread."""

    async def close(self) -> None:
        """Close all connections. Those that requests use are lost to them."""
        for connection in list(self._connections):
            connection.abort()
        while self._connections:  # the event loop closes their sockets in its next turns
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
        trace: EngineTrace | None = None,
    ) -> AsyncGenerator[Response]:
        """Send a request, `content` as JSON, and wait for the head of its answer. Raises UpstreamError, also while the
        body is read.

        The connection is used again if the body was read to its end, unless the server or `keep_alive` says otherwise;
        otherwise it is closed, which cancels the request. `silence_seconds` replaces those of the client. `trace`: that
        of the completion which the request belongs to; the server receives its context.
        """
        silence = self._silence_seconds if silence_seconds is None else silence_seconds
        calling: AbstractContextManager[UpstreamCall | None] = nullcontext()
        if trace is not None:
            calling = trace.call(method, self._address, path)
        with calling as call:
            headers = {} if call is None else call.context.headers
            message = self._message(method, path, content, keep_alive, headers)
            connection = await self._send(message, silence)
            if call is not None:
                call.status = connection.status
            try:
                yield Response(self._url, connection)
            finally:
                self._release(connection, keep_alive)

    async def _send(self, message: bytes, silence: float) -> Wire:
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

    async def _connect(self) -> Wire:
        try:
            return await self._connect_to_any(await self._addresses())
        except TimeoutError:
            reason = f"no connection within {CONNECT_SECONDS:g} seconds"
        except (OSError, UnicodeError) as error:
            reason = _reason(error)
            if isinstance(error, ssl.SSLCertVerificationError) and self.certificate is not None:
                self.certificate = msgspec.structs.replace(self.certificate, problem=error.verify_message)
        raise UpstreamError(f"{self._url} could not be reached: {reason}.", is_lost=True, is_unsent=True)

    async def _addresses(self) -> list[str]:
        """Return the IP addresses of the server, the one that answered last before others; or its socket's path."""
        if self._socket_path is not None:
            return [self._socket_path]
        if self._is_address:
            return [self._host]
        loop = asyncio.get_running_loop()
        async with asyncio.timeout(CONNECT_SECONDS):
            found = await loop.getaddrinfo(self._host, self._port, type=socket.SOCK_STREAM)
        return sorted(dict.fromkeys(str(entry[4][0]) for entry in found), key=lambda address: address != self._last)

    async def _connect_to_any(self, addresses: list[str]) -> Wire:
        """Try one after the other (uvloop cannot try them side by side). Raises the OSError of the last one."""
        loop, problem = asyncio.get_running_loop(), OSError("it has no address")
        name = self._host if self._tls else None
        for self._last in addresses:
            try:
                async with asyncio.timeout(CONNECT_SECONDS / len(addresses)):
                    if self._socket_path is not None:
                        _, connection = await loop.create_unix_connection(self._new, self._socket_path)
                    else:
                        transport, connection = await loop.create_connection(
                            self._new, self._last, self._port, ssl=self._tls, server_hostname=name
                        )
                        self._note_certificate(transport)
                if connection.is_open:  # not before: uvloop forgets one whose task is cancelled meanwhile
                    self._connections.add(connection)
                return connection
            except OSError as error:  # a timeout is one
                problem = error
        raise problem

    def _note_certificate(self, transport: asyncio.Transport) -> None:
        found = transport.get_extra_info("peercert") if self._tls else None
        if found and "notAfter" in found:
            self.certificate = Certificate(self._url, ssl.cert_time_to_seconds(found["notAfter"]))

    def _new(self) -> Wire:
        return Wire(self._url, self._hear, self._forget)

    def _hear(self) -> None:
        self.heard_at = time.monotonic()

    def _forget(self, connection: Wire) -> None:
        self._connections.discard(connection)
        if connection in self._idle:
            self._idle.remove(connection)

    def _release(self, connection: Wire, keep_alive: bool) -> None:
        if keep_alive and connection.can_be_reused:
            connection.rest()
            self._idle.append(connection)
        else:
            connection.abort()

    def _message(
        self, method: str, path: str, content: bytes | None, keep_alive: bool, headers: dict[str, str]
    ) -> bytes:
        head = self._head + _lines(headers)
        if content is not None:
            head += f"content-type: application/json\r\ncontent-length: {len(content)}\r\n"
        if not keep_alive:
            head += "connection: close\r\n"
        return f"{method} {path} HTTP/1.1\r\n{head}\r\n".encode() + (content or b"")


class Response:
    """An answer whose body has not been read yet. It is read in one way only."""

    def __init__(self, url: str, connection: Wire) -> None:
        self._url = url
        self._connection = connection
        self.status = connection.status
        self.content_type = self.header("content-type")
        self.chunk = connection.chunk
        """Returns what has arrived of the body since the last call, b"" at its end. Raises UpstreamError."""
        self.progressed = connection.progressed
        """To be called when an event has arrived that was waited for."""

    def header(self, name: str) -> str:
        """Return the header of this lower-case name, "" where there is none."""
        return self._connection.headers.get(name.encode(), b"").decode("latin-1")

    async def read(self, max_bytes: int) -> bytes:
        """Return the whole body. Raises UpstreamError, also if it is larger or comes too slowly."""
        self._connection.expect(max_bytes, BODY_SECONDS, data_counts=True)
        body = bytearray()
        while chunk := await self._connection.chunk():
            body += chunk
            if len(body) > max_bytes:
                raise UpstreamError(f"{self._url} sent more than what it was asked for takes.")
            self._connection.allow(len(chunk) / MIN_BYTES_PER_SECOND)
        return bytes(body)

    async def read_error(self) -> bytes:
        """Return the beginning of a body that explains an error, as much as comes soon."""
        self._connection.expect(MAX_ERROR_BYTES, ERROR_SECONDS)
        body = bytearray()
        with suppress(UpstreamError):
            while len(body) < MAX_ERROR_BYTES and (chunk := await self._connection.chunk()):
                body += chunk
        return bytes(body[:MAX_ERROR_BYTES])

    def expect_events(self, max_bytes: int) -> None:
        """`chunk` will be read: at most so many bytes come, and no more than the silence passes, between two calls of
        `progressed`."""
        self._connection.expect(max_bytes)


def _lines(headers: dict[str, str]) -> str:
    return "".join([f"{name}: {value}\r\n" for name, value in headers.items()])


def _is_address(host: str) -> bool:
    with suppress(ValueError):
        return bool(ipaddress.ip_address(host))
    return False


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
