"""The sampling state of one choice: its parameters, its position and the tokens that penalties count."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from copy import copy

import numpy as np
from numpy.typing import NDArray

from onward.sampling.chains import chain_record
from onward.sampling.dry import RepeatedSequences
from onward.sampling.layouts import WORK_ITEM_DTYPE
from onward.sampling.masks import Mask, pack_mask
from onward.sampling.params import SamplingParams

_NOTHING: tuple[NDArray[np.int64], NDArray[np.float64]] = (np.empty(0, np.int64), np.empty(0))


class GeneratedCounts:
    """How often each token was generated, as two parallel arrays that a kernel can read. Not thread-safe."""

    __slots__ = ("_counts", "_ids", "_slots")

    def __init__(self) -> None:
        self._slots: dict[int, int] = {}
        self._ids: NDArray[np.int64] = np.empty(16, np.int64)
        self._counts: NDArray[np.float64] = np.empty(16, np.float64)

    @property
    def ids(self) -> NDArray[np.int64]:
        """Distinct tokens in any order: int64 [n], a view, valid until the next `add`."""
        return self._ids[: len(self._slots)]

    @property
    def counts(self) -> NDArray[np.float64]:
        """Occurrences of each of `ids`: float64 [n], whole numbers; a view, valid until the next `add`."""
        return self._counts[: len(self._slots)]

    def copy(self) -> GeneratedCounts:
        """Return counts that share no memory with these."""
        other = GeneratedCounts()
        other._slots = dict(self._slots)
        other._ids = self._ids.copy()
        other._counts = self._counts.copy()
        return other

    def remove(self, token: int) -> None:
        """Count `token`, which must have been added, once less. Invalidates views of `ids` and `counts`."""
        slot = self._slots[token]
        self._counts[slot] -= 1.0
        if self._counts[slot] == 0.0:
            last = len(self._slots) - 1
            self._ids[slot], self._counts[slot] = self._ids[last], self._counts[last]
            self._slots[int(self._ids[slot])] = slot
            del self._slots[token]

    def add(self, token: int) -> None:
        """Count `token` once more. Invalidates views of `ids` and `counts`."""
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
    """One choice's sampling parameters and the tokens it has accepted. For the engine thread only.

    A preempted choice keeps its ChoiceSampler: recomputed tokens are not accepted again.
    """

    __slots__ = (
        "_allowed",
        "_banned",
        "_counted",
        "_num_recent",
        "_recent",
        "_repeated",
        "bias_ids",
        "bias_values",
        "chain",
        "choice",
        "counts",
        "has_bans",
        "has_edits",
        "has_penalties",
        "mu",
        "next_mu",
        "num_top",
        "params",
        "position",
        "work_item",
    )

    def __init__(self, params: SamplingParams, choice: int, prompt: Iterable[int] = ()) -> None:
        """`prompt`: its token ids, which `params.dry` needs."""
        self.params = params
        self.choice = choice
        self.position = 0
        """Tokens accepted so far, which is the position of the next sampled token."""
        self.mu: float | None = None if params.mirostat is None else 2 * params.mirostat.tau
        """Mirostat's state at the position: the largest surprise in bits. None without mirostat."""
        self.next_mu = self.mu
        """What `mu` becomes when the token sampled last is accepted. The sampler writes it."""
        self.counts = GeneratedCounts()
        """The accepted tokens that penalties look at, counted only where one needs them."""
        self._counted: deque[int] | None = deque() if params.penalty_last_n > 0 else None
        self.has_penalties = params.has_penalties
        self._repeated = None if params.dry is None else RepeatedSequences(params.dry, prompt)
        self.bias_ids: NDArray[np.int64] = np.array([token for token, _ in params.logit_bias], np.int64)
        self.bias_values: NDArray[np.float64] = np.array([value for _, value in params.logit_bias])
        self._banned = frozenset(params.banned_tokens)
        self._allowed: Mask | None = None
        self._num_recent = max((len(sequence) - 1 for sequence in params.banned_sequences), default=0)
        self._recent: tuple[int, ...] = ()
        """As many of the tokens accepted last as the bans of sequences need."""
        self.has_bans = bool(params.banned_tokens or params.banned_sequences)
        self.has_edits = (
            self.has_penalties
            or self.has_bans
            or self._repeated is not None
            or bool(params.logit_bias or params.allowed_tokens)
        )
        self.num_top = max(0, params.logprobs or 0)
        """How many of the most likely tokens are reported with the sampled one."""
        self.work_item = _work_item(params, choice)
        """WORK_ITEM_DTYPE, 0-dimensional, with all fields that are the same for every token of the choice."""
        self.chain = chain_record(params) if params.needs_ranking else None
        """CHAIN_DTYPE, 0-dimensional, likewise; None where the token is sampled without a ranking."""

    def accept(self, token: int) -> None:
        """Record `token` as generated: advance the position, and what penalties and bans look at."""
        self.position += 1
        self.mu = self.next_mu
        if self.has_penalties:
            self._count(token)
        if self._repeated is not None:
            self._repeated.add(token)
        if self._num_recent:
            self._recent = (*self._recent, token)[-self._num_recent :]

    def _count(self, token: int) -> None:
        unpenalized = self.params.unpenalized_tokens
        if token not in unpenalized:
            self.counts.add(token)
        if self._counted is not None:
            self._counted.append(token)
            if len(self._counted) > self.params.penalty_last_n:
                oldest = self._counted.popleft()
                if oldest not in unpenalized:
                    self.counts.remove(oldest)

    def repetitions(self) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """Return the tokens that DRY penalises at the choice's position, int64 [n], and what to add to their logits,
        float64 [n]."""
        return _NOTHING if self._repeated is None else self._repeated.penalties()

    def restore(self, mu: float | None) -> None:
        """Set mirostat's state to that which an earlier sampler of the choice had reached."""
        if self.mu is not None and mu is not None:
            self.mu = self.next_mu = mu

    def bans(self) -> frozenset[int]:
        """Return the tokens that the choice's own parameters ban at its position."""
        recent = self._recent
        ends = [each[-1] for each in self.params.banned_sequences if recent[1 - len(each) :] == each[:-1]]
        return self._banned.union(ends) if ends else self._banned

    def mask(self, vocab_size: int) -> Mask | None:
        """Return the mask of the allowed tokens, None if all are. Packed once. Raises ValueError for a token outside of
        the vocabulary."""
        if self._allowed is None and self.params.allowed_tokens:
            self._allowed = pack_mask(self.params.allowed_tokens, vocab_size)
        return self._allowed

    def after(self, tokens: Iterable[int]) -> ChoiceSampler:
        """Return a sampler that has also accepted `tokens`, to sample after draft tokens. This one is unchanged. Not
        for mirostat, whose state depends on how likely each token was."""
        other = copy(self)
        if self.has_penalties:
            other.counts = self.counts.copy()
            other._counted = copy(self._counted)
        if self._repeated is not None:
            other._repeated = self._repeated.copy()
        for token in tokens:
            other.accept(token)
        return other


def _work_item(params: SamplingParams, choice: int) -> NDArray[np.void]:
    item = np.zeros((), WORK_ITEM_DTYPE)
    item["target_token"] = -1
    item["num_top"] = -1 if params.logprobs is None else params.logprobs
    item["greedy"] = params.is_greedy
    item["chain"] = params.needs_ranking
    item["top_k"] = params.top_k
    item["seed"] = params.seed
    item["choice"] = choice
    item["temperature"] = params.temperature
    item["top_p"] = params.top_p
    item["min_p"] = params.min_p
    item["presence_penalty"] = params.presence_penalty
    item["frequency_penalty"] = params.frequency_penalty
    item["repetition_penalty"] = params.repetition_penalty
    return item
