"""A vocabulary in the shape that the library reads."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


class LibraryTokens:
    """The tokens of a vocabulary, and behind them a virtual one that ends a text. For llguidance.LLTokenizer."""

    is_tokenizer_wrapper = True
    bos_token_id = None

    def __init__(self, vocab_size: int, token_bytes: Callable[[int], bytes], is_control: Callable[[int], bool]) -> None:
        """`is_control`: whether a token never spells text, as special and end tokens."""
        self.tokens = [token_bytes(token) for token in range(vocab_size)] + [b"<end>"]
        self.special_token_ids = [token for token in range(vocab_size) if is_control(token)] + [vocab_size]
        self.eos_token_id = vocab_size

    def __call__(self, text: str) -> list[int]:
        """Return no tokens: with `no_forcing`, the library does not choose tokenizations."""
        return []

    def for_library(self) -> Any:
        """Return the tokens as an llguidance.LLTokenizer. Takes a second for large vocabularies."""
        from llguidance import LLTokenizer

        source: Any = self  # has what a TokenizerWrapper must have
        return LLTokenizer(source, len(self.tokens), [self.eos_token_id])
