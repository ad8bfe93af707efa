"""Tokenizes the texts of a request within bounded time and memory: a text that cannot fit is not tokenized whole."""

from __future__ import annotations

from collections.abc import Sequence

from onward.completions.rejections import ContextExceeded
from onward.engine.model import Tokenizer

SAMPLE_CHARACTERS_PER_TOKEN = 16
MIN_SAMPLE_CHARACTERS = 65_536
NORMALIZATION_FACTOR = 4
"""Unicode normalization makes text shorter: composing Korean letters takes three bytes instead of nine."""


def encode_fitting(
    text: str, tokenizer: Tokenizer, *, context_length: int, max_tokens: int, add_special_tokens: bool
) -> list[int]:
    """Return the token ids of a prompt or suffix. Its exact length is for the caller to check.

    Raises ContextExceeded for a long text that exceeds the context by its size, or by the tokens that its beginning
    has; and as `Tokenizer.encode` does. A short one is tokenized in any case, so that its true length can be stated.
    """
    sample = _sample(text, context_length)
    if sample != text:
        minimum = _min_tokens(text, tokenizer)
        if minimum + max_tokens > context_length:
            raise ContextExceeded(minimum, max_tokens, context_length, is_minimum=True)
        # Twice the context leaves a margin for what the text after the sample does to the sample's tokens.
        num_tokens = len(tokenizer.encode(sample, add_special_tokens=False)) // 2
        if num_tokens > context_length:
            raise ContextExceeded(num_tokens, max_tokens, context_length, is_minimum=True)
    return tokenizer.encode(text, add_special_tokens=add_special_tokens)


def encode_beginning(text: str, tokenizer: Tokenizer, context_length: int) -> list[int]:
    """Return the token ids of a text of which only as many tokens as the context are needed. Those of a very long text
    may be fewer. Raises as `Tokenizer.encode` does."""
    return tokenizer.encode(_sample(text, context_length), add_special_tokens=False)[:context_length]


def without_dummy_spaces(
    tokens: Sequence[int], token_bytes: tuple[bytes, ...], text: str, tokenizer: Tokenizer
) -> tuple[bytes, ...]:
    """Return the bytes of a text's tokens without the spaces that SentencePiece vocabularies add to its first word and
    to what follows a special token; unchanged where they differ from the text in other ways, too."""
    raw, joined = text.encode("utf-8", "replace"), b"".join(token_bytes)
    if joined == raw:
        return token_bytes
    if joined == b" " + raw and token_bytes[0].startswith(b" "):
        return (token_bytes[0][1:], *token_bytes[1:])
    kept = list(token_bytes)
    begin = position = 0
    for index, (token, each) in enumerate(zip((*tokens, -1), (*token_bytes, b""), strict=True)):
        if token >= 0 and tokenizer.token_id(each.decode("utf-8", "replace")) != token:
            continue
        part = b"".join(kept[begin:index])  # the tokens between two special ones
        if part.startswith(b" ") and not raw.startswith(part + each, position):
            kept[begin], part = kept[begin][1:], part[1:]
        position += len(part) + len(each)
        begin = index + 1
    return tuple(kept) if b"".join(kept) == raw else token_bytes


def _min_tokens(text: str, tokenizer: Tokenizer) -> int:
    """Return the fewest tokens that the text can have: if each were as long as the vocabulary's longest token."""
    num_bytes = len(text) if text.isascii() else len(text.encode("utf-8", "replace")) // NORMALIZATION_FACTOR
    return num_bytes // max(1, tokenizer.max_token_bytes)


def _sample(text: str, context_length: int) -> str:
    return text[: max(MIN_SAMPLE_CHARACTERS, SAMPLE_CHARACTERS_PER_TOKEN * context_length)]
