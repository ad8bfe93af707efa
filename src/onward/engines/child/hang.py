"""Decides when an engine hangs: jobs are with it, and it has not reported a step for too long."""

from __future__ import annotations

LONGEST_STEP_FACTOR = 4
"""An engine may be silent for that many times its longest step so far: the next prompt may be longer."""
START_FACTOR = 3
"""How much longer it may be silent at first: a runtime compiles kernels for each new shape of a step."""
NUM_START_REPORTS = 10
"""Reports after a start to which START_FACTOR applies."""
MAX_POLL_SECONDS = 1.0
MIN_POLL_SECONDS = 0.01
POLLS_PER_TIMEOUT = 20


class HangWatch:
    """Measures how long an engine has been silent although it has jobs. Not thread-safe.

    `timeout`: the shortest silence, in seconds, that counts as a hang; 0: nothing ever does. Call `poll` every
    `poll_seconds`. Silence is the sum of what passes between polls, each counted as at most two intervals: so the time
    during which this process itself was suspended or starved counts for nothing.
    """

    def __init__(self, timeout: float) -> None:
        self._timeout = timeout
        self.poll_seconds = min(max(timeout / POLLS_PER_TIMEOUT, MIN_POLL_SECONDS), MAX_POLL_SECONDS)
        if not timeout:
            self.poll_seconds = MAX_POLL_SECONDS
        self._longest_step = 0.0
        self._silence = 0.0
        self._num_reports = 0
        self._last_poll = self._last_report = 0.0

    @property
    def allowed_silence(self) -> float:
        """Seconds of silence that are not a hang yet."""
        factor = START_FACTOR if self._num_reports < NUM_START_REPORTS else 1
        return factor * max(self._timeout, LONGEST_STEP_FACTOR * self._longest_step)

    def engine_lost(self) -> None:
        """The engine is gone. Its silence was no step, however long it was: nothing is learnt from it."""
        self._silence = 0.0

    def engine_started(self, now: float) -> None:
        """A new engine is ready. What the one before took for its longest step is still known."""
        self._silence = 0.0
        self._num_reports = 0
        self._last_poll = self._last_report = now

    def reported(self, now: float) -> None:
        """The engine has reported a step, or that it is idle."""
        if self._silence:  # it had jobs at the last poll
            step = min(now - self._last_report, self._silence + 2 * self.poll_seconds)
            self._longest_step = max(self._longest_step, step)
        self._silence = 0.0
        self._num_reports += 1
        self._last_report = now

    def poll(self, now: float, *, has_jobs: bool) -> bool:
        """Return whether the engine hangs. `has_jobs`: whether a job was sent to it that has not ended."""
        elapsed, self._last_poll = now - self._last_poll, now
        if not has_jobs or not self._timeout:
            self._silence = 0.0
            return False
        self._silence += min(elapsed, 2 * self.poll_seconds)
        return self._silence > self.allowed_silence
