"""The sampler: from a matrix of logits to sampled or scored tokens.

Lays out a step's work items and logit edits, and runs the kernels over them on one or several threads.
`reference.ReferenceSampler` is the same in plain numpy.
"""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from onward.sampling.choice import WORK_ITEM_DTYPE, ChoiceSampler
from onward.sampling.kernels import entry_point
from onward.sampling.masks import Mask, stack_masks
from onward.sampling.mirostat import draw_mirostat
from onward.sampling.outputs import Sampled
from onward.sampling.params import Shaping
from onward.sampling.reference import edited, most_likely
from onward.sampling.shaping import Ranking, draw
from onward.sampling.sorting import SortBuffers, sort_descending
from onward.sampling.threads import SamplerThreads
from onward.sampling.vocab_blocks import BLOCK_TOKENS

MAX_KERNEL_TOP = 64
"""Most likely tokens that the kernel lists itself, by insertion. Longer lists are sorted in numpy."""

MIN_LOGITS_PER_THREAD = 1 << 20
"""Below that, handing work to another thread takes longer than the work."""
MAX_THREADS = 4
CHAIN_COST = 8
"""How many times as long as the kernels a chain of samplers takes."""

_run = entry_point()


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

    def views(self, part: slice) -> tuple[NDArray[Any], ...]:
        """Return views for some of the items, in the order of `kernels.run`'s parameters."""
        return (
            self.tokens[part],
            self.logprobs[part],
            self.normalizers[part],
            self.ranks[part],
            self.top_ids[part],
            self.top_logprobs[part],
        )


class ScratchBuffers:
    """What the kernels overwrite on one thread; shapes as in kernels.py."""

    def __init__(self, vocab_size: int) -> None:
        num_blocks = -(-vocab_size // BLOCK_TOKENS)
        self.edited: NDArray[np.float32] = np.empty(vocab_size, np.float32)
        self.maxima: NDArray[np.float32] = np.empty((2, num_blocks), np.float32)
        self.masses: NDArray[np.float64] = np.empty((3, num_blocks), np.float64)

    @cached_property
    def sort(self) -> SortBuffers:
        """Allocated with the first chain of samplers."""
        return SortBuffers(self.edited.size)


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
        """`num_threads`: how many may share a large step, by default one per core; never more than MAX_THREADS."""
        num_threads = min(num_threads or os.cpu_count() or 1, MAX_THREADS)
        self._vocab_size = vocab_size
        self._edits = LogitEdits()
        self._masks, _ = stack_masks((), vocab_size)
        self._scratch = [ScratchBuffers(vocab_size)]
        self._num_threads = num_threads
        self._threads = SamplerThreads(num_threads - 1)
        self._allocate(32)
        self.score(np.zeros((1, vocab_size), np.float32), 0, (0,), 0)
        Ranking(sort_descending(np.zeros(1, np.float32), 0.0, 1, SortBuffers(1))).pick(0.0)

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
        banned[i] have a logit of -inf for this token, and so have those that masks[i] (masks.py) does not allow, beside
        what the choice itself bans and allows; reported log-probabilities stay raw. A row that is not finite, or from
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
        if any(banned) or any(choice.has_edits for choice in choices):
            self._lay_out_edits(items, choices, banned)
        if masks or any(choice.params.allowed_tokens for choice in choices):
            self._lay_out_masks(items, choices, masks)
        if any(choice.params.has_chain for choice in choices):
            self._draw_shaped(logits, items, rows, choices, banned, masks)
        return self._run(logits, items, rows, [choice.num_top for choice in choices])

    def score(
        self,
        logits: NDArray[np.float32],
        first_row: int,
        targets: Sequence[int],
        top: int,
        *,
        with_ranks: bool = False,
    ) -> list[Sampled]:
        """Score targets[i] by the distribution in logits[first_row + i], with the `top` most likely tokens beside it,
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
        """Make `_items` and `_results` large enough."""
        if num_items > (self._items.size if hasattr(self, "_items") else 0):
            size = 1 << (num_items - 1).bit_length()
            self._items: NDArray[np.void] = np.zeros(size, WORK_ITEM_DTYPE)
            self._results = ResultBuffers.allocate(size)

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

    def _draw_shaped(
        self,
        logits: NDArray[np.float32],
        items: NDArray[np.void],
        rows: Sequence[int],
        choices: Sequence[ChoiceSampler],
        banned: Sequence[frozenset[int] | None],
        masks: Sequence[Mask | None],
    ) -> None:
        """Sample for the choices with a chain of samplers, on several threads; the kernels then score these tokens.

        Rows without a token are left to the kernels, which report why.
        """
        shaped = [i for i, choice in enumerate(choices) if choice.params.has_chain]

        def draw_some(which: Sequence[int], buffers: SortBuffers) -> None:
            for i in which:
                choice, raw = choices[i], logits[rows[i]]
                row = edited(raw, choice, banned[i], masks[i] if masks else None)
                if np.isfinite(raw.max()) and row.max() > -np.inf:
                    items["target_token"][i] = _draw(row, choice, buffers)

        parts = self._parts(len(shaped), CHAIN_COST)
        self._threads.run(
            [
                partial(draw_some, shaped[part], scratch.sort)
                for part, scratch in zip(parts, self._scratch, strict=False)
            ]
        )

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
        self, logits: NDArray[np.float32], items: NDArray[np.void], rows: Sequence[int], num_tops: list[int]
    ) -> list[Sampled]:
        """Run the kernels over `items`. `rows` and `num_tops` repeat two of their columns as Python numbers, because
        reading columns of a small array costs more."""
        if not items.size:
            return []
        if logits.ndim != 2 or logits.shape[1] != self._vocab_size or logits.dtype != np.float32:
            raise ValueError(f"logits are not float32 [rows, {self._vocab_size}]")
        if not 0 <= min(rows) <= max(rows) < len(logits):
            raise IndexError(f"a row is out of range: the logits have {len(logits)} rows")
        view = np.ascontiguousarray(logits).view()
        view.flags.writeable = False  # one type for numba, whatever the caller's array is
        parts = self._parts(items.size)
        num_failed = sum(self._run_parts(view, items, parts))
        sampled = self._sampled(view, rows, num_tops)
        return sampled if not num_failed else [one if one.token >= 0 else _failed(one.token) for one in sampled]

    def _run_parts(self, logits: NDArray[np.float32], items: NDArray[np.void], parts: list[slice]) -> list[int]:
        return self._threads.run(
            [partial(self._run_part, logits, items, part, self._scratch[i]) for i, part in enumerate(parts)]
        )

    def _parts(self, num_items: int, cost: int = 1) -> list[slice]:
        """Divide the items among as many threads as are worth it; allocate a scratch buffer for each. `cost`: of an
        item, compared with one of the kernels'."""
        num_logits = num_items * self._vocab_size * cost
        count = max(1, min(self._num_threads, num_items, num_logits // MIN_LOGITS_PER_THREAD))
        while len(self._scratch) < count:
            self._scratch.append(ScratchBuffers(self._vocab_size))
        bounds = [num_items * part // count for part in range(count + 1)]
        return [slice(start, end) for start, end in pairwise(bounds)]

    def _run_part(
        self, logits: NDArray[np.float32], items: NDArray[np.void], part: slice, scratch: ScratchBuffers
    ) -> int:
        """Write the results of these items to the result buffers; return how many have no token. On any thread, without
        the GIL."""
        num_failed: int = _run(
            logits,
            items[part],
            self._edits.ids,
            self._edits.values,
            self._masks,
            scratch.edited,
            scratch.maxima,
            scratch.masses,
            *self._results.views(part),
        )
        return num_failed

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


def _draw(row: NDArray[np.float32], choice: ChoiceSampler, buffers: SortBuffers) -> int:
    """Return a token sampled from an edited row by the choice's chain of samplers."""
    params = choice.params
    if params.mirostat is not None:
        return draw_mirostat(row, choice, params.mirostat, buffers)
    return draw(row, params, params.shaping or Shaping(), choice.choice, choice.position, buffers)


def _failed(token: int) -> Sampled:
    """Return the result of an item without a token, for which the kernel writes nothing else."""
    return Sampled(token, math.nan, ())
