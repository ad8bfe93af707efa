"""The jobs of an engine that may be lost: a journal of each, from which follows what was delivered and what is left to
compute, so that another engine can resume it."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import replace
from typing import NamedTuple

from onward.engine.events import Decoded, Event, Failed, FailureKind, Prefilled
from onward.engine.job import Job, ResumedChoice


class Journal:
    """Records one job's events. Kept in the process of the client's connection, so that the job survives its engine.

    A resumed job emits exactly the remaining events: sampling depends on (seed, choice, position)
    and on the logits, which replayed decode steps reproduce bit by bit. Not thread-safe. Memory: one int per sampled
    token.
    """

    def __init__(self, job: Job) -> None:
        self.job = job
        self.is_prefilled = job.resume is not None
        self._tokens = [list(resumed.tokens) if (resumed := job.resumed(c)) else [] for c in range(job.num_choices)]
        self._unfinished = set(job.unfinished_choices)
        self._counts = {choice: _counts(job.resumed(choice)) for choice in self._unfinished}
        self._mu = {c: resumed.mu for c in self._unfinished if (resumed := job.resumed(c)) is not None}

    def tokens(self, choice: int) -> list[int]:
        """The tokens of a choice so far: the journal's own list, to which `record` appends."""
        return self._tokens[choice]

    @property
    def num_unfinished(self) -> int:
        """Choices that have not ended."""
        return len(self._unfinished)

    def is_running(self, choice: int) -> bool:
        """Whether a choice has not ended."""
        return choice in self._unfinished

    def record(self, event: Event) -> bool:
        """Record an event of this job. Events must be recorded in the order of delivery.

        Returns False, and records nothing, if it is of a choice that has ended. Called for every token.
        """
        if isinstance(event, Decoded):
            choice = event.choice
            if choice not in self._unfinished:
                return False
            tokens = self._tokens[choice]
            for sampled in event.tokens:
                tokens.append(sampled.token)
            if event.num_accepted_prediction_tokens or event.num_rejected_prediction_tokens:
                self._counts[choice] = (event.num_accepted_prediction_tokens, event.num_rejected_prediction_tokens)
            if event.mu is not None:
                self._mu[choice] = event.mu
            if event.finish_reason:
                self._unfinished.discard(choice)
        elif isinstance(event, Prefilled):
            self.is_prefilled = True
        return True

    def finish(self, choice: int) -> None:
        """Record that a choice has ended above the engine: it is not to be resumed."""
        self._unfinished.discard(choice)

    def remaining(self) -> Job | None:
        """Return the job to submit to another engine, None if every choice has finished.

        Failed events do not count: a job that failed with its engine can be resumed.
        """
        if not self._unfinished:
            return None
        if not self.is_prefilled:
            return self.job
        choices = range(self.job.num_choices)
        return replace(self.job, resume=tuple(self._resumed(choice) for choice in choices))

    def _resumed(self, choice: int) -> ResumedChoice | None:
        if choice not in self._unfinished:
            return None
        return ResumedChoice(tuple(self._tokens[choice]), *self._counts[choice], self._mu.get(choice))


def _counts(resumed: ResumedChoice | None) -> tuple[int, int]:
    if resumed is None:
        return 0, 0
    return resumed.num_accepted_prediction_tokens, resumed.num_rejected_prediction_tokens


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

    def record(self, event: Prefilled | Decoded) -> bool:
        """Record one event; return whether to deliver it. Those of jobs and choices that have ended are dropped."""
        journal = self._journals.get(event.job)
        if journal is None or not journal.record(event):
            return False
        if isinstance(event, Decoded) and event.finish_reason and not journal.num_unfinished:
            self._retire(event.job, [])
        return True

    def accept(self, events: Iterable[Event]) -> Accepted:
        """Record events. Those of jobs and choices that have ended are dropped. A Failed that only says that the engine
        has stopped is the loss of the engine, not the end of the job."""
        accepted = Accepted([], [], [])
        lost: str | None = None
        for event in events:
            if isinstance(event, Failed):
                if event.kind in ("stopped", "crashed", "lost"):
                    lost = event.reason
                elif event.job in self._journals:
                    accepted.deliver.append(event)
                    self._retire(event.job, accepted.ended)
            elif self.record(event):
                accepted.deliver.append(event)
                if event.job not in self._journals:
                    accepted.ended.append(event.job)
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
