"""One connection: uvicorn's HTTP protocol with time limits, size limits and this API's error envelope."""

from __future__ import annotations

import asyncio
from typing import Any

import uvicorn
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, RequestResponseCycle

from onward.errors import ApiError, HeadTooLarge, InvalidRequest
from onward.protocol.error_body import error_envelope
from onward.protocol.ids import request_id
from onward.server.app import COMMON_HEADERS, App
from onward.server.ignore_upgrade import IgnoreUpgradeProtocol

HEAD_SECONDS = 30.0
"""Longest time from the connection, or from the first byte of a request, until its head is complete."""
MAX_HEAD_BYTES = 65_536
"""Longest head. Also the most bytes between two parts of a body: chunk sizes, chunk extensions and trailers."""
STALL_SECONDS = 30.0
"""A client that reads none of its pending response is disconnected after this time, or up to twice as long."""
IDLE_SECONDS = 65
"""Idle connections stay open longer than clients keep theirs (5 to 60 s), so that a client never writes into
a connection that is being closed."""


class Protocol(IgnoreUpgradeProtocol):
    """Closes a connection whose client sends a request's head too slowly or without end, or does not read its
    response; uvicorn would wait for ever."""

    _current_cycle: RequestResponseCycle | None = None
    _head_timer: asyncio.TimerHandle | None = None
    _stall_timer: asyncio.TimerHandle | None = None
    _num_bytes_since_progress = 0
    """Bytes received since a head was complete, or since the last part of a body."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._start_head_timer()

    def data_received(self, data: bytes) -> None:
        # Any byte begins the next request, even an empty line or the rest of a body that was rejected long ago.
        if not self._in_body or self.cycle.response_complete:
            self._start_head_timer()
        self._num_bytes_since_progress += len(data)
        super().data_received(data)
        if self._num_bytes_since_progress > MAX_HEAD_BYTES:
            self._reject_head()

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._start_head_timer()
        if not self.flow.write_paused:  # more will be written
            self._cancel_stall_timer()

    def on_headers_complete(self) -> None:
        """Raises ValueError, which the parser takes for an error of its own, where the head is too long."""
        self._num_bytes_since_progress = 0
        self._cancel_head_timer()
        if len(self.url) + sum(len(name) + len(value) for name, value in self.headers) > MAX_HEAD_BYTES:
            self._reject_head()
            raise ValueError("the head is too long")
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self._num_bytes_since_progress = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._num_bytes_since_progress = 0
        super().on_message_complete()

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
            self._start_head_timer()  # the slow head belongs to a pipelined request: this response goes on
        elif not self.transport.is_closing():
            self.transport.close()

    @property
    def _is_responding(self) -> bool:
        return self._current_cycle is not None and not self._current_cycle.response_complete

    def _reject_head(self) -> None:
        self._reject(HeadTooLarge(f"The request's URL and headers are over {MAX_HEAD_BYTES} bytes."))

    def send_400_response(self, msg: str) -> None:
        self._reject(InvalidRequest(msg))

    def _reject(self, error: ApiError) -> None:
        """Send the error of a malformed request in the API's envelope (spec/wire-rules 6), and close.

        While a response is being sent, only close.
        """
        if self.transport.is_closing():
            return
        if self._is_responding:
            self.transport.close()
            return
        body, content_type = error_envelope(error)
        headers = [
            *COMMON_HEADERS,
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
        super()._start_asgi_task(cycle, app)

    def connection_lost(self, exc: Exception | None) -> None:
        """Notify the request being handled, too: uvicorn notifies only the last one of a pipeline."""
        self._cancel_head_timer()
        self._cancel_stall_timer()
        if self._current_cycle is not None and self._is_responding:
            self._current_cycle.disconnected = True
            self._current_cycle.message_event.set()
        super().connection_lost(exc)


def server_config(app: App) -> uvicorn.Config:
    """Return uvicorn's configuration of the application, for the server process and for tests."""
    return uvicorn.Config(
        app,
        http=Protocol,
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_keep_alive=IDLE_SECONDS,
        timeout_graceful_shutdown=1,
    )
