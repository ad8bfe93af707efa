"""`reasoning_tokens`: the tokens that a model generates between its reasoning markers."""

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
"""Token ids that begin and end reasoning."""


def find_reasoning_markers(tokenizer: Tokenizer) -> Markers | None:
    """Return the first pair of markers that are tokens of the vocabulary; None if there is none."""
    for opening, closing in MARKERS:
        pair = tokenizer.token_id(opening), tokenizer.token_id(closing)
        if pair[0] is not None and pair[1] is not None:
            return pair[0], pair[1]
    return None


class ReasoningCounter:
    """Counts one choice's tokens between the markers, without the markers.

    Reasoning may begin in the prompt, and may not have ended at the end of the choice.
    """

    def __init__(self, markers: Markers, prompt: Sequence[int]) -> None:
        self._opening, self._closing = markers
        self._is_reasoning = False
        self._num_seen = 0
        for token in reversed(prompt):
            if token in markers:
                self._is_reasoning = token == self._opening
                break

    def count(self, records: Sequence[TokenRecord], num_completion_tokens: int) -> int:
        """Return how many of these tokens are reasoning tokens.

        `num_completion_tokens` is the choice's count so far: tokens beyond it, such as an end token, do not count.
        """
        num_reasoning_tokens = 0
        for record in records:
            self._num_seen += 1
            if record.token in (self._opening, self._closing):
                self._is_reasoning = record.token == self._opening
            elif self._is_reasoning and self._num_seen <= num_completion_tokens:
                num_reasoning_tokens += 1
        return num_reasoning_tokens
