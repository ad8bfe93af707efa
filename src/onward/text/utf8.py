"""Bytes to text, a token at a time: a character split over tokens comes out when it is complete."""

from __future__ import annotations

import codecs

_make_decoder = codecs.getincrementaldecoder("utf-8")


class Utf8Decoder:
    """Incremental UTF-8 decoding. Joined pieces equal the decoding of the joined bytes.

    Bytes that can never become a character decode to U+FFFD, as `bytes.decode(errors="replace")` does. An
    incomplete character at the very end is not text: it stays in `pending` and is never shown.
    """

    def __init__(self, pending: bytes = b"") -> None:
        self._decoder = _make_decoder("replace")
        self._decoder.decode(pending)

    def feed(self, data: bytes) -> str:
        """Give the characters that `data` completes."""
        return self._decoder.decode(data)

    def before(self, data: bytes) -> int:
        """How many characters of what `feed` would give come before the first byte of `data`: those that pending bytes
        become when it does not go on from them."""
        pending = self.pending
        return len((pending + data[:1]).decode("utf-8", "replace")) - 1 if pending and data else 0

    @property
    def pending(self) -> bytes:
        """The first bytes of a character whose rest has not come."""
        return self._decoder.getstate()[0]
