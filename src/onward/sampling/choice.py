"""What is drawn, and the state that a choice's draws depend on."""

from __future__ import annotations

from collections.abc import Iterable
from copy import copy

import numpy as np
from numpy.typing import NDArray

from onward.sampling.params import SamplingParams

ITEM = np.dtype(
    [
        ("row", np.int64),
        ("given", np.int64),  # the token to score, or -1: draw one
        ("top", np.int64),  # most likely tokens wanted; -1: no log-probability either
        ("top_k", np.int64),  # 0: off
        ("seed", np.uint64),
        ("choice", np.uint64),
        ("position", np.uint64),
        ("temperature", np.float64),  # 0: greedy
        ("top_p", np.float64),
        ("min_p", np.float64),
        ("presence", np.float64),
        ("frequency", np.float64),
        ("repetition", np.float64),
        ("penalties", np.int64),  # edits[penalties:biases] are (generated token, its count),
        ("biases", np.int64),  # edits[biases:bans] are (token, value to add),
        ("bans", np.int64),  # edits[bans:end] are (banned token, unused)
        ("end", np.int64),
    ],
    align=True,
)
"""One draw or one score, as the kernels read it. `edits` are the step's parallel arrays (see sampler.Edits)."""


class TokenCounts:
    """How often each token was generated, as two parallel arrays that a kernel can read. Not thread-safe."""

    __slots__ = ("_counts", "_ids", "_slots")

    def __init__(self) -> None:
        self._slots: dict[int, int] = {}
        self._ids: NDArray[np.int64] = np.empty(16, np.int64)
        self._counts: NDArray[np.float64] = np.empty(16, np.float64)

    def __len__(self) -> int:
        return len(self._slots)

    def __getitem__(self, token: int) -> int:
        slot = self._slots.get(token)
        return 0 if slot is None else int(self._counts[slot])

    @property
    def ids(self) -> NDArray[np.int64]:
        """Distinct tokens in order of first appearance; a view, valid until the next `add`."""
        return self._ids[: len(self._slots)]

    @property
    def counts(self) -> NDArray[np.float64]:
        """Occurrences of each of `ids`, whole numbers; a view, valid until the next `add`."""
        return self._counts[: len(self._slots)]

    def copy(self) -> TokenCounts:
        other = TokenCounts()
        other._slots = dict(self._slots)
        other._ids = self._ids.copy()
        other._counts = self._counts.copy()
        return other

    def add(self, token: int) -> None:
        slots = self._slots
        slot = slots.get(token)
        if slot is not None:
            self._counts[slot] += 1.0
            return
        slot = len(slots)
        if slot == self._ids.size:
            self._ids = np.concatenate((self._ids, np.empty_like(self._ids)))
            self._counts = np.concatenate((self._counts, np.empty_like(self._counts)))
        slots[token] = slot
        self._ids[slot] = token
        self._counts[slot] = 1.0


class ChoiceSampler:
    """One choice's sampling parameters and the tokens it has accepted. Used by the engine thread only.

    A preempted choice keeps its ChoiceSampler: replayed tokens are not accepted again.
    """

    __slots__ = (
        "bias_ids",
        "bias_values",
        "choice",
        "counts",
        "has_edits",
        "has_penalties",
        "item",
        "params",
        "position",
        "top",
    )

    def __init__(self, params: SamplingParams, choice: int) -> None:
        self.params = params
        self.choice = choice
        self.position = 0
        """Tokens accepted so far, which is the position of the next draw."""
        self.counts = TokenCounts()
        """What was accepted, kept only where a penalty reads it."""
        self.has_penalties = (
            params.presence_penalty != 0 or params.frequency_penalty != 0 or params.repetition_penalty != 1
        )
        self.bias_ids: NDArray[np.int64] = np.array([token for token, _ in params.logit_bias], np.int64)
        self.bias_values: NDArray[np.float64] = np.array([value for _, value in params.logit_bias])
        self.has_edits = self.has_penalties or bool(params.logit_bias)
        self.top = max(0, params.logprobs or 0)
        """How many of the most likely tokens are told beside the drawn one."""
        self.item = _item(params, choice)
        """A draw's ITEM, 0-dimensional, with all that stays the same from draw to draw."""

    def accept(self, token: int) -> None:
        """Take `token` as generated: later draws stand one position further and penalties, if any, count it."""
        self.position += 1
        if self.has_penalties:
            self.counts.add(token)

    def after(self, tokens: Iterable[int]) -> ChoiceSampler:
        """A sampler that has accepted `tokens` too, for the draws that follow if they are drawn. This one stays."""
        other = copy(self)
        if self.has_penalties:
            other.counts = self.counts.copy()
        for token in tokens:
            other.accept(token)
        return other


def _item(params: SamplingParams, choice: int) -> NDArray[np.void]:
    item = np.zeros((), ITEM)
    item["given"] = -1
    item["top"] = -1 if params.logprobs is None else params.logprobs
    item["top_k"] = params.top_k
    item["seed"] = params.seed
    item["choice"] = choice
    item["temperature"] = params.temperature
    item["top_p"] = params.top_p
    item["min_p"] = params.min_p
    item["presence"] = params.presence_penalty
    item["frequency"] = params.frequency_penalty
    item["repetition"] = params.repetition_penalty
    return item
