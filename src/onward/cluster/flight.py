"""A flight: jobs of one request that are computed by one replica, and go on at another one if it is lost."""

from __future__ import annotations

import secrets
from collections.abc import Iterable
from collections.abc import Sequence as ReadOnly

from onward.engine.events import Decoded, Event, Failed, FailureKind
from onward.engine.job import Job
from onward.engine.journal import Journal
from onward.routing.prefix import prefix_keys

GROUP_CHOICES = 16
"""Choices from which the prompts of one request are spread over replicas: fewer are computed in about the time of
one."""
MAX_STRIKES = 4
"""Replicas that may be lost in a row, without an event in between, before it is taken for the jobs' own doing."""
MAX_LOSSES = 30
"""Calls in a row that deliver nothing, strikes or not, after which no replica answers: half a minute of silence."""
SUSPECT_STRIKES = 2
"""From here on a flight is tried beside no other suspect: what ends replicas is found, and what was lost beside it is
not blamed."""


class Flight:
    """The jobs of one call and what they have delivered. Not thread-safe.

    `fingerprint`: that of the replicas that may compute it. All its choices share one prefill each.
    """

    def __init__(self, jobs: ReadOnly[Job], fingerprint: str) -> None:
        self.request = jobs[0].request
        self.fingerprint = fingerprint
        self.call = 0
        self.replica: str | None = None
        """The replica of the last call."""
        self.keys = prefix_keys(jobs[0].prompt)
        """Those of the first prompt, for its replica; see `routing.prefix`."""
        self.num_strikes = 0
        self.num_losses = 0
        """Calls in a row that have delivered nothing, whether their replica was lost or gave the jobs back."""
        self.lost_at: set[str] = set()
        """Their replicas."""
        self._journals = {job.id: Journal(job) for job in jobs}

    @property
    def jobs(self) -> list[int]:
        """The ids of the jobs that have not ended."""
        return list(self._journals)

    @property
    def has_ended(self) -> bool:
        return not self._journals

    @property
    def num_choices(self) -> int:
        """Choices that have not ended."""
        return sum(journal.num_unfinished for journal in self._journals.values())

    @property
    def is_suspect(self) -> bool:
        """Whether it was lost so often that it may be the cause."""
        return self.num_strikes >= SUSPECT_STRIKES

    @property
    def is_unanswered(self) -> bool:
        """Whether there is no hope left that a replica answers."""
        return self.num_losses >= MAX_LOSSES

    @property
    def is_poisoned(self) -> bool:
        return self.num_strikes >= MAX_STRIKES

    def begin_call(self, replica: str) -> list[Job]:
        """A new call begins at a replica. Returns what is left to compute."""
        self.call = secrets.randbits(63)
        self.replica = replica
        return [job for journal in self._journals.values() if (job := journal.remaining()) is not None]

    def accept(self, events: Iterable[Event]) -> tuple[list[Event], str | None]:
        """Record events of the current call. Returns those to deliver, and a reason if its engine was lost.

        Events of jobs and choices that have ended are dropped. A Failed that only says that the engine has stopped is
        the loss of a replica, not the end of the job.
        """
        accepted: list[Event] = []
        lost = None
        for event in events:
            journal = self._journals.get(event.job)
            if journal is None:
                continue
            if isinstance(event, Failed):
                if event.kind in ("stopped", "crashed", "lost"):
                    lost = event.reason
                    continue
                del self._journals[event.job]
            elif not journal.record(event):
                continue
            elif isinstance(event, Decoded) and not journal.num_unfinished:
                del self._journals[event.job]
            accepted.append(event)
        if accepted:
            self.num_strikes = self.num_losses = 0
            self.lost_at.clear()
        return accepted, lost

    def lost(self, *, counts: bool = True) -> None:
        """The replica of the current call is lost, or has given the jobs back (`counts` is False: no strike)."""
        self.num_strikes += counts
        self.num_losses += 1
        if self.replica is not None:
            self.lost_at.add(self.replica)

    def cancel_choice(self, job: int, choice: int) -> bool:
        """End a choice. Returns whether the replica has to know: the job goes on, and had that choice."""
        journal = self._journals.get(job)
        if journal is None or not journal.is_running(choice):
            return False
        journal.finish(choice)
        if not journal.num_unfinished:
            del self._journals[job]
        return True

    def fail(self, kind: FailureKind, reason: str) -> list[Event]:
        """End all jobs; return an event for each."""
        events: list[Event] = [Failed(job, kind, reason) for job in self._journals]
        self._journals.clear()
        return events


def split_request(jobs: ReadOnly[Job], num_replicas: int) -> list[list[Job]]:
    """Return the jobs of one request in the groups that are computed by one replica each.

    All choices of a job stay together, for its prefill and its KV blocks. Jobs are spread only if there are many, in
    runs of neighbours: prompts of a batch that share a beginning often follow each other.
    """
    total = sum(len(job.unfinished_choices) for job in jobs)
    size = max(GROUP_CHOICES, -(-total // max(1, num_replicas)))
    groups: list[list[Job]] = [[]]
    num_choices = 0
    for job in jobs:
        if groups[-1] and num_choices + len(job.unfinished_choices) > size:
            groups.append([])
            num_choices = 0
        groups[-1].append(job)
        num_choices += len(job.unfinished_choices)
    return groups
