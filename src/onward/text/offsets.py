"""Records for a prompt's tokens: where each begins in the text."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from onward.text.utf8 import Utf8Decoder


def token_offsets(pieces: Iterable[bytes]) -> Iterator[int]:
    """For each token its offset as `assembler.TokenRecord` has it, from 0."""
    decoder = Utf8Decoder()
    decoded = 0
    for piece in pieces:
        yield decoded + decoder.before(piece)
        decoded += len(decoder.feed(piece))


def decode_pieces(pieces: Iterable[bytes]) -> tuple[str, bytes]:
    """The text that the pieces spell, and the bytes of a character they leave unfinished."""
    decoder = Utf8Decoder()
    text = decoder.feed(b"".join(pieces))
    return text, decoder.pending
