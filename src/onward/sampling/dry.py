"""DRY ("don't repeat yourself"): lower the logits of tokens that would continue a repetition of an earlier sequence.

The rule of its author (p-e-w, text-generation-webui #5677) and of llama.cpp: where the last L tokens also occur earlier
in the prompt or the completion, the token that followed there loses multiplier * base ** (L - allowed_length), for the
longest such L, if L is at least `allowed_length`. A match ends at a breaker, and breakers are never penalised.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from onward.sampling.params import Dry

MAX_MATCH = 64
"""Longer matches count as this long: the penalty is beyond all logits long before."""
MAX_PENALTY = 1e30


class RepeatedSequences:
    """The tokens of one choice so far, prompt and completion, and which tokens would continue a repetition.

    Not thread-safe. Takes 8 bytes per token.
    """

    __slots__ = ("_breakers", "_params", "_size", "_tokens")

    def __init__(self, params: Dry, prompt: Iterable[int]) -> None:
        self._params = params
        self._breakers = np.array(params.breakers, np.int64)
        self._tokens = np.fromiter(prompt, np.int64)
        self._size = self._tokens.size

    def copy(self) -> RepeatedSequences:
        """Return the same tokens, sharing no memory that `add` writes."""
        other = RepeatedSequences(self._params, ())
        other._tokens, other._size, other._breakers = self._tokens.copy(), self._size, self._breakers
        return other

    def add(self, token: int) -> None:
        if self._size == self._tokens.size:
            self._tokens = np.concatenate((self._tokens, np.zeros(self._size + 64, np.int64)))
        self._tokens[self._size] = token
        self._size += 1

    def penalties(self) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """Return the tokens to penalise, int64 [n], and what to add to their logits, float64 [n], below 0."""
        lengths = self._match_lengths()
        ids = np.array(list(lengths), np.int64)
        values = np.array([-self._penalty(length) for length in lengths.values()], np.float64)
        is_breaker = np.isin(ids, self._breakers)
        return ids[~is_breaker], values[~is_breaker]

    def _penalty(self, length: int) -> float:
        """Return multiplier * base ** (length - allowed_length), at most MAX_PENALTY. By multiplications, because a
        library's powers differ in their last bits between machines."""
        penalty = self._params.multiplier
        for _ in range(length - self._params.allowed_length):
            penalty = min(penalty * self._params.base, MAX_PENALTY)
        return penalty

    def _match_lengths(self) -> dict[int, int]:
        """Return the tokens that followed an earlier occurrence of the last ones, and the longest such match."""
        tokens = self._window()
        limit = self._num_since_breaker(tokens)
        if limit < max(1, self._params.allowed_length) or tokens.size < 2:
            return {}
        lengths: dict[int, int] = {}
        ends = np.flatnonzero(tokens[:-1] == tokens[-1])  # of the matches of `length` tokens
        for length in range(1, limit + 1):
            if length >= self._params.allowed_length:
                lengths.update(dict.fromkeys(tokens[ends + 1].tolist(), length))
            ends = ends[ends >= length]
            if not ends.size or length == limit:
                break
            ends = ends[tokens[ends - length] == tokens[-1 - length]]
        return lengths

    def _window(self) -> NDArray[np.int64]:
        start = 0 if self._params.last_n < 0 else max(0, self._size - self._params.last_n)
        return self._tokens[start : self._size]

    def _num_since_breaker(self, tokens: NDArray[np.int64]) -> int:
        """Return how many of the last tokens come after the last breaker, at most MAX_MATCH."""
        last = tokens[-MAX_MATCH:]
        breaks = np.flatnonzero(np.isin(last, self._breakers))
        return int(last.size - 1 - breaks[-1]) if breaks.size else int(last.size)
