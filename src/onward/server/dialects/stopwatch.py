"""How long the two stages of a completion took, as other APIs report it."""

from __future__ import annotations

import time
from collections.abc import Callable

Clock = Callable[[], float]


class Stopwatch:
    """Times in seconds. The prompt's stage, with any wait for the model, ends with the first token."""

    def __init__(self, clock: Clock = time.perf_counter) -> None:
        self._clock = clock
        self._started = clock()
        self._first: float | None = None
        self._last = self._started

    def mark(self) -> None:
        """A token has arrived, or the end."""
        self._last = self._clock()
        if self._first is None:
            self._first = self._last

    @property
    def prompt_seconds(self) -> float:
        return (self._last if self._first is None else self._first) - self._started

    @property
    def decode_seconds(self) -> float:
        """Time since the first token."""
        return 0.0 if self._first is None else self._last - self._first

    @property
    def total_seconds(self) -> float:
        return self._last - self._started
