"""One connection: uvicorn's HTTP protocol, strict where our rules ask for more."""

from __future__ import annotations

import asyncio
from typing import Any

import uvicorn
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, RequestResponseCycle

from onward.errors import ApiError, HeadTooLarge, InvalidRequest
from onward.protocol.error_body import error_envelope
from onward.protocol.ids import request_id
from onward.server.app import COMMON_HEADERS, App
from onward.server.offers import OfferPassing

HEAD_SECONDS = 30.0
"""From the connection, or a request's first byte, until its head is complete."""
HEAD_BYTES = 65_536
"""A head may be so long, and what else may come that is no body: sizes of chunks, and lines behind the last one."""
STALL_SECONDS = 30.0
"""A client that reads nothing of what waits for it is cut off after this time, or twice as long."""
IDLE_SECONDS = 65
"""Idle connections stay open longer than clients keep theirs (5 to 60 s), so that a client never writes into
a connection that is just being closed."""


class Protocol(OfferPassing):
    """Closes a connection whose client is too slow with a request's head, or sends one without end, or does not read
    its answer: uvicorn waits for each for ever."""

    _answering: RequestResponseCycle | None = None
    _overdue: asyncio.TimerHandle | None = None
    _stalled: asyncio.TimerHandle | None = None
    _unread = 0
    """Bytes received since a head was complete, or a piece of a body came."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._expect_head()

    def data_received(self, data: bytes) -> None:
        # Any byte ends the wait for the next request, even an empty line or the rest of a body refused long ago.
        if not self._in_body or self.cycle.response_complete:
            self._expect_head()
        self._unread += len(data)
        super().data_received(data)
        if self._unread > HEAD_BYTES:
            self._refuse_head()

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._expect_head()
        if not self.flow.write_paused:  # more will be written
            self._forget_stall()

    def on_headers_complete(self) -> None:
        """Raises ValueError, which the parser takes for an error of its own, where the head is too long."""
        self._unread = 0
        self._forget_head()
        if len(self.url) + sum(len(name) + len(value) for name, value in self.headers) > HEAD_BYTES:
            self._refuse_head()
            raise ValueError("the head is too long")
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self._unread = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._unread = 0
        super().on_message_complete()

    def pause_writing(self) -> None:
        """The client reads more slowly than we write."""
        super().pause_writing()
        self._expect_reading()

    def resume_writing(self) -> None:
        super().resume_writing()
        self._forget_stall()
        if self.cycle is not None and self.cycle.response_complete:
            self._expect_reading()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._expect_reading()

    def _expect_reading(self) -> None:
        """Cut the connection off unless something of what waits is read in time. To be called when nothing more will be
        written before it is. Does nothing while that is expected already, or where nothing waits."""
        waiting = self.transport.get_write_buffer_size()
        if waiting and self._stalled is None:
            self._stalled = self.loop.call_later(STALL_SECONDS, self._check_reading, waiting)

    def _check_reading(self, before: int) -> None:
        self._stalled = None
        if self.transport.get_write_buffer_size() < before:
            self._expect_reading()
        else:
            self.transport.abort()

    def _forget_stall(self) -> None:
        if self._stalled is not None:
            self._stalled.cancel()
            self._stalled = None

    def _expect_head(self) -> None:
        """Close the connection unless a head is complete in time. Does nothing while one is expected already."""
        if self._overdue is None:
            self._overdue = self.loop.call_later(HEAD_SECONDS, self._head_is_overdue)

    def _forget_head(self) -> None:
        if self._overdue is not None:
            self._overdue.cancel()
            self._overdue = None

    def _head_is_overdue(self) -> None:
        self._overdue = None
        if self._answering is not None and not self._answering.response_complete:
            self._expect_head()  # the slow head is that of a pipeline's next request: this one's answer goes on
        elif not self.transport.is_closing():
            self.transport.close()

    def _refuse_head(self) -> None:
        self._refuse(HeadTooLarge(f"The request's URL and headers are over {HEAD_BYTES} bytes."))

    def send_400_response(self, msg: str) -> None:
        self._refuse(InvalidRequest(msg))

    def _refuse(self, error: ApiError) -> None:
        """What never becomes a request is told in the same envelope as every other error (spec/wire-rules 6), but not
        in the middle of another answer."""
        if self.transport.is_closing():
            return
        if self._answering is not None and not self._answering.response_complete:
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
        self._expect_reading()

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        self._answering = cycle
        super()._start_asgi_task(cycle, app)

    def connection_lost(self, exc: Exception | None) -> None:
        """Tell the request being answered, too: uvicorn tells only the last one of a pipeline."""
        self._forget_head()
        self._forget_stall()
        if self._answering is not None and not self._answering.response_complete:
            self._answering.disconnected = True
            self._answering.message_event.set()
        super().connection_lost(exc)


def server_config(app: App) -> uvicorn.Config:
    """How uvicorn serves the application, in the process and in tests."""
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
