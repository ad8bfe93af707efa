"""The runs of a step (records.RUN): which of its rows are of one sequence, and what that sequence's state takes in.

A state takes in every row but drafts. Those are logged until the next step, which takes in as many as its sequence's
first row says were accepted: it continues after them. The drafts of a step are in one half of the log, while those of
the step before it are read from the other.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from onward.engine.model import Row

MAX_DRAFTS = 32
"""Drafts of a step: what is logged of one takes a few percent of a state's memory."""
LOG_ROWS = 2 * MAX_DRAFTS


class Runs:
    """What each of `num_states` states has taken in, and what is logged of the last step."""

    def __init__(self, num_states: int) -> None:
        self._known = [0] * num_states
        """How many positions each has taken in."""
        self._logged: dict[int, tuple[int, int]] = {}
        """Of states, the drafts of the step before: where they begin in the log, and how many there are."""
        self._logged_next: dict[int, tuple[int, int]] = {}
        """Those of this step."""
        self._half = self._num_drafts = 0
        """Where the half of the log begins that this step writes to, and how many drafts it has there."""

    def begin_step(self) -> None:
        """Have the drafts of the step that has ended accepted by this one, as far as its rows follow them."""
        self._logged, self._logged_next = self._logged_next, {}
        self._half, self._num_drafts = MAX_DRAFTS - self._half, 0

    def fill(self, words: NDArray[np.int64], rows: Sequence[Row]) -> int:
        """Write the runs of rows, as records.RUN; return how many there are. Raises RuntimeError for rows that do not
        follow what their state has taken in."""
        runs: list[list[int]] = []
        first, slot = 0, -1
        for row in rows:
            if runs and row.state == slot:
                self._continue(runs[-1], row)
            else:
                runs.append(self._begin(row, first))
            slot, first = row.state, first + len(row.tokens)
        if len({run[2] for run in runs}) < len(runs):
            raise RuntimeError("The rows of a sequence are not next to each other.")
        words[: len(runs)] = runs
        return len(runs)

    def copy(self, source: int, target: int) -> None:
        """Note that a state was copied, without its drafts."""
        self.replace(target, self._known[source])

    def replace(self, state: int, num_positions: int) -> None:
        """Note that a state is now another one, which has taken in so many positions."""
        self._known[state] = num_positions
        self._logged_next.pop(state, None)

    def _begin(self, row: Row, first: int) -> list[int]:
        """Return the run that begins with a row, whose number in the step is `first`."""
        length, slot = len(row.tokens), row.state
        if not 0 <= slot < len(self._known):
            raise RuntimeError(f"Sequence {row.sequence} has none of the {len(self._known)} states.")
        known = self._known[slot] if row.start else 0
        log, num_drafts = self._logged.get(slot, (0, 0)) if row.start else (0, 0)
        ahead = row.start - known
        if row.is_draft or not (0 <= ahead <= num_drafts or (ahead, length) == (-1, 1)):
            raise RuntimeError(
                f"Sequence {row.sequence} continues at position {row.start}, but its state has taken in {known}."
            )
        self._known[slot] = row.start + length
        return [first, length, slot, known, 0, max(0, ahead), log, 0]

    def _continue(self, run: list[int], row: Row) -> None:
        """Add a row to the run of its sequence."""
        length, slot, num_drafts = len(row.tokens), row.state, run[4]
        if row.start != self._known[slot] + num_drafts or (num_drafts and not row.is_draft):
            raise RuntimeError(f"Sequence {row.sequence} continues at position {row.start}, not after its last row.")
        run[1] += length
        if not row.is_draft:
            self._known[slot] += length
            return
        self._num_drafts += length
        if self._num_drafts > MAX_DRAFTS:
            raise RuntimeError(f"More than {MAX_DRAFTS} tokens of a step are drafts.")
        run[4] += length
        run[7] = self._half + self._num_drafts - run[4]
        self._logged_next[slot] = run[7], run[4]
