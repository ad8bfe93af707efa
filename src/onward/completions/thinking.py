"""`reasoning_tokens`: the tokens that a model writes between its think markers."""

from __future__ import annotations

from collections.abc import Sequence

from onward.engine.model import Tokenizer
from onward.text.assembler import TokenRecord

MARKERS = (
    ("<think>", "</think>"),  # DeepSeek-R1, Qwen3, SmolLM3
    ("[THINK]", "[/THINK]"),  # Magistral
    ("<seed:think>", "</seed:think>"),  # Seed-OSS
)

Markers = tuple[int, int]
"""Token ids that open and close a thought."""


def find_think_markers(tokenizer: Tokenizer) -> Markers | None:
    """The first pair that the tokenizer knows as tokens; None for a model that does not think."""
    for opening, closing in MARKERS:
        pair = tokenizer.token_id(opening), tokenizer.token_id(closing)
        if pair[0] is not None and pair[1] is not None:
            return pair[0], pair[1]
    return None


class ThoughtCounter:
    """Counts one choice's tokens between the markers, the markers themselves left out.

    A thought may have been opened in the prompt, and may be left open at the end.
    """

    def __init__(self, markers: Markers, prompt: Sequence[int]) -> None:
        self._opening, self._closing = markers
        self._thinking = False
        self._seen = 0
        for token in reversed(prompt):
            if token in markers:
                self._thinking = token == self._opening
                break

    def count(self, records: Sequence[TokenRecord], billed: int) -> int:
        """How many of these tokens are thought. `billed` is the choice's count so far: tokens beyond it, a stop's
        or an end's, do not count."""
        thoughts = 0
        for record in records:
            self._seen += 1
            if record.token in (self._opening, self._closing):
                self._thinking = record.token == self._opening
            elif self._thinking and self._seen <= billed:
                thoughts += 1
        return thoughts
