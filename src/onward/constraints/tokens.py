"""A vocabulary and its tokenizer in the shape that the library reads."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, lru_cache
from typing import Any, Protocol

from onward.errors import TextNotEncodable

MAX_TOKENIZED_CHARACTERS = 256
"""Of a text that a grammar forces, only this many characters are tokenized ahead, so that a long forced text does not
take long at every token."""
MAX_CACHED_TEXTS = 4096
SLICES = tuple(f"[{letters}]{{1,{longest}}}" for letters in ("A-Za-z", "A-Za-z ") for longest in (10, 30))
"""In addition to the library's own slices, which are for strings of JSON: tokens that a mask allows together, without
examining each, where the grammar allows any text of these letters. They make masks of counted repetitions five times as
fast."""

ANY_TOKEN = 256
"""In the vocabulary of bytes: a token that stands for all that a grammar names by id."""

Encode = Callable[[str], list[int]]
"""Returns the tokens of a text, without a start token; none where it has none. May be called on any thread."""

_MARKER = "\n"
"""In front of a text, so that it is tokenized as in the middle of one: without the space that vocabularies of
SentencePiece add to the first word."""


class LibraryTokens:
    """The tokens of a vocabulary, followed by a virtual one that ends a text. `library` is the
    llguidance.LLTokenizer that reads them."""

    is_tokenizer_wrapper = True
    bos_token_id = None

    def __init__(
        self,
        vocab_size: int,
        token_bytes: Callable[[int], bytes],
        is_control: Callable[[int], bool],
        encode: Encode,
    ) -> None:
        """`is_control`: whether a token never spells text, as special and end tokens. Takes a second for large
        vocabularies."""
        from llguidance import LLTokenizer

        self.vocab_size = vocab_size
        self.tokens = [token_bytes(token) for token in range(vocab_size)] + [b"<end>"]
        self.special_token_ids = [token for token in range(vocab_size) if is_control(token)] + [vocab_size]
        self.eos_token_id = vocab_size
        self._special = frozenset(self.special_token_ids)
        self._encode = encode
        self._beginning = lru_cache(maxsize=MAX_CACHED_TEXTS)(self._tokenize)
        source: Any = self  # has what a TokenizerWrapper must have
        slices = [*LLTokenizer.general_slices(), *SLICES]
        self.library: Any = LLTokenizer(source, vocab_size + 1, [vocab_size], slices)

    def __call__(self, text: str) -> list[int]:
        """Return the tokens of a forced text, which spell it exactly. A function of the text alone."""
        tokens = self._beginning(text[:MAX_TOKENIZED_CHARACTERS])
        rest = text[MAX_TOKENIZED_CHARACTERS:]
        return tokens + self._greedy(rest) if rest else tokens

    def _tokenize(self, text: str) -> list[int]:
        """Return what the tokenizer makes of a text inside of another, or else the longest tokens that spell it."""
        wanted = text.encode()
        for skipped in ("", _MARKER):
            tokens = self._after(self._encode(skipped + text), skipped.encode())
            if b"".join(self.tokens[token] for token in tokens) == wanted and self._special.isdisjoint(tokens):
                return tokens
        return self._greedy(text)

    def _after(self, tokens: list[int], skipped: bytes) -> list[int]:
        """Return the tokens after those that spell `skipped`, which a space may precede."""
        spelled = b""
        for index, token in enumerate(tokens):
            if spelled.removeprefix(b" ") == skipped:
                return tokens[index:]
            spelled += self.tokens[token]
        return []

    def _greedy(self, text: str) -> list[int]:
        tokens: list[int] = self.library.greedy_tokenize(text)
        return tokens


class GrammarVocabulary(Protocol):
    """What is needed of a vocabulary (`engine.model.GrammarVocabulary`)."""

    end_tokens: frozenset[int]

    def token_bytes(self, token: int) -> bytes: ...

    def is_special(self, token: int) -> bool: ...


class Encoder(Protocol):
    """What is needed of a tokenizer (`engine.model.Tokenizer`)."""

    has_process: bool

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]: ...


def encode_with(tokenizer: Encoder) -> Encode:
    """Return what finds the tokens of forced texts: none where the tokenizer refuses a text, and none of a tokenizer
    with a process of its own, where it would depend on the machine's load whether it does."""
    if tokenizer.has_process:
        return lambda text: []

    def encode(text: str) -> list[int]:
        try:
            return tokenizer.encode(text, add_special_tokens=False)
        except TextNotEncodable:
            return []

    return encode


def library_tokens(vocab_size: int, vocabulary: GrammarVocabulary, encoder: Encoder) -> LibraryTokens:
    """Return the tokens of a model whose logits have `vocab_size` entries. Takes a second for large vocabularies."""
    return LibraryTokens(
        vocab_size,
        vocabulary.token_bytes,
        lambda token: vocabulary.is_special(token) or token in vocabulary.end_tokens,
        encode_with(encoder),
    )


@cache
def byte_tokens() -> LibraryTokens:
    """Return the vocabulary of all bytes, followed by ANY_TOKEN."""
    return LibraryTokens(
        ANY_TOKEN + 1,
        lambda token: bytes([token]) if token < ANY_TOKEN else b"<token>",
        lambda token: token == ANY_TOKEN,
        lambda text: list(text.encode()),
    )
