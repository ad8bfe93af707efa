"""The sampler: from a matrix of logits to sampled or scored tokens.

Lays out a step's work items and logit edits, and runs the kernels over them on one or several threads.
`reference.ReferenceSampler` is the same in plain numpy.
"""

from __future__ import annotations

import ctypes
import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from onward.sampling.chains import CHAIN_DTYPE
from onward.sampling.choice import ChoiceSampler
from onward.sampling.kernels import load_kernels
from onward.sampling.layouts import BLOCK_LOGITS, PADDING, WORK_ITEM_DTYPE, Step
from onward.sampling.masks import Mask, stack_masks
from onward.sampling.outputs import Sampled
from onward.sampling.reference import most_likely
from onward.sampling.sorting import NUM_BUCKETS, NUM_DIGITS
from onward.sampling.threads import SamplerThreads

MAX_KERNEL_TOP = 64
"""Most likely tokens that the kernel lists itself, by insertion. Longer lists are sorted in numpy."""

MIN_LOGITS_PER_THREAD = 1 << 20
"""Below that, handing work to another thread takes longer than the work."""
MAX_THREADS = 4
CHAIN_COST = 8
"""How many times as long as other items one with a chain of samplers takes."""


@dataclass(frozen=True, slots=True)
class ResultBuffers:
    """Where the kernels write: one element (or row) per work item. Reused by every call."""

    tokens: NDArray[np.int64]
    logprobs: NDArray[np.float32]
    normalizers: NDArray[np.float64]
    ranks: NDArray[np.int64]
    top_ids: NDArray[np.int64]
    top_logprobs: NDArray[np.float32]

    @classmethod
    def allocate(cls, num_items: int) -> ResultBuffers:
        return cls(
            np.empty(num_items, np.int64),
            np.empty(num_items, np.float32),
            np.empty(num_items, np.float64),
            np.empty(num_items, np.int64),
            np.empty((num_items, MAX_KERNEL_TOP), np.int64),
            np.empty((num_items, MAX_KERNEL_TOP), np.float32),
        )


class ThreadStep:
    """The record of a step for one thread, with the scratch that the kernels overwrite; shapes as in layouts.Step."""

    def __init__(self, vocab_size: int) -> None:
        num_blocks = -(-vocab_size // BLOCK_LOGITS)
        self.step = Step(vocab_size=vocab_size, num_blocks=num_blocks, top_width=MAX_KERNEL_TOP)
        self.address = ctypes.addressof(self.step)
        self._vocab_size = vocab_size
        self.arrays: dict[str, NDArray[Any]] = {}
        """The scratch, by its name in the step."""
        self._allocate("tail", BLOCK_LOGITS, np.float32)
        self._allocate("edited", num_blocks * BLOCK_LOGITS, np.float32)
        self._allocate("maxima", 2 * (num_blocks + PADDING), np.float32)
        self._allocate("masses", 2 * num_blocks, np.float64)
        self._allocate("weights", BLOCK_LOGITS, np.float32)

    def allocate_for_chains(self) -> None:
        """Allocate what chains of samplers need, once."""
        if "sorted" not in self.arrays:
            for name in ("sorted", "spare", "sorted_weights"):
                self._allocate(name, self._vocab_size + PADDING, np.float32)
            self._allocate("counts", NUM_DIGITS * NUM_BUCKETS, np.uint32)

    def point_at(self, **arrays: NDArray[Any]) -> None:
        """Write the addresses of arrays, which the caller must keep until the kernels have returned."""
        for name, array in arrays.items():
            setattr(self.step, name, address_of(array))

    def _allocate(self, name: str, size: int, dtype: Any) -> None:
        self.arrays[name] = np.zeros(size, dtype)
        self.point_at(**{name: self.arrays[name]})


def address_of(array: NDArray[Any]) -> int:
    address: int = array.__array_interface__["data"][0]
    return address


class LogitEdits:
    """The changes of logits that a step's work items need: two parallel arrays that grow, reused by every step."""

    def __init__(self) -> None:
        self.ids: NDArray[np.int64] = np.empty(256, np.int64)
        self.values: NDArray[np.float64] = np.empty(256, np.float64)
        self.used = 0

    def add(self, ids: NDArray[np.int64], values: NDArray[np.float64] | float) -> int:
        """Append `ids` (int64 [n]) and their `values` (float64 [n], or one for all); return the new length."""
        start, self.used = self.used, self.used + ids.size
        while self.used > self.ids.size:
            self.ids = np.concatenate((self.ids, np.empty_like(self.ids)))
            self.values = np.concatenate((self.values, np.empty_like(self.values)))
        self.ids[start : self.used] = ids
        self.values[start : self.used] = values
        return self.used


class Sampler:
    """Samples and scores tokens. Owns the kernels' buffers and the sampler threads; close it to end the threads.

    All methods must be called from one thread (the engine's). Creating the first Sampler of a process loads the
    compiled kernels, or compiles them, which takes seconds once per machine.
    """

    def __init__(self, vocab_size: int, num_threads: int | None = None) -> None:
        """`num_threads`: how many may share a large step, by default one per core; never more than MAX_THREADS.

        Raises kernels.executable_memory.NoExecutableMemory."""
        num_threads = min(num_threads or os.cpu_count() or 1, MAX_THREADS)
        self._kernel = load_kernels()
        self._vocab_size = vocab_size
        self._edits = LogitEdits()
        self._masks, _ = stack_masks((), vocab_size)
        self._steps: list[ThreadStep] = []
        self._num_threads = num_threads
        self._threads = SamplerThreads(num_threads - 1)
        self._allocate(32)
        self._add_step()

    def close(self) -> None:
        """End the threads. Later calls sample on the caller's thread. May be called more than once."""
        self._threads.close()

    def sample(
        self,
        logits: NDArray[np.float32],
        rows: Sequence[int],
        choices: Sequence[ChoiceSampler],
        banned: Sequence[frozenset[int] | None],
        masks: Sequence[Mask | None] = (),
    ) -> list[Sampled]:
        """Sample one token from logits[rows[i]] for each choices[i]. Several may use the same row.

        `logits` is float32 [num_rows, vocab_size]; neither it nor the choices are mutated, except `next_mu`. The ids in
        banned[i] have a logit of -inf for this token, and so have those that masks[i] (masks.py) does not allow, in
        addition to what the choice itself bans; reported log-probabilities stay raw. A row that is not finite, or from
        which no token is left, does not change the other results. Raises ValueError if the arguments differ in length,
        `logits` has another shape or dtype, or an edited id is outside of the vocabulary; IndexError for a row that
        does not exist.
        """
        if not len(rows) == len(choices) == len(banned) or (masks and len(masks) != len(rows)):
            raise ValueError("rows, choices, banned and masks differ in length")
        self._allocate(len(rows))
        items = self._items[: len(rows)]
        for i, choice in enumerate(choices):
            items[i] = choice.work_item
        items["row"] = rows
        items["position"] = [choice.position for choice in choices]
        has_edits = any(banned) or any(choice.has_edits for choice in choices)
        if has_edits:
            self._lay_out_edits(items, choices, banned)
        if masks or any(choice.params.allowed_tokens for choice in choices):
            self._lay_out_masks(items, choices, masks)
        if has_edits or masks:
            self._point_at_edits()
        num_tops = [choice.num_top for choice in choices]
        if not any(choice.chain is not None for choice in choices):
            return self._run(logits, items, rows, num_tops)
        self._lay_out_chains(choices)
        sampled = self._run(logits, items, rows, num_tops, has_chains=True)
        for choice, next_mu in zip(choices, self._chains["next_mu"][: len(choices)].tolist(), strict=True):
            if choice.mu is not None:
                choice.next_mu = next_mu
        return sampled

    def score(
        self,
        logits: NDArray[np.float32],
        first_row: int,
        targets: Sequence[int],
        top: int,
        *,
        with_ranks: bool = False,
    ) -> list[Sampled]:
        """Score targets[i] by the distribution in logits[first_row + i], with the `top` most likely tokens,
        and `with_ranks` with their ranks.

        `logits` is float32 [num_rows, vocab_size] and is not mutated. Raises as `sample`, and ValueError for a target
        outside of the vocabulary.
        """
        self._allocate(len(targets))
        items = self._items[: len(targets)]
        items[:] = np.zeros((), WORK_ITEM_DTYPE)
        rows = range(first_row, first_row + len(targets))
        items["row"] = rows
        items["target_token"] = targets
        items["num_top"] = top
        items["with_rank"] = with_ranks
        if len(targets) and not 0 <= min(targets) <= max(targets) < self._vocab_size:
            raise ValueError("a token to score is outside of the vocabulary")
        scored = self._run(logits, items, rows, [max(0, top)] * len(targets))
        if not with_ranks:
            return scored
        ranks = self._results.ranks[: len(targets)].tolist()
        return [one._replace(rank=rank) if one.token >= 0 else one for one, rank in zip(scored, ranks, strict=True)]

    def _allocate(self, num_items: int) -> None:
        """Make `_items`, `_chains` and `_results` large enough."""
        if num_items > (self._items.size if hasattr(self, "_items") else 0):
            size = 1 << (num_items - 1).bit_length()
            self._items: NDArray[np.void] = np.zeros(size, WORK_ITEM_DTYPE)
            self._chains: NDArray[np.void] = np.zeros(size, CHAIN_DTYPE)
            self._results = ResultBuffers.allocate(size)
            self._point_at_results()

    def _lay_out_edits(
        self,
        items: NDArray[np.void],
        choices: Sequence[ChoiceSampler],
        banned: Sequence[frozenset[int] | None],
    ) -> None:
        """Write all penalties, biases and bans to the step's edits, and their bounds to the items."""
        edits, bounds = self._edits, []
        edits.used = 0
        for choice, ban in zip(choices, banned, strict=True):
            start = biases_start = edits.used
            if choice.has_penalties:
                biases_start = edits.add(choice.counts.ids, choice.counts.counts)
            bans_start = edits.add(choice.bias_ids, choice.bias_values) if choice.bias_ids.size else biases_start
            if choice.params.dry is not None:
                bans_start = edits.add(*choice.repetitions())
            if choice.has_bans:
                ban = choice.bans() | (ban or frozenset())
            end = edits.add(np.fromiter(ban, np.int64), 0.0) if ban else bans_start
            bounds.append((start, biases_start, bans_start, end))
        columns = ("penalties_start", "biases_start", "bans_start", "edits_end")
        for column, values in zip(columns, zip(*bounds, strict=True), strict=True):
            items[column] = values
        ids = edits.ids[: edits.used]
        if ids.size and not 0 <= ids.min() <= ids.max() < self._vocab_size:
            raise ValueError("a token to penalise, to bias or to ban is outside of the vocabulary")

    def _lay_out_chains(self, choices: Sequence[ChoiceSampler]) -> None:
        """Write the chains of the choices that have one."""
        for i, choice in enumerate(choices):
            if choice.chain is not None:
                self._chains[i] = choice.chain
                if choice.mu is not None:
                    self._chains[i]["mu"] = self._chains[i]["next_mu"] = choice.mu

    def _lay_out_masks(
        self, items: NDArray[np.void], choices: Sequence[ChoiceSampler], masks: Sequence[Mask | None]
    ) -> None:
        """Stack the step's masks, and write to the items which one each has."""
        own = [choice.mask(self._vocab_size) for choice in choices]
        if masks:
            pairs = zip(own, masks, strict=True)
            own = [a if b is None else b if a is None else a & b for a, b in pairs]
        self._masks, items["mask"] = stack_masks(own, self._vocab_size)

    def _run(
        self,
        logits: NDArray[np.float32],
        items: NDArray[np.void],
        rows: Sequence[int],
        num_tops: list[int],
        *,
        has_chains: bool = False,
    ) -> list[Sampled]:
        """Run the kernels over `items`. `rows` and `num_tops` repeat two of their columns as Python numbers, because
        reading columns of a small array costs more."""
        if not items.size:
            return []
        if logits.ndim != 2 or logits.shape[1] != self._vocab_size or logits.dtype != np.float32:
            raise ValueError(f"logits are not float32 [rows, {self._vocab_size}]")
        if not 0 <= min(rows) <= max(rows) < len(logits):
            raise IndexError(f"a row is out of range: the logits have {len(logits)} rows")
        contiguous = np.ascontiguousarray(logits)
        address, parts = address_of(contiguous), self._parts(items, has_chains)
        calls = []
        for thread_step, (first, end) in zip(self._steps, parts, strict=False):
            thread_step.step.logits = address
            calls.append(partial(self._kernel, thread_step.address, first, end))
        num_failed = sum(self._threads.run(calls))
        sampled = self._sampled(contiguous, rows, num_tops)
        return sampled if not num_failed else [one if one.token >= 0 else _failed(one.token) for one in sampled]

    def _parts(self, items: NDArray[np.void], has_chains: bool) -> list[tuple[int, int]]:
        """Divide the items among as many threads as are worth it: (first, end) of each. Allocate their scratch."""
        if not has_chains and items.size * self._vocab_size < 2 * MIN_LOGITS_PER_THREAD:
            return [(0, items.size)]
        costs = np.cumsum(1 + (CHAIN_COST - 1) * items["chain"])
        total = int(costs[-1])
        count = max(1, min(self._num_threads, items.size, total * self._vocab_size // MIN_LOGITS_PER_THREAD))
        while len(self._steps) < count:
            self._add_step()
        if has_chains:
            for thread_step in self._steps[:count]:
                thread_step.allocate_for_chains()
        bounds = [int(np.searchsorted(costs, total * part / count)) for part in range(count)]
        return list(pairwise((*bounds, items.size)))

    def _add_step(self) -> None:
        """Allocate the scratch of one more thread."""
        self._steps.append(ThreadStep(self._vocab_size))
        self._point_at_results()
        self._point_at_edits()

    def _point_at_results(self) -> None:
        """Write where work items are and results go, to all threads' steps."""
        shared = {name: getattr(self._results, name) for name in ResultBuffers.__slots__}
        for thread_step in self._steps:
            thread_step.point_at(items=self._items, chains=self._chains, **shared)

    def _point_at_edits(self) -> None:
        """Write where logit edits and masks are, to all threads' steps."""
        for thread_step in self._steps:
            thread_step.point_at(edit_ids=self._edits.ids, edit_values=self._edits.values, masks=self._masks)
            thread_step.step.mask_words = self._masks.shape[1]

    def _sampled(self, logits: NDArray[np.float32], rows: Sequence[int], num_tops: list[int]) -> list[Sampled]:
        """Convert the result buffers to Python values, which share no memory with them."""
        count, results = len(rows), self._results
        tokens, logprobs = results.tokens[:count].tolist(), results.logprobs[:count].tolist()
        width = min(max(num_tops), MAX_KERNEL_TOP, self._vocab_size)
        if width == 0:
            return [Sampled(token, logprob, ()) for token, logprob in zip(tokens, logprobs, strict=True)]
        ids, values = results.top_ids[:count, :width].tolist(), results.top_logprobs[:count, :width].tolist()
        return [
            Sampled(
                tokens[i],
                logprobs[i],
                tuple(zip(ids[i][:num_top], values[i][:num_top], strict=True))
                if num_top <= MAX_KERNEL_TOP
                else self._long_top(logits[rows[i]], results.normalizers[i], num_top),
            )
            for i, num_top in enumerate(num_tops)
        ]

    def _long_top(
        self, row: NDArray[np.float32], normalizer: np.float64, num_top: int
    ) -> tuple[tuple[int, float], ...]:
        """Return what the kernel would list, for a list longer than the kernel's. Same arithmetic, same bits."""
        ids = most_likely(row, num_top)
        logprobs = (row[ids].astype(np.float64) - normalizer).astype(np.float32)
        return tuple(zip(ids.tolist(), logprobs.tolist(), strict=True))


def _failed(token: int) -> Sampled:
    """Return the result of an item without a token, for which the kernel writes nothing else."""
    return Sampled(token, math.nan, ())
