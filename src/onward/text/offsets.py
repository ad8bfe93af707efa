"""Text and offsets of a prompt's tokens."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from onward.text.utf8 import Utf8Decoder


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
