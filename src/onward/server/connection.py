"""One connection: uvicorn's HTTP protocol with time limits, size limits, HTTP/1.0 and this API's error envelope."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any

import uvicorn
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle

from onward.api.ids import request_id
from onward.api.openai.errors import error_envelope
from onward.errors import ApiError, SetupError
from onward.server.app import COMMON_HEADERS, App
from onward.server.exchange import BODY_ERROR, ASGIMessage, Receive, Scope, Send
from onward.server.request_parsing import RequestLimitsProtocol

log = logging.getLogger("onward.server")

Application = Callable[[Scope, Receive, Send], Awaitable[None]]
HEAD_SECONDS = 30.0
"""Longest time from the connection, or from the first byte of a request, until its head is complete."""
STALL_SECONDS = 30.0
"""A client that reads none of its pending response is disconnected after this time, or up to twice as long."""
IDLE_SECONDS = 65
"""Idle connections stay open longer than clients keep theirs (5 to 60 s), so that a client never writes into
a connection that is being closed."""
UVICORN_HOOKS = (
    "_start_asgi_task", "_unset_keepalive_if_required", "on_header", "on_headers_complete", "on_body",
    "on_message_begin", "on_message_complete", "on_response_complete", "pause_writing", "resume_writing",
)  # fmt: skip
"""Methods of uvicorn's protocol that are overridden or called here. The newest is `_start_asgi_task`, of 0.45."""


def http10_app(app: Application, cycle: RequestResponseCycle) -> Application:
    """Return an application that responds as `app`, in the form of HTTP/1.0.

    A body without Content-Length ends where the connection closes. The connection is kept after other responses if
    `cycle.keep_alive`, which the client must have requested.
    """

    async def adapted(scope: Scope, receive: Receive, send: Send) -> None:
        is_close_delimited = False

        async def send_http10(message: ASGIMessage) -> None:
            nonlocal is_close_delimited
            if message["type"] == "http.response.start":
                is_close_delimited = not _has_known_length(message)
                if is_close_delimited:
                    cycle.chunked_encoding = False
                    cycle.keep_alive = False
                message = _with_connection_header(message, keep_alive=cycle.keep_alive)
            elif is_close_delimited:
                cycle.expected_content_length = len(message.get("body", b""))
            await send(message)

        await app(scope, receive, send_http10)

    return adapted


def _has_known_length(message: ASGIMessage) -> bool:
    return message["status"] in (204, 304) or any(name.lower() == b"content-length" for name, _ in message["headers"])


def _with_connection_header(message: ASGIMessage, *, keep_alive: bool) -> ASGIMessage:
    """Return the start of a response with a Connection header, unless it has one."""
    headers = message["headers"]
    if any(name.lower() == b"connection" for name, _ in headers):
        return message
    return {**message, "headers": [*headers, (b"connection", b"keep-alive" if keep_alive else b"close")]}


class HeadWithBody:
    """The transport of one response: its head leaves with the first bytes of its body, which saves a system call, and
    the client a wake-up. What nothing follows leaves in the next turn of the event loop."""

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._transport = transport
        self._loop = loop
        self._held: bytes | None = None
        """The head until it has left; None before it is written."""

    def write(self, data: bytes) -> None:
        if self._held is None:
            self._held = data
            self._loop.call_soon(self.flush)
        else:
            held, self._held = self._held, b""
            # not writelines: asyncio's own of 3.12.0 to 3.12.8 never pauses who writes (CVE-2024-12254)
            self._transport.write(held + data if held else data)

    def flush(self) -> None:
        """Write what is held."""
        if self._held and not self._transport.is_closing():
            self._transport.write(self._held)
            self._held = b""

    def close(self) -> None:
        self.flush()
        self._transport.close()

    def is_closing(self) -> bool:
        return self._transport.is_closing()


class Protocol(RequestLimitsProtocol):
    """Closes a connection whose client sends a head too slowly, or does not read its response, for which uvicorn
    would wait forever; rejects malformed requests in the API's error envelope; serves HTTP/1.0 clients."""

    _current_cycle: RequestResponseCycle | None = None
    _head_with_body: HeadWithBody | None = None
    """The transport of that cycle."""
    _head_timer: asyncio.TimerHandle | None = None
    _stall_timer: asyncio.TimerHandle | None = None
    _is_input_ended = False
    """Whether a request was rejected, so that nothing after it can be parsed."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._start_head_timer()

    def data_received(self, data: bytes) -> None:
        if self._is_input_ended:
            return
        # Any byte begins the next request, even an empty line or the rest of a body that was rejected long ago.
        if not self._in_body or self.cycle.response_complete:
            self._start_head_timer()
        super().data_received(data)

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._start_head_timer()
        if not self.flow.write_paused:  # more will be written
            self._cancel_stall_timer()

    def on_headers_complete(self) -> None:
        self._cancel_head_timer()
        super().on_headers_complete()
        if self.cycle.scope["http_version"] != "1.1":
            self._follow_http10()

    def _follow_http10(self) -> None:
        """Keep the connection if the client requests it, unless the framing is doubtful (RFC 9112 §6.1, §9.3)."""
        is_chunked = any(name == b"transfer-encoding" for name, _ in self.headers)
        self.cycle.keep_alive = self.parser.should_keep_alive() and not is_chunked
        self.cycle.waiting_for_100_continue = False  # RFC 9110 §10.1.1

    def pause_writing(self) -> None:
        """Called by the transport when the client reads more slowly than the server writes."""
        super().pause_writing()
        self._start_stall_timer()

    def resume_writing(self) -> None:
        super().resume_writing()
        self._cancel_stall_timer()
        if self.cycle is not None and self.cycle.response_complete:
            self._start_stall_timer()

    def on_response_complete(self) -> None:
        if self._head_with_body is not None:
            self._head_with_body.flush()  # before what answers the next request
        super().on_response_complete()
        self._start_stall_timer()

    def _start_stall_timer(self) -> None:
        """Disconnect the client unless it reads some of the pending output in time.

        Call it when nothing more will be written before the client reads. Has no effect if the timer is running, or
        if no output is pending.
        """
        pending = self.transport.get_write_buffer_size()
        if pending and self._stall_timer is None:
            self._stall_timer = self.loop.call_later(STALL_SECONDS, self._check_stall, pending)

    def _check_stall(self, pending_before: int) -> None:
        self._stall_timer = None
        if self.transport.get_write_buffer_size() < pending_before:
            self._start_stall_timer()
        else:
            self.transport.abort()

    def _cancel_stall_timer(self) -> None:
        if self._stall_timer is not None:
            self._stall_timer.cancel()
            self._stall_timer = None

    def _start_head_timer(self) -> None:
        """Close the connection unless a head is complete in time. Has no effect if the timer is running."""
        if self._head_timer is None:
            self._head_timer = self.loop.call_later(HEAD_SECONDS, self._head_timed_out)

    def _cancel_head_timer(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _head_timed_out(self) -> None:
        self._head_timer = None
        if self._is_responding:
            self._start_head_timer()  # the slow head belongs to a pipelined request: this response continues
        elif not self.transport.is_closing():
            self.transport.close()

    @property
    def _is_responding(self) -> bool:
        return self._current_cycle is not None and not self._current_cycle.response_complete

    def reject(self, error: ApiError) -> None:
        """Send the error in the API's envelope (behaviour W6) if no response has started, and close.

        Responses to earlier requests of a pipeline are sent first. A body is rejected by its handler, so that the
        response has the request's id and is logged and counted like any other.
        """
        if self._is_input_ended or self.transport.is_closing():
            return
        self._is_input_ended = True
        log.warning("rejected a request from %s: %s", self.client[0] if self.client else "-", error.message)
        cycle = self.cycle
        if cycle is None or cycle.response_complete:
            if self._in_body:
                self.transport.close()
            else:
                self._send_error(error)
            return
        cycle.keep_alive = False
        if self._in_body and not cycle.response_started:
            self.scope["state"][BODY_ERROR] = error
            cycle.more_body = False
            cycle.message_event.set()

    def _send_error(self, error: ApiError) -> None:
        """Respond to a request that has no handler, and close."""
        body, content_type = error_envelope(error)
        headers = [
            *COMMON_HEADERS,
            (b"access-control-allow-origin", b"*"),
            (b"x-request-id", request_id().encode()),
            (b"content-type", content_type.encode()),
            (b"content-length", b"%d" % len(body)),
            (b"connection", b"close"),
        ]
        head = b"".join(b"%b: %b\r\n" % header for header in headers)
        self.transport.write(STATUS_LINE[error.status] + head + b"\r\n" + body)
        self.transport.close()
        self._start_stall_timer()

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        self._current_cycle = cycle
        self._head_with_body = HeadWithBody(self.transport, self.loop)
        cycle.transport = self._head_with_body  # type: ignore[assignment]  # all that it calls
        if cycle.scope["http_version"] != "1.1":
            app = http10_app(app, cycle)
        super()._start_asgi_task(cycle, app)

    def connection_lost(self, exc: Exception | None) -> None:
        """Notify the request being handled, too: uvicorn notifies only the last one of a pipeline."""
        self._cancel_head_timer()
        self._cancel_stall_timer()
        if self._current_cycle is not None and self._is_responding:
            self._current_cycle.disconnected = True
            self._current_cycle.message_event.set()
        super().connection_lost(exc)


def check_uvicorn() -> None:
    """Raise SetupError if the installed uvicorn lacks a method that Protocol overrides or calls."""
    missing = [name for name in UVICORN_HOOKS if name not in vars(HttpToolsProtocol)]
    if missing:
        raise SetupError(
            f"uvicorn {uvicorn.__version__} does not work with Onward: it has no HttpToolsProtocol.{missing[0]}. "
            "Install a version that does, 0.45 or newer: pip install --upgrade 'uvicorn>=0.45'."
        )


def server_config(app: App, socket_path: str | None = None) -> uvicorn.Config:
    """Return uvicorn's configuration of the application, for the server process and for tests. `socket_path`: that of a
    Unix socket to listen at."""
    return uvicorn.Config(
        app,
        uds=socket_path,
        http=Protocol,
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,  # it would believe every program of this machine; see `addresses`
        timeout_keep_alive=IDLE_SECONDS,
        timeout_graceful_shutdown=1,
    )
