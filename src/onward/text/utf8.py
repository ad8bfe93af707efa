"""Incremental UTF-8 decoding: a character that is split over tokens is returned when it is complete."""

from __future__ import annotations

import codecs

_make_decoder = codecs.getincrementaldecoder("utf-8")


class Utf8Decoder:
    """Incremental UTF-8 decoder: the joined results equal the decoding of the joined bytes.

    Bytes that cannot be part of a character decode to U+FFFD, as with `bytes.decode(errors="replace")`. An incomplete
    character at the end is not text: it stays in `pending`.
    """

    def __init__(self, pending: bytes = b"") -> None:
        self._decoder = _make_decoder("replace")
        self._decoder.decode(pending)

    def feed(self, data: bytes) -> str:
        """Return the characters that `data` completes."""
        return self._decoder.decode(data)

    def num_chars_before(self, data: bytes) -> int:
        """Return how many characters that `feed(data)` would return come before the first byte of `data`.

        These are the U+FFFD of pending bytes that `data` does not continue.
        """
        pending = self.pending
        return len((pending + data[:1]).decode("utf-8", "replace")) - 1 if pending and data else 0

    @property
    def pending(self) -> bytes:
        """The bytes of an incomplete character."""
        return self._decoder.getstate()[0]
