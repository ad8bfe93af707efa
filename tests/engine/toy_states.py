"""A toy model whose sequences have states, which is as strict about them as a runtime."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from onward.engine.model import Hook, Row, nothing
from onward.runtimes.toy.model import ToyModel
from onward.sampling.sampler import Sampler
from tests.engine.harness import ToyEngine


class ToyWithStates(ToyModel):
    """A state is the number of positions that it has processed, and the hash in the KV cell of the last one: that of
    other tokens is not accepted. Implements engine.model.RecurrentModel."""

    def __init__(self, num_states: int, blocks: int = 4096) -> None:
        super().__init__(blocks=blocks)
        self.shape = replace(self.shape, states=num_states, max_draft_tokens=20)
        self._states = np.zeros((num_states, 2), np.uint64)
        self._drafts: dict[int, int] = {}
        """How many the last step had, by state."""

    def evaluate(self, rows: Sequence[Row], before_compute: Hook = nothing) -> NDArray[np.float32]:
        before, self._drafts = self._drafts, {}
        for row in rows:
            if row.is_draft:
                assert row.start == self._taken(row) + self._drafts.get(row.state, 0) and len(row.tokens) == 1
                self._drafts[row.state] = self._drafts.get(row.state, 0) + 1
            else:
                num_drafts = before.pop(row.state, 0)
                assert row.start == 0 or 0 <= row.start - self._taken(row) <= num_drafts
                self._states[row.state] = row.start + len(row.tokens), 0
        assert sum(self._drafts.values()) <= self.shape.max_draft_tokens
        logits = super().evaluate(rows, before_compute)
        for row in rows:
            self._states[row.state, 1] = self._cell(row, int(self._states[row.state, 0]) - 1)
        return logits

    def _taken(self, row: Row) -> int:
        """Return how many positions the state of a row has processed, which are its sequence's."""
        taken, last = self._states[row.state].tolist()
        assert not last or last == self._cell(row, taken - 1), "the state is that of other tokens"
        return int(taken)

    def copy_state(self, source: int, target: int) -> None:
        self._states[target] = self._states[source]
        self._drafts.pop(target, None)

    def state_memory(self, state: int) -> NDArray[np.uint8]:
        own: NDArray[np.uint8] = self._states[state].view(np.uint8)
        return own

    def set_state(self, state: int, content: NDArray[np.uint8], num_positions: int) -> None:
        self._states[state] = content.view(np.uint64)
        assert self._states[state, 0] == num_positions
        self._drafts.pop(state, None)


def engine_with_states(num_states: int, blocks: int = 4096) -> ToyEngine:
    model = ToyWithStates(num_states, blocks)
    return ToyEngine(model, Sampler(model.vocab_size, 1), max_rows=64, share=True, speculate=True)
