"""uvicorn's HTTP protocol as a parser: without upgrades, and within limits. Rejects requests that are malformed, lack a
Host, or whose head, chunk extensions or trailers are too large.
"""

from __future__ import annotations

import re

import httptools
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from onward.errors import ApiError, HeadTooLarge, InvalidRequest, RequestTooLarge

UPGRADE_NAME = re.compile(rb"^upgrade(?=:)", re.IGNORECASE | re.MULTILINE)
"""The name of a header line that asks to change the protocol."""
REPLACEMENT = b"Ignored"
"""The name under which the parser sees it; of the same length."""
MAX_HEAD_BYTES = 65_536
"""Largest head of a request: request line and headers."""
MAX_FRAMING_BYTES = 65_536
"""Largest sum of a body's chunk extensions and trailers."""
CHUNK_FRAMING_BYTES = 16
"""Bytes of framing that each chunk may have without counting as an extension: its size and two line ends."""
SLICE_BYTES = 16_384
"""Bytes that the parser gets at once. The limits are exact to this many bytes, however the bytes arrive."""


class IgnoreUpgradeProtocol(HttpToolsProtocol):
    """Ignores requests to change the protocol, as RFC 9110 §7.8 allows; Java's client sends one by default.

    The parser would obey the header and drop the request's body, so it must not see it: the header gets another
    name. Bodies pass unchanged; so does a head that a client pipelines after a body.
    """

    _pending = b""
    """The beginning of a header line that may yet become an Upgrade header; not fed to the parser yet."""
    _in_body = False
    _at_line_start = True
    """Whether the bytes fed to the parser end with a whole line."""

    def data_received(self, data: bytes) -> None:
        data, self._pending = self._pending + data, b""
        if self._in_body:
            self._feed(data)
        else:
            self._feed_head(data)

    def on_headers_complete(self) -> None:
        super().on_headers_complete()
        self._in_body = True

    def on_message_complete(self) -> None:
        self._in_body = False
        super().on_message_complete()

    def _feed_head(self, data: bytes) -> None:
        rest = self._feed_through_last_upgrade(data)
        end = len(rest) - self._num_pending_bytes(rest)
        self._feed(rest[:end])
        if self._in_body:
            self._feed(rest[end:])
        else:
            self._pending = rest[end:]

    def _feed_through_last_upgrade(self, data: bytes) -> bytes:
        """Feed everything through the last Upgrade name in a head, each replaced; return the rest."""
        fed = 0
        for match in UPGRADE_NAME.finditer(data) if b"upgrade:" in data.lower() else ():
            if match.start() or self._at_line_start:
                self._feed(data[fed : match.start()])
                fed = match.start()
                if self._in_body:
                    break
                self._feed(REPLACEMENT)
                fed = match.end()
        return data[fed:]

    def _feed(self, data: bytes) -> None:
        if data:
            self._at_line_start = data.endswith(b"\n")
            self._parse(data)

    def _parse(self, data: bytes) -> None:
        """Run the parser over bytes in which no Upgrade header is left."""
        super().data_received(data)

    def _num_pending_bytes(self, data: bytes) -> int:
        """Return how many bytes at the end of `data` may be the beginning of an Upgrade header."""
        line = data.rfind(b"\n") + 1
        begun = data[line:].lower() if line or self._at_line_start else b""
        return len(begun) if b"upgrade".startswith(begun) else 0


class RequestLimitsProtocol(IgnoreUpgradeProtocol):
    """Parses requests within limits. Subclasses implement `reject`."""

    _num_overhead_bytes = 0
    """Bytes received of the current head, or of the current body's framing."""
    _num_regular_bytes = 0
    """Bytes of the current slice that are a body, or its chunks' regular framing."""
    _is_boundary = False
    """Whether a head or a message ended in the current slice."""
    _rejection: ApiError | None = None
    """The error for which a parser callback has stopped the parser."""

    def reject(self, error: ApiError) -> None:
        """Reject the request that is being received, and everything after it."""
        raise NotImplementedError

    def _parse(self, data: bytes) -> None:
        self._unset_keepalive_if_required()
        if len(data) <= SLICE_BYTES:
            self._parse_slice(data)
            return
        view = memoryview(data)
        for start in range(0, len(data), SLICE_BYTES):
            self._parse_slice(view[start : start + SLICE_BYTES])

    def _parse_slice(self, data: bytes | memoryview) -> None:
        if self._rejection is not None:
            return
        self._num_regular_bytes = 0
        self._is_boundary = False
        try:
            self.parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            self._rejection = self._rejection or _malformed(error)
        if self._is_boundary:
            self._num_overhead_bytes = 0
        else:
            self._num_overhead_bytes += max(0, len(data) - self._num_regular_bytes)
        if self._rejection is None and self._num_overhead_bytes > self._max_overhead_bytes:
            self._rejection = _framing_too_large() if self._in_body else _head_too_large()
        if self._rejection is not None:
            self.reject(self._rejection)

    @property
    def _max_overhead_bytes(self) -> int:
        return MAX_FRAMING_BYTES if self._in_body else MAX_HEAD_BYTES

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self._in_body:  # trailers must not pass for headers (RFC 9110 §6.5.1)
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """Raises ValueError, which stops the parser, if the head is invalid."""
        self._is_boundary = True
        self._rejection = self._check_head()
        if self._rejection is not None:
            raise ValueError(self._rejection.message)
        super().on_headers_complete()

    def _check_head(self) -> ApiError | None:
        if len(self.url) + sum(len(name) + len(value) for name, value in self.headers) > MAX_HEAD_BYTES:
            return _head_too_large()
        num_hosts = [name for name, _ in self.headers].count(b"host")
        if num_hosts > 1 or (num_hosts == 0 and self.parser.get_http_version() == "1.1"):  # RFC 9112 §3.2
            return InvalidRequest(f"An HTTP/1.1 request must have exactly one Host header; this one has {num_hosts}.")
        return None

    def on_chunk_header(self) -> None:
        """Called by the parser after the size and the extensions of a chunk."""
        self._num_regular_bytes += CHUNK_FRAMING_BYTES

    def on_body(self, body: bytes) -> None:
        self._num_regular_bytes += len(body)
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._is_boundary = True
        super().on_message_complete()


def _head_too_large() -> ApiError:
    return HeadTooLarge(f"The request's URL and headers are over {MAX_HEAD_BYTES} bytes.")


def _framing_too_large() -> ApiError:
    return RequestTooLarge(f"The chunk extensions and trailers of the request are over {MAX_FRAMING_BYTES} bytes.")


def _malformed(error: Exception) -> ApiError:
    """Return the error for bytes that the parser, or uvicorn's parsing of the URL in a callback, rejected."""
    reason = "invalid URL" if isinstance(error, httptools.HttpParserCallbackError) else str(error)
    return InvalidRequest(f"Malformed HTTP request: {reason[:1].lower()}{reason[1:]}.")
