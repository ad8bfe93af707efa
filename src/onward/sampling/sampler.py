"""From a matrix of logits to drawn or scored tokens: lays out a step's items, and runs the kernels over them.

`reference.ReferenceSampler` is the same in plain numpy.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from onward.sampling.choice import ITEM, ChoiceSampler
from onward.sampling.kernels import DONE, entry_point
from onward.sampling.outputs import Sampled
from onward.sampling.reference import most_likely
from onward.sampling.threads import SamplerThreads
from onward.sampling.vocab_blocks import BLOCK

MAX_KERNEL_TOP = 64
"""Most likely tokens that the kernel lists itself, by insertion. Longer lists are sorted in numpy."""

MIN_LOGITS_PER_THREAD = 1 << 20
"""Logits a thread, at least: below that handing work to another thread takes longer than the work."""
MAX_THREADS = 4

_run = entry_point()


@dataclass(frozen=True, slots=True)
class Results:
    """Where the kernels write: one element an item."""

    tokens: NDArray[np.int64]
    logprobs: NDArray[np.float32]
    normalisers: NDArray[np.float64]
    top_ids: NDArray[np.int64]
    top_logprobs: NDArray[np.float32]

    def of_items(self, part: slice) -> tuple[NDArray[Any], ...]:
        """Views for some of the items, in the order in which the kernel takes them."""
        return (
            self.tokens[part],
            self.logprobs[part],
            self.normalisers[part],
            self.top_ids[part],
            self.top_logprobs[part],
        )

    @classmethod
    def of(cls, items: int) -> Results:
        return cls(
            np.empty(items, np.int64),
            np.empty(items, np.float32),
            np.empty(items, np.float64),
            np.empty((items, MAX_KERNEL_TOP), np.int64),
            np.empty((items, MAX_KERNEL_TOP), np.float32),
        )


class Scratch:
    """What one thread of the kernels writes to on its way."""

    def __init__(self, vocab_size: int) -> None:
        blocks = -(-vocab_size // BLOCK)
        self.edited: NDArray[np.float32] = np.empty(vocab_size, np.float32)
        self.maxima: NDArray[np.float32] = np.empty((2, blocks), np.float32)
        self.masses: NDArray[np.float64] = np.empty((3, blocks), np.float64)


class Edits:
    """The changes of logits that a step's items ask for: two growing parallel arrays."""

    def __init__(self) -> None:
        self.ids: NDArray[np.int64] = np.empty(256, np.int64)
        self.values: NDArray[np.float64] = np.empty(256, np.float64)
        self.used = 0

    def add(self, ids: NDArray[np.int64], values: NDArray[np.float64] | float) -> int:
        """Append `ids` and their `values`; how much is used afterwards."""
        start, self.used = self.used, self.used + ids.size
        while self.used > self.ids.size:
            self.ids = np.concatenate((self.ids, np.empty_like(self.ids)))
            self.values = np.concatenate((self.values, np.empty_like(self.values)))
        self.ids[start : self.used] = ids
        self.values[start : self.used] = values
        return self.used


class Sampler:
    """Draws and scores. Owns the kernels' scratch arrays and threads; its methods are for the engine thread only. Close
    it to end the threads.

    Making the first one of a process loads the compiled kernels, or compiles them (seconds, once a machine).
    """

    def __init__(self, vocab_size: int, num_threads: int | None = None) -> None:
        """`num_threads`: how many may share a large step, by default one per core; never more than MAX_THREADS."""
        num_threads = min(num_threads or os.cpu_count() or 1, MAX_THREADS)
        self._vocab_size = vocab_size
        self._edits = Edits()
        self._scratch = [Scratch(vocab_size)]
        self._num_threads = num_threads
        self._threads = SamplerThreads(num_threads - 1)
        self._reserve(32)
        self.score(np.zeros((1, vocab_size), np.float32), 0, (0,), 0)

    def close(self) -> None:
        """End the threads; what is drawn afterwards is drawn on the caller's. May be called more than once."""
        self._threads.close()

    def sample(
        self,
        logits: NDArray[np.float32],
        rows: Sequence[int],
        choices: Sequence[ChoiceSampler],
        banned: Sequence[frozenset[int] | None],
    ) -> list[Sampled]:
        """Draw i reads logits[rows[i]] for choices[i]; several may read one row. Mutates neither.

        The ids in banned[i] have a logit of -inf for this draw; reported log-probabilities stay raw.
        Raises RuntimeError when logits are NaN or infinite, or when no token is left to draw.
        """
        if not len(rows) == len(choices) == len(banned):
            raise ValueError("rows, choices and banned differ in length")
        self._reserve(len(rows))
        items = self._items[: len(rows)]
        for i, choice in enumerate(choices):
            items[i] = choice.item
        items["row"] = rows
        items["position"] = [choice.position for choice in choices]
        if any(banned) or any(choice.has_edits for choice in choices):
            self._lay_out_edits(items, choices, banned)
        return self._run(logits, items, rows, [choice.top for choice in choices])

    def score(self, logits: NDArray[np.float32], first_row: int, targets: Sequence[int], top: int) -> list[Sampled]:
        """targets[i] by the distribution in logits[first_row + i], with the `top` most likely beside it."""
        self._reserve(len(targets))
        items = self._items[: len(targets)]
        items[:] = np.zeros((), ITEM)
        rows = range(first_row, first_row + len(targets))
        items["row"] = rows
        items["given"] = targets
        items["top"] = top
        if len(targets) and not 0 <= min(targets) <= max(targets) < self._vocab_size:
            raise ValueError("a token to score is outside of the vocabulary")
        return self._run(logits, items, rows, [max(0, top)] * len(targets))

    def _reserve(self, items: int) -> None:
        if items > (self._items.size if hasattr(self, "_items") else 0):
            size = 1 << (items - 1).bit_length()
            self._items: NDArray[np.void] = np.zeros(size, ITEM)
            self._results = Results.of(size)

    def _lay_out_edits(
        self,
        items: NDArray[np.void],
        choices: Sequence[ChoiceSampler],
        banned: Sequence[frozenset[int] | None],
    ) -> None:
        """Put all penalties, biases and bans into the step's edits, and where they lie into the items."""
        edits, bounds = self._edits, []
        edits.used = 0
        for choice, ban in zip(choices, banned, strict=True):
            start = middle = edits.used
            if choice.has_penalties:
                middle = edits.add(choice.counts.ids, choice.counts.counts)
            bias_end = edits.add(choice.bias_ids, choice.bias_values) if choice.bias_ids.size else middle
            end = edits.add(np.fromiter(ban, np.int64), 0.0) if ban else bias_end
            bounds.append((start, middle, bias_end, end))
        for column, values in zip(("penalties", "biases", "bans", "end"), zip(*bounds, strict=True), strict=True):
            items[column] = values
        ids = edits.ids[: edits.used]
        if ids.size and not 0 <= ids.min() <= ids.max() < self._vocab_size:
            raise ValueError("a token to penalise, to bias or to ban is outside of the vocabulary")

    def _run(
        self, logits: NDArray[np.float32], items: NDArray[np.void], rows: Sequence[int], tops: list[int]
    ) -> list[Sampled]:
        """`rows` and `tops` are what the items say, in Python's numbers: a column of a small array costs more."""
        if not items.size:
            return []
        if logits.ndim != 2 or logits.shape[1] != self._vocab_size or logits.dtype != np.float32:
            raise ValueError(f"logits are not float32 [rows, {self._vocab_size}]")
        if not 0 <= min(rows) <= max(rows) < len(logits):
            raise IndexError("a row of logits that is not there")
        view = np.ascontiguousarray(logits).view()
        view.flags.writeable = False  # one type for numba, whatever the caller's array is
        parts = self._parts(items.size)
        for part, status in zip(parts, self._run_parts(view, items, parts), strict=True):
            if status >= 0:
                raise RuntimeError(f"the logits are not finite (row {rows[part][status]})")
            if status != DONE:
                raise RuntimeError("no token is left to draw: all are banned or have a logit of -inf")
        return self._sampled(view, rows, tops)

    def _run_parts(self, logits: NDArray[np.float32], items: NDArray[np.void], parts: list[slice]) -> list[int]:
        return self._threads.run(
            [partial(self._run_part, logits, items, part, self._scratch[at]) for at, part in enumerate(parts)]
        )

    def _parts(self, items: int) -> list[slice]:
        """The items, shared out among as many threads as pay; there is scratch for each afterwards."""
        count = max(1, min(self._num_threads, items, items * self._vocab_size // MIN_LOGITS_PER_THREAD))
        while len(self._scratch) < count:
            self._scratch.append(Scratch(self._vocab_size))
        bounds = [items * part // count for part in range(count + 1)]
        return [slice(start, end) for start, end in pairwise(bounds)]

    def _run_part(self, logits: NDArray[np.float32], items: NDArray[np.void], part: slice, scratch: Scratch) -> int:
        """On any thread, without the GIL: results of these items, written where they belong; see `kernels.run`."""
        status: int = _run(
            logits,
            items[part],
            self._edits.ids,
            self._edits.values,
            scratch.edited,
            scratch.maxima,
            scratch.masses,
            *self._results.of_items(part),
        )
        return status

    def _sampled(self, logits: NDArray[np.float32], rows: Sequence[int], tops: list[int]) -> list[Sampled]:
        count, out = len(rows), self._results
        tokens, logprobs = out.tokens[:count].tolist(), out.logprobs[:count].tolist()
        width = min(max(tops), MAX_KERNEL_TOP, self._vocab_size)
        if width == 0:
            return [Sampled(token, logprob, ()) for token, logprob in zip(tokens, logprobs, strict=True)]
        ids, values = out.top_ids[:count, :width].tolist(), out.top_logprobs[:count, :width].tolist()
        return [
            Sampled(
                tokens[i],
                logprobs[i],
                tuple(zip(ids[i][:top], values[i][:top], strict=True))
                if top <= MAX_KERNEL_TOP
                else self._long_top(logits[rows[i]], out.normalisers[i], top),
            )
            for i, top in enumerate(tops)
        ]

    def _long_top(self, row: NDArray[np.float32], normaliser: np.float64, top: int) -> tuple[tuple[int, float], ...]:
        """What the kernel would list, where `top` is more than it lists. The same arithmetic, the same bits."""
        ids = most_likely(row, top)
        logprobs = (row[ids].astype(np.float64) - normaliser).astype(np.float32)
        return tuple(zip(ids.tolist(), logprobs.tolist(), strict=True))
