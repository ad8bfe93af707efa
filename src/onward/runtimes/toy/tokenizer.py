"""The toy vocabulary: every byte, a few special tokens and a few longer tokens."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

SPECIALS = ("<|endoftext|>", "<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>", "<|fim_pad|>")
WORDS = (" the", " and", " a", " to", " of", "ing", " once", " upon", " time", "\n\n", "🙂", "é")
END = 256


class ToyTokenizer:
    """Ids 0 … 255 are bytes, followed by the special tokens and a few longer tokens; the longest match wins."""

    bos_token: str | None = None
    eos_token: str | None = SPECIALS[0]
    start_token: int | None = END
    special_literals: tuple[str, ...] = SPECIALS
    end_tokens = frozenset({END})
    infill_tokens: Mapping[str, int] = MappingProxyType({})

    def __init__(self) -> None:
        self._token_bytes = [bytes([byte]) for byte in range(256)]
        self._token_bytes += [literal.encode() for literal in (*SPECIALS, *WORDS)]
        self._ids = {literal: 256 + index for index, literal in enumerate((*SPECIALS, *WORDS))}
        self._longest_first = sorted(self._ids, key=len, reverse=True)
        self.size = len(self._token_bytes)
        self.max_token_bytes = max(map(len, self._token_bytes))

    def token_bytes(self, token: int) -> bytes:
        return self._token_bytes[token]

    def is_special(self, token: int) -> bool:
        return END <= token < END + len(SPECIALS)

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        ids: list[int] = []
        while text:
            for literal in self._longest_first:
                if text.startswith(literal):
                    ids.append(self._ids[literal])
                    text = text[len(literal) :]
                    break
            else:
                ids += text[0].encode("utf-8", "replace")
                text = text[1:]
        return ids

    def implicit_prefix(self, *, add_special_tokens: bool) -> int:
        return 0

    def token_id(self, literal: str) -> int | None:
        return self._ids.get(literal)
