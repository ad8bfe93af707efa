"""The state of a batch, in lines."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Counts:
    """How many lines of a file are in which state; `total` is 0 until the file has been read.

    `answered`, `rejected` (by the source) and `unsent` (not a valid request) include earlier runs: `finished_before`,
    of which `answered_before`. `unanswered` lines failed on the server and are in neither file. `tokens` counts the
    completion tokens of this run.
    """

    total: int = 0
    finished_before: int = 0
    answered_before: int = 0
    answered: int = 0
    rejected: int = 0
    unsent: int = 0
    tokens: int = 0
    unanswered: int = 0

    @property
    def failed(self) -> int:
        return self.rejected + self.unsent

    @property
    def finished(self) -> int:
        """How many lines are finished, in this run or before."""
        return self.answered + self.failed
