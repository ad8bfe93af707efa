"""The loss of an engine from its supervisor's side: when an engine hangs, the line in the log, the counts, when the
next one is started, and what the engines before it have counted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from onward.engine_load import TOTALS, EngineLoad, RecoveryCounts
from onward.engines.child.dispatch import Loss

LONGEST_STEP_FACTOR = 4
"""An engine may be silent for this many times its longest step so far: the next prompt may be longer."""
START_FACTOR = 3
"""How many times longer it may be silent at first: a runtime compiles kernels for each new shape of a step."""
NUM_START_REPORTS = 10
"""Reports after a start to which START_FACTOR applies."""
MAX_POLL_SECONDS = 1.0
MIN_POLL_SECONDS = 0.01
POLLS_PER_TIMEOUT = 20

RESTART_DELAYS = (0.0, 0.1, 0.5, 1.0, 2.0, 5.0)
"""Seconds before each attempt, counted from the last progress: at once, then with back-off, as a machine that is short
of memory may recover."""
MAX_FRUITLESS_LOSSES = 6
"""Losses and failed starts in a row, without an event delivered between them, that count as a crash loop. A single
request that ends engines is found with the fourth (see `dispatch`), so that it never ends the server."""
STABLE_SECONDS = 60.0
"""An engine that ran this long without anything to do was not part of a crash loop."""


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
        """The engine is gone. Its silence was not a step, however long it was, so nothing is learnt from it."""
        self._silence = 0.0

    def engine_started(self, now: float) -> None:
        """A new engine is ready. The longest step of the one before is still known."""
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


@dataclass(slots=True)
class Incident:
    """A loss of the engine `name`. `num_requests`: resumed ones. `lost_at` is a time of the supervisor's clock."""

    name: str
    reason: str
    hung: bool
    lost_at: float
    num_requests: int
    poisoned: str = ""
    """Names the request that ended the engine, if one was found."""
    seconds: float | None = None
    """From the loss until another engine was ready."""

    def count_loss(self, counts: RecoveryCounts, loss: Loss) -> RecoveryCounts:
        """Return the counts after this loss."""
        if loss.failed is not None:
            self.poisoned = f"request {loss.request} (job {loss.failed.job})"
        return msgspec.structs.replace(
            counts,
            num_crashes=counts.num_crashes + (not self.hung),
            num_hangs=counts.num_hangs + self.hung,
            num_poisoned_requests=counts.num_poisoned_requests + (loss.failed is not None),
        )

    def count_failed_start(self, counts: RecoveryCounts) -> RecoveryCounts:
        """Return the counts after an attempt to start another engine that failed."""
        return msgspec.structs.replace(counts, num_failed_starts=counts.num_failed_starts + 1)

    def count_recovery(self, counts: RecoveryCounts, now: float) -> RecoveryCounts:
        """Return the counts after another engine became ready."""
        self.seconds = now - self.lost_at
        return msgspec.structs.replace(
            counts,
            num_recoveries=counts.num_recoveries + 1,
            num_resumed_requests=counts.num_resumed_requests + self.num_requests,
            seconds=counts.seconds + self.seconds,
        )

    def summary(self, given_up: str = "") -> str:
        """Return what happened in one line. `given_up`: why no other engine is started."""
        requests = "1 request" if self.num_requests == 1 else f"{self.num_requests} requests"
        line = f"{self.name}: the engine was lost ({self.reason})"
        if self.poisoned:
            line += f"; {self.poisoned} was ended as the cause"
        if given_up:
            return f"{line}; no other is started: {given_up}; {requests} failed"
        return f"{line}; another was ready after {self.seconds or 0.0:.2f} s; {requests} resumed"


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


class LoadHistory:
    """Adds what lost engines have counted to the load of the current one. `current` is the sum. Not thread-safe."""

    def __init__(self) -> None:
        self._lost = EngineLoad()
        self.current = EngineLoad()

    def reported(self, load: EngineLoad) -> None:
        """The current engine has reported its load."""
        lost = self._lost
        if lost.num_steps:
            totals = {name: getattr(lost, name) + getattr(load, name) for name in TOTALS}
            load = msgspec.structs.replace(load, **totals, drafts=lost.drafts + load.drafts)
        self.current = load

    def engine_lost(self) -> None:
        """The current engine is gone, with its sequences and its KV cache."""
        totals = {name: getattr(self.current, name) for name in TOTALS}
        self._lost = self.current = EngineLoad(**totals, drafts=self.current.drafts, num_blocks=self.current.num_blocks)
