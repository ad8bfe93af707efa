"""How much of something slow is done, as sentences for people."""

from __future__ import annotations

import time
from collections.abc import Callable

from onward.runtimes.base import Progress

MIN_STEP = 5
"""Percent between two sentences."""
MIN_SECONDS = 1.0
"""Between two sentences: what is done sooner is not worth one."""


class Percentage:
    """Says `what: 40 %`, now and then, while amounts are added that are `total` together, or about that."""

    def __init__(self, what: str, total: int, progress: Progress, clock: Callable[[], float] = time.monotonic) -> None:
        self._what = what
        self._total = max(1, total)
        self._progress = progress
        self._clock = clock
        self._done = 0
        self._said = 0
        self._said_at = clock()

    def advance(self, amount: int) -> None:
        """Add what was done since the last call."""
        self._done += amount
        percent = min(99, 100 * self._done // self._total)
        if percent >= self._said + MIN_STEP and self._clock() >= self._said_at + MIN_SECONDS:
            self._said, self._said_at = percent, self._clock()
            self._progress(f"{self._what}: {percent} %")
