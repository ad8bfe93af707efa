"""When a lost engine is started again, and when no further attempt makes sense."""

from __future__ import annotations

from collections.abc import Sequence

RESTART_DELAYS = (0.0, 0.1, 0.5, 1.0, 2.0, 5.0)
"""Seconds before each attempt, counted from the last progress: at once, then with back-off, as a machine that is short
of memory may recover."""
MAX_FRUITLESS_LOSSES = 6
"""Losses and failed starts in a row, without an event delivered between them, that count as a crash loop. A single
request that ends engines is found with the fourth (see `suspects`), so that it never ends the server."""
STABLE_SECONDS = 60.0
"""An engine that ran so long without anything to do was not part of a crash loop."""


class RestartPolicy:
    """Counts losses. Not thread-safe."""

    def __init__(self, delays: Sequence[float] = RESTART_DELAYS) -> None:
        self._delays = delays
        self._num_fruitless = 0

    def engine_lost(self, *, made_progress: bool, seconds: float) -> float | None:
        """Return how long to wait before the next start, in seconds; None: this is a crash loop.

        `made_progress`: whether the engine delivered an event, or its loss showed which request ends it. `seconds`: how
        long it ran.
        """
        if made_progress or seconds >= STABLE_SECONDS:
            self._num_fruitless = 0
            return self._delays[0]
        self._num_fruitless += 1
        return self._delay(self._num_fruitless - 1)

    def could_not_start(self) -> float | None:
        """As `engine_lost`, for an engine that could not be started again."""
        self._num_fruitless += 1
        return self._delay(self._num_fruitless)

    def _delay(self, index: int) -> float | None:
        if self._num_fruitless >= MAX_FRUITLESS_LOSSES:
            return None
        return self._delays[min(index, len(self._delays) - 1)]
