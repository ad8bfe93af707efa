"""What the bytes of tokens spell: incremental UTF-8 decoding, offsets, and the text of single tokens."""

from __future__ import annotations

import codecs
from collections.abc import Iterable, Iterator

_make_decoder = codecs.getincrementaldecoder("utf-8")


class Utf8Decoder:
    """Incremental UTF-8 decoder: the joined results equal the decoding of the joined bytes.

    Bytes that cannot be part of a character decode to U+FFFD, as with `bytes.decode(errors="replace")`. An incomplete
    character at the end is not text: it stays in `pending`.
    """

    def __init__(self, pending: bytes = b"") -> None:
        self._decoder = _make_decoder("replace")
        self.pending = b""
        """The bytes of an incomplete character."""
        self.feed(pending)

    def feed(self, data: bytes) -> str:
        """Return the characters that `data` completes."""
        if not self.pending and data.isascii():
            return data.decode("ascii")
        text = self._decoder.decode(data)
        self.pending = self._decoder.getstate()[0]
        return text

    def num_chars_before(self, data: bytes) -> int:
        """Return how many characters that `feed(data)` would return come before the first byte of `data`.

        These are the U+FFFD of pending bytes that `data` does not continue.
        """
        pending = self.pending
        return len((pending + data[:1]).decode("utf-8", "replace")) - 1 if pending and data else 0


def token_offsets(tokens: Iterable[bytes]) -> Iterator[int]:
    """Yield the offset of each token, given as bytes, as defined for `assembler.TokenRecord`; the first is 0."""
    decoder = Utf8Decoder()
    num_decoded = 0
    for token_bytes in tokens:
        yield num_decoded + decoder.num_chars_before(token_bytes)
        num_decoded += len(decoder.feed(token_bytes))


def decode_tokens(tokens: Iterable[bytes]) -> tuple[str, bytes]:
    """Return the text of tokens, given as bytes, and the bytes of an incomplete character at its end."""
    decoder = Utf8Decoder()
    text = decoder.feed(b"".join(tokens))
    return text, decoder.pending


def render_token(token_bytes: bytes) -> str:
    """Return a token's text as in `logprobs.tokens` (behaviour §2.7): `bytes:` and escapes if its bytes are not valid
    UTF-8 on their own.

    In the escaped form printable ASCII is kept, all other bytes and the backslash are written as `\\xNN`.
    """
    try:
        return token_bytes.decode("utf-8")
    except UnicodeDecodeError:
        return "bytes:" + "".join(
            chr(byte) if 0x20 <= byte <= 0x7E and byte != 0x5C else f"\\x{byte:02x}" for byte in token_bytes
        )
