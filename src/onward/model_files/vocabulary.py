"""The bytes of token ids, without the tokenizer that they come from: all that an engine needs of it."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from hashlib import blake2b
from itertools import accumulate
from typing import TYPE_CHECKING, Protocol, runtime_checkable

import msgspec

if TYPE_CHECKING:
    from onward.engine.model import Vocabulary


class _Encoded(msgspec.Struct, frozen=True, array_like=True):
    """A vocabulary between two processes of one machine. `offsets`: of 8 bytes each, as the machine stores them."""

    end_tokens: list[int]
    texts: bytes
    offsets: bytes
    special: list[int]


class PackedVocabulary:
    """Implements engine.model.Vocabulary. Immutable, safe from every thread.

    A tokenizer of 150,000 tokens takes 80 MiB, this takes two.
    """

    def __init__(self, encoded: _Encoded) -> None:
        self._texts = encoded.texts
        self.offsets = array("Q", encoded.offsets)
        """The bytes of token i begin at the offset at index i, and end at the one at i + 1."""
        self._special = frozenset(encoded.special)
        self.size = len(self.offsets) - 1
        self.end_tokens = frozenset(encoded.end_tokens)

    @classmethod
    def create(cls, source: Vocabulary) -> PackedVocabulary:
        """Return the vocabulary of a tokenizer."""
        if isinstance(source, HasPacked):
            return source.packed
        special = [token for token in range(source.size) if source.is_special(token)]
        return cls.of_texts([source.token_bytes(token) for token in range(source.size)], special, source.end_tokens)

    @classmethod
    def of_texts(cls, texts: Sequence[bytes], special: Iterable[int], end_tokens: Iterable[int]) -> PackedVocabulary:
        """Return the vocabulary of tokens with these bytes, by id."""
        offsets = array("Q", accumulate(map(len, texts), initial=0))
        return cls(_Encoded(sorted(end_tokens), b"".join(texts), offsets.tobytes(), sorted(special)))

    @classmethod
    def decode(cls, payload: bytes) -> PackedVocabulary:
        """Return what `encode` encoded in a process of this machine. Raises msgspec.MsgspecError for anything else."""
        return cls(msgspec.msgpack.decode(payload, type=_Encoded))

    def encode(self) -> bytes:
        """Return this vocabulary for another process of this machine."""
        offsets, special = self.offsets.tobytes(), sorted(self._special)
        return msgspec.msgpack.encode(_Encoded(sorted(self.end_tokens), self._texts, offsets, special))

    def token_bytes(self, token: int) -> bytes:
        """Return the exact bytes of a token; b"" for an id beyond the vocabulary (padding of the logits' width)."""
        return self._texts[self.offsets[token] : self.offsets[token + 1]] if 0 <= token < self.size else b""

    def is_special(self, token: int) -> bool:
        return token in self._special


@runtime_checkable
class HasPacked(Protocol):
    """A tokenizer that keeps its vocabulary in this form."""

    packed: PackedVocabulary


MAX_PADDING_TOKENS = 1024
"""By how many tokens two vocabularies may differ at their ends: models pad theirs to different lengths."""


def difference(own: Vocabulary, other: Vocabulary) -> str:
    """Return how another vocabulary differs from a model's, in words, "" if their tokens have the same bytes."""
    for token in range(min(own.size, other.size)):
        here, there = own.token_bytes(token), other.token_bytes(token)
        if here != there:
            return f"token {token} is {there[:40]!r} instead of {here[:40]!r}"
    if abs(own.size - other.size) > MAX_PADDING_TOKENS:
        return f"it has {other.size} tokens instead of {own.size}"
    return ""


def vocabulary_digest(vocabulary: Vocabulary) -> str:
    """Return a digest of the bytes of all tokens, of what is special, and of what ends a text."""
    return blake2b(PackedVocabulary.create(vocabulary).encode(), digest_size=16).hexdigest()
