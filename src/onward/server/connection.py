"""One connection: uvicorn's HTTP protocol, strict where our rules ask for more."""

from __future__ import annotations

import asyncio
import re
from typing import Any

import uvicorn
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle

from onward.errors import InvalidRequest
from onward.protocol.error_body import error_envelope
from onward.server.app import App

HEAD_SECONDS = 30.0
"""From the connection, or a request's first byte, until its head is complete."""
IDLE_SECONDS = 65
"""Idle connections stay open longer than clients keep theirs (5 to 60 s), so that a client never writes into
a connection that is just being closed."""
OFFER = re.compile(rb"^upgrade(?=:)", re.IGNORECASE | re.MULTILINE)
"""The name of a header line that offers to change the protocol."""
PASSED_OVER = b"Ignored"


class Protocol(HttpToolsProtocol):
    """Closes a connection whose client is too slow with a request's head, which uvicorn waits for without end."""

    _answering: RequestResponseCycle | None = None
    _begun = b""
    """The beginning of a header line that may yet become an offer; the parser has not seen it."""
    _in_body = False
    _line_is_new = True
    """Whether what the parser has seen ends with a whole line."""
    _overdue: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._expect_head()

    def data_received(self, data: bytes) -> None:
        """Pass over an offer to change the protocol, as RFC 9110 §7.8 allows; Java's client makes one by default.

        The parser would take it at its word and drop the request's body, so it must not see it: the header gets
        another name. A body passes as it is; so does a head that a client sends behind a body without waiting.
        """
        # Any byte ends the wait for the next request, even an empty line or the rest of a body refused long ago.
        if not self._in_body or self.cycle.response_complete:
            self._expect_head()
        data, self._begun = self._begun + data, b""
        if self._in_body:
            self._feed(data)
            return
        rest = self._feed_up_to_last_offer(data)
        end = len(rest) - self._begun_offer(rest)
        self._feed(rest[:end])
        if self._in_body:
            self._feed(rest[end:])
        else:
            self._begun = rest[end:]

    def _feed_up_to_last_offer(self, data: bytes) -> bytes:
        """Feed all up to the last offer that stands in a head, each under another name; what is left to feed."""
        fed = 0
        for offer in OFFER.finditer(data) if b"upgrade:" in data.lower() else ():
            if offer.start() or self._line_is_new:
                self._feed(data[fed : offer.start()])
                fed = offer.start()
                if self._in_body:
                    break
                self._feed(PASSED_OVER)
                fed = offer.end()
        return data[fed:]

    def _feed(self, data: bytes) -> None:
        """Let the parser read on, unless what it has read was refused already."""
        if not self.transport.is_closing():
            self._line_is_new = data.endswith(b"\n") if data else self._line_is_new
            super().data_received(data)

    def _begun_offer(self, data: bytes) -> int:
        """How many bytes at the end of `data` may be the beginning of an offer, when more come."""
        line = data.rfind(b"\n") + 1
        begun = data[line:].lower() if line or self._line_is_new else b""
        return len(begun) if b"upgrade".startswith(begun) else 0

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._expect_head()

    def on_headers_complete(self) -> None:
        self._in_body = True
        self._forget_head()
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        self._in_body = False
        super().on_message_complete()

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

    def send_400_response(self, msg: str) -> None:
        """Bytes that are no HTTP are told in the same envelope as every other error (spec/wire-rules 6)."""
        body, content_type = error_envelope(InvalidRequest(msg))
        head = f"content-type: {content_type}\r\ncontent-length: {len(body)}\r\nconnection: close\r\n\r\n"
        self.transport.write(STATUS_LINE[400] + head.encode() + body)
        self.transport.close()

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        self._answering = cycle
        super()._start_asgi_task(cycle, app)

    def connection_lost(self, exc: Exception | None) -> None:
        """Tell the request being answered, too: uvicorn tells only the last one of a pipeline."""
        self._forget_head()
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
