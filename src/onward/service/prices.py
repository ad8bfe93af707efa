"""What tokens cost, in integer micro-units of the currency."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

PER = 1_000_000
"""Prices are for this many tokens."""


@dataclass(frozen=True, slots=True)
class Price:
    """Micro-units per million tokens: of a prompt, of its part that was in the cache, and of a completion."""

    prompt: int
    completion: int
    cached: int

    def parts(self, prompt_tokens: int, cached_tokens: int, completion_tokens: int) -> tuple[int, int]:
        """Return the cost of a request's prompt and of its completion, each rounded half up. `cached_tokens` are part
        of `prompt_tokens`."""
        prompt = (prompt_tokens - cached_tokens) * self.prompt + cached_tokens * self.cached
        return (prompt + PER // 2) // PER, (completion_tokens * self.completion + PER // 2) // PER


def prices_of(settings: Iterable[tuple[str, int, int, int]]) -> dict[str, Price]:
    """Return prices by the names that the settings use for models."""
    return {model: Price(prompt, completion, cached) for model, prompt, completion, cached in settings}
