"""Measures which of two lanes computes steps of one size faster, repeatedly while a server runs.

One thread or several: for small steps that depends on how fast threads can wait for each other, and with virtual
processors this changes within an hour.
"""

from __future__ import annotations

from collections import deque
from statistics import median

TRIAL_STEPS = 8
"""Steps of each lane that are compared."""
STEPS_BETWEEN_TRIALS = 1024
MAX_TIME_FRACTION = 0.97
"""The other lane becomes the usual one if its median time is at most this fraction of the usual lane's."""


class LaneTuner:
    """Chooses between lanes 0 and 1 for steps of about the same size. Engine thread only.

    `lane` is the lane for the next step; call `record` once after each step.
    """

    def __init__(self) -> None:
        self.lane = 0
        self._usual = 0
        self._steps_to_trial = 2 * TRIAL_STEPS
        self._usual_seconds: deque[float] = deque(maxlen=TRIAL_STEPS)
        self._trial_seconds: list[float] = []

    def record(self, seconds: float) -> None:
        """Record the duration of a step that `lane` computed, and choose the lane for the next one."""
        if self.lane == self._usual:
            self._usual_seconds.append(seconds)
            self._steps_to_trial -= 1
            if self._steps_to_trial <= 0:
                self.lane = 1 - self._usual
            return
        self._trial_seconds.append(seconds)
        if len(self._trial_seconds) < 2 * TRIAL_STEPS:
            return
        settled = self._trial_seconds[TRIAL_STEPS:]  # before that, threads wake up and caches fill
        if median(settled) < MAX_TIME_FRACTION * median(self._usual_seconds):
            self._usual = self.lane
            self._usual_seconds = deque(settled, TRIAL_STEPS)
        self.lane, self._steps_to_trial, self._trial_seconds = self._usual, STEPS_BETWEEN_TRIALS, []
