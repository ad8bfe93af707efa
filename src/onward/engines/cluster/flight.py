"""Flights: jobs of one request that one replica computes, which one that is, and what follows when it is lost."""

from __future__ import annotations

import secrets
from collections.abc import Collection, Iterable, Iterator, Mapping
from collections.abc import Sequence as ReadOnly
from contextlib import contextmanager

from onward.engine.events import Event
from onward.engine.job import Job
from onward.engines.book import JobBook
from onward.engines.cluster.members import Member
from onward.engines.losses import Losses, LossPolicy
from onward.routing import Router, prefix_keys

GROUP_CHOICES = 16
"""Choices from which the prompts of one request are spread over replicas: fewer are computed in about the time of
one."""
POLICY = LossPolicy(suspect_strikes=2, max_strikes=4, max_losses=30)
"""Four replicas that were lost in a row without an event in between are blamed on the jobs; 30 calls that deliver
nothing, whatever the cause, mean that no replica answers: half a minute of silence."""


class Flight:
    """The jobs of one call, which `book` has, and what became of its calls. Not thread-safe.

    `fingerprint`: that of the replicas that may compute it. All its choices share one prefill each.
    """

    def __init__(self, jobs: ReadOnly[Job], fingerprint: str, book: JobBook) -> None:
        self.request = jobs[0].request
        self.fingerprint = fingerprint
        self.call = 0
        self.replica: str | None = None
        """The replica of the last call."""
        self.keys = prefix_keys(jobs[0].prompt)
        """Those of the first prompt, for its replica; see `routing`."""
        self.losses = Losses(POLICY)
        self.lost_at: set[str] = set()
        """The replicas that were lost in a row."""
        self._jobs = dict.fromkeys(job.id for job in jobs)
        self._book = book
        book.add(jobs)

    @property
    def jobs(self) -> list[int]:
        """The ids of the jobs that have not ended, in order of submission."""
        return [job for job in self._jobs if job in self._book]

    @property
    def has_ended(self) -> bool:
        return not any(job in self._book for job in self._jobs)

    @property
    def num_choices(self) -> int:
        """Choices that have not ended."""
        return sum(self._book.journal(job).num_unfinished for job in self.jobs)

    def begin_call(self, replica: str) -> list[Job]:
        """Begin a new call at a replica. Returns what is left to compute."""
        self.call = secrets.randbits(63)
        self.replica = replica
        return self._book.remaining(self.jobs)

    def accept(self, events: Iterable[Event]) -> tuple[list[Event], str | None]:
        """Record events of the current call. Returns those to deliver, and a reason if its engine was lost."""
        accepted = self._book.accept(event for event in events if event.job in self._jobs)
        if accepted.deliver:
            self.losses.progressed()
            self.lost_at.clear()
        return accepted.deliver, accepted.lost

    def lost(self, *, is_strike: bool = True) -> None:
        """The replica of the current call is lost, or has given the jobs back (no strike)."""
        self.losses.lost(is_strike=is_strike)
        if self.replica is not None:
            self.lost_at.add(self.replica)


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


class Placement:
    """Which replica computes a flight: prefix affinity with bounded load, as this face and the replicas know the loads.
    Not thread-safe."""

    def __init__(self) -> None:
        self._router = Router()
        self._reports: Mapping[str, int] = {}
        """The number of the last report of each replica."""

    def update(self, members: Mapping[str, Member]) -> None:
        """Record the present replicas."""
        for name, member in members.items():
            if self._reports.get(name) != member.report:
                self._router.reported(name, member.load.num_running + member.load.num_waiting)
        self._reports = {name: member.report for name, member in members.items()}
        rows = {name: member.info.engine.max_rows for name, member in members.items()}
        self._router.set_replicas(members, rows)

    def choose(self, flight: Flight, able: Collection[str], silent: Collection[str]) -> str:
        """Return the best of the replicas that are `able` to compute a flight: at least one, of the last update. Those
        that it has lost, and those that are silent, are considered only if there is no other."""
        heard = set(able) - set(silent)
        possible = heard - flight.lost_at or heard or able
        return self._router.rank(flight.keys, flight.num_choices, possible, 1)[0]

    @contextmanager
    def load_of(self, flight: Flight, replica: str) -> Iterator[None]:
        """Count a flight as the load of a replica until the end of the with statement."""
        size = flight.num_choices
        self._router.begin(replica, flight.keys, size)
        try:
            yield
        finally:
            self._router.end(replica, size)

    def load(self, replica: str) -> int:
        """The load of a replica: choices."""
        return self._router.load(replica)
