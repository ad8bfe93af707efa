"""One loss of an engine, from the moment it is noticed until another one is ready: its line in the log, its counts."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from onward.engine.client import RecoveryCounts
from onward.engines.child.dispatch import Loss


@dataclass(slots=True)
class Incident:
    """A loss of the engine `name`. `num_requests`: those that go on. `lost_at` is a time of the supervisor's clock."""

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
