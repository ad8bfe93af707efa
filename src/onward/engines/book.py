"""The jobs of an engine that may be lost: a journal of each, from which follows what was delivered and what is left."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import NamedTuple

from onward.engine.events import Decoded, Event, Failed, FailureKind
from onward.engine.job import Job
from onward.engine.journal import Journal


class Accepted(NamedTuple):
    """What follows from events: those to `deliver`, in order, and the jobs that have `ended` with them. `strays`: the
    choices, as (job, choice), that have ended and that the engine still computes. `lost`: why the engine is gone, if it
    says so itself: its jobs do not end."""

    deliver: list[Event]
    ended: list[int]
    strays: list[tuple[int, int]]
    lost: str | None = None


class JobBook:
    """Keeps the journal of every live job, by id, in order of submission. Not thread-safe, no I/O.

    A job is live from `add` until its last choice has ended, it has failed, or it was cancelled. Whoever holds the book
    delivers what it lets pass, and asks another engine for what `remaining` says.
    """

    def __init__(self) -> None:
        self._journals: dict[int, Journal] = {}
        self._requests: dict[int, set[int]] = {}
        """The live jobs of each request."""

    def __contains__(self, job: int) -> bool:
        return job in self._journals

    @property
    def jobs(self) -> Collection[int]:
        """The live jobs, in order of submission. A view."""
        return self._journals.keys()

    @property
    def num_choices(self) -> int:
        """Choices of live jobs that have not ended."""
        return sum(journal.num_unfinished for journal in self._journals.values())

    @property
    def num_requests(self) -> int:
        return len(self._requests)

    def journal(self, job: int) -> Journal:
        """The journal of a live job."""
        return self._journals[job]

    def add(self, jobs: Iterable[Job]) -> None:
        """Take jobs."""
        for job in jobs:
            self._journals[job.id] = Journal(job)
            self._requests.setdefault(job.request, set()).add(job.id)

    def remaining(self, jobs: Iterable[int]) -> list[Job]:
        """Return what is left to compute of those of these jobs that are live, in order."""
        found = (self._journals[job].remaining() for job in jobs if job in self._journals)
        return [job for job in found if job is not None]

    def accept(self, events: Iterable[Event]) -> Accepted:
        """Record events. Those of jobs and choices that have ended are dropped. A Failed that only says that the engine
        has stopped is the loss of the engine, not the end of the job."""
        accepted = Accepted([], [], [])
        lost: str | None = None
        for event in events:
            journal = self._journals.get(event.job)
            if isinstance(event, Failed):
                if event.kind in ("stopped", "crashed", "lost"):
                    lost = event.reason
                elif journal is not None:
                    accepted.deliver.append(event)
                    self._retire(event.job, accepted.ended)
            elif journal is not None and journal.record(event):
                accepted.deliver.append(event)
                if not journal.num_unfinished:
                    self._retire(event.job, accepted.ended)
            elif isinstance(event, Decoded) and not event.finish_reason:
                accepted.strays.append((event.job, event.choice))
        return accepted if lost is None else accepted._replace(lost=lost)

    def cancel(self, request: int) -> list[int]:
        """End the jobs of a request, and return them. Unknown ones are ignored."""
        ended: list[int] = []
        for job in list(self._requests.get(request, ())):
            self._retire(job, ended)
        return ended

    def cancel_choice(self, job: int, choice: int) -> bool:
        """End a choice. Returns whether it was running: unknown and finished ones are ignored."""
        journal = self._journals.get(job)
        if journal is None or not journal.is_running(choice):
            return False
        journal.finish(choice)
        if not journal.num_unfinished:
            self._retire(job, [])
        return True

    def fail(self, jobs: Iterable[int], kind: FailureKind, reason: str) -> list[Event]:
        """End those of these jobs that are live; return an event for each, in order."""
        failing = [job for job in jobs if job in self._journals]
        for job in failing:
            self._retire(job, [])
        return [Failed(job, kind, reason) for job in failing]

    def _retire(self, job: int, ended: list[int]) -> None:
        request = self._journals.pop(job).job.request
        ended.append(job)
        self._requests[request].discard(job)
        if not self._requests[request]:
            del self._requests[request]
