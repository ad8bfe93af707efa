"""Ignore Upgrade headers, so that no request loses its body to one."""

from __future__ import annotations

import re

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

UPGRADE_NAME = re.compile(rb"^upgrade(?=:)", re.IGNORECASE | re.MULTILINE)
"""The name of a header line that asks to change the protocol."""
REPLACEMENT = b"Ignored"
"""The name under which the parser sees it; of the same length."""


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
