"""Offers to change the protocol, which are passed over: no body is lost to one, and none is changed."""

from __future__ import annotations

import re

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

OFFER = re.compile(rb"^upgrade(?=:)", re.IGNORECASE | re.MULTILINE)
"""The name of a header line that offers to change the protocol."""
PASSED_OVER = b"Ignored"


class OfferPassing(HttpToolsProtocol):
    """Passes over an offer to change the protocol, as RFC 9110 §7.8 allows; Java's client makes one by default.

    The parser would take it at its word and drop the request's body, so it must not see it: the header gets another
    name. A body passes as it is; so does a head that a client sends behind a body without waiting.
    """

    _begun = b""
    """The beginning of a header line that may yet become an offer; the parser has not seen it."""
    _in_body = False
    _line_is_new = True
    """Whether what the parser has seen ends with a whole line."""

    def data_received(self, data: bytes) -> None:
        data, self._begun = self._begun + data, b""
        if self._in_body:
            self._feed(data)
        else:
            self._feed_head(data)

    def on_headers_complete(self) -> None:
        self._in_body = True
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        self._in_body = False
        super().on_message_complete()

    def _feed_head(self, data: bytes) -> None:
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
