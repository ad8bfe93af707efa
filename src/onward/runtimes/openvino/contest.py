"""Which of two ways to compute a step is the faster one, here and now.

One thread or several: for short steps that depends on how fast threads can wait for each other, and with virtual
processors this changes while a server runs.
"""

from __future__ import annotations

from collections import deque
from statistics import median

RUN = 8
"""Steps of each way that are compared."""
AGAIN = 1024
"""Steps from one trial to the next."""
CLEARLY = 0.97
"""The other way becomes the usual one if it takes at most this share of the time."""


class Contest:
    """Steps of about the same size. `way`, 0 or 1, is for the next step; `took` learns from it. Engine thread only."""

    def __init__(self) -> None:
        self.way = 0
        self._usual = 0
        self._left = 2 * RUN
        """Steps until the next trial."""
        self._seconds: deque[float] = deque(maxlen=RUN)
        """Of the last steps in the usual way."""
        self._trial: list[float] = []

    def took(self, seconds: float) -> None:
        """The step went `way` and took so long."""
        if self.way == self._usual:
            self._seconds.append(seconds)
            self._left -= 1
            if self._left <= 0:
                self.way = 1 - self._usual
            return
        self._trial.append(seconds)
        if len(self._trial) < 2 * RUN:
            return
        settled = self._trial[RUN:]  # before that, threads wake up and caches fill
        if median(settled) < CLEARLY * median(self._seconds):
            self._usual = self.way
            self._seconds = deque(settled, RUN)
        self.way, self._left, self._trial = self._usual, AGAIN, []
