"""From a matrix of logits to drawn or scored tokens: lays out a step's items, makes one call into the kernels.

`reference.ReferenceSampler` is the same in plain numpy.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from onward.sampling.blocks import BLOCK
from onward.sampling.choice import ITEM, ChoiceSampler, Sampled
from onward.sampling.kernels import DONE, entry_point
from onward.sampling.reference import most_likely

__all__ = ["ChoiceSampler", "Sampled", "Sampler"]

WIDEST_TOP = 64
"""Most likely tokens that the kernel lists itself, by insertion. Longer lists are sorted in numpy."""

_run = entry_point()


@dataclass(frozen=True, slots=True)
class Results:
    """Where the kernels write: one element an item."""

    tokens: NDArray[np.int64]
    logprobs: NDArray[np.float32]
    normalisers: NDArray[np.float64]
    top_ids: NDArray[np.int64]
    top_logprobs: NDArray[np.float32]

    @classmethod
    def of(cls, items: int) -> Results:
        return cls(
            np.empty(items, np.int64),
            np.empty(items, np.float32),
            np.empty(items, np.float64),
            np.empty((items, WIDEST_TOP), np.int64),
            np.empty((items, WIDEST_TOP), np.float32),
        )


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
    """Draws and scores. Owns the kernels' scratch arrays; engine thread only.

    Making the first one of a process loads the compiled kernels, or compiles them (seconds, once a machine).
    """

    def __init__(self, vocab_size: int) -> None:
        blocks = -(-vocab_size // BLOCK)
        self._vocab_size = vocab_size
        self._edits = Edits()
        self._edited: NDArray[np.float32] = np.empty(vocab_size, np.float32)
        self._maxima: NDArray[np.float32] = np.empty((2, blocks), np.float32)
        self._masses: NDArray[np.float64] = np.empty((3, blocks), np.float64)
        self._reserve(32)
        self.score(np.zeros((1, vocab_size), np.float32), 0, (0,), 0)

    def draw(
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
        if any(banned) or any(choice.editing for choice in choices):
            self._lay_out_edits(items, choices, banned)
        return self._run(logits, items)

    def score(self, logits: NDArray[np.float32], first_row: int, targets: Sequence[int], top: int) -> list[Sampled]:
        """targets[i] by the distribution in logits[first_row + i], with the `top` most likely beside it."""
        self._reserve(len(targets))
        items = self._items[: len(targets)]
        items[:] = np.zeros((), ITEM)
        items["row"] = np.arange(first_row, first_row + len(targets))
        items["given"] = targets
        items["top"] = top
        if len(targets) and not 0 <= items["given"].min() <= items["given"].max() < self._vocab_size:
            raise ValueError("a token to score is outside of the vocabulary")
        return self._run(logits, items)

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
            if choice.penalised:
                middle = edits.add(choice.counts.ids, choice.counts.counts)
            bias_end = edits.add(choice.bias_ids, choice.bias_values) if choice.bias_ids.size else middle
            end = edits.add(np.fromiter(ban, np.int64), 0.0) if ban else bias_end
            bounds.append((start, middle, bias_end, end))
        for column, values in zip(("penalties", "biases", "bans", "end"), zip(*bounds, strict=True), strict=True):
            items[column] = values
        ids = edits.ids[: edits.used]
        if ids.size and not 0 <= ids.min() <= ids.max() < self._vocab_size:
            raise ValueError("a token to penalise, to bias or to ban is outside of the vocabulary")

    def _run(self, logits: NDArray[np.float32], items: NDArray[np.void]) -> list[Sampled]:
        if not items.size:
            return []
        if logits.ndim != 2 or logits.shape[1] != self._vocab_size or logits.dtype != np.float32:
            raise ValueError(f"logits are not float32 [rows, {self._vocab_size}]")
        if not 0 <= items["row"].min() <= items["row"].max() < len(logits):
            raise IndexError("a row of logits that is not there")
        view = np.ascontiguousarray(logits).view()
        view.flags.writeable = False  # one type for numba, whatever the caller's array is
        out, edits = self._results, self._edits
        status = _run(
            view,
            items,
            edits.ids,
            edits.values,
            self._edited,
            self._maxima,
            self._masses,
            out.tokens,
            out.logprobs,
            out.normalisers,
            out.top_ids,
            out.top_logprobs,
        )
        if status >= 0:
            raise RuntimeError(f"the logits are not finite (row {items['row'][status]})")
        if status != DONE:
            raise RuntimeError("no token is left to draw: all are banned or have a logit of -inf")
        return self._sampled(view, items)

    def _sampled(self, logits: NDArray[np.float32], items: NDArray[np.void]) -> list[Sampled]:
        count, out = items.size, self._results
        tops = np.maximum(items["top"], 0).tolist()  # -1: no log-probabilities
        tokens, logprobs = out.tokens[:count].tolist(), out.logprobs[:count].tolist()
        width = min(max(tops), WIDEST_TOP, self._vocab_size)
        if width == 0:
            return [Sampled(token, logprob, ()) for token, logprob in zip(tokens, logprobs, strict=True)]
        ids, values = out.top_ids[:count, :width].tolist(), out.top_logprobs[:count, :width].tolist()
        return [
            Sampled(
                tokens[i],
                logprobs[i],
                tuple(zip(ids[i][:top], values[i][:top], strict=True))
                if top <= WIDEST_TOP
                else self._long_top(logits[items["row"][i]], out.normalisers[i], top),
            )
            for i, top in enumerate(tops)
        ]

    def _long_top(self, row: NDArray[np.float32], normaliser: np.float64, top: int) -> tuple[tuple[int, float], ...]:
        """What the kernel would list, where `top` is more than it lists. The same arithmetic, the same bits."""
        ids = most_likely(row, top)
        logprobs = (row[ids].astype(np.float64) - normaliser).astype(np.float32)
        return tuple(zip(ids.tolist(), logprobs.tolist(), strict=True))
