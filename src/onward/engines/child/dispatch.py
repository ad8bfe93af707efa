"""Which jobs of a book the current engine has, and what is sent to it: for an engine that has all of them, until it is
lost with all of them."""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Sequence as ReadOnly
from typing import NamedTuple

from onward.engine.client import Cancel, CancelChoice, Command, Submit
from onward.engine.events import Event, Failed, FailureKind
from onward.engine.job import Job
from onward.engines.book import JobBook
from onward.engines.child.link import StepReport
from onward.engines.child.suspects import Suspects

POISONED = "engines were lost repeatedly as soon as they began to compute this job"


class Outcome(NamedTuple):
    """What follows from a report: `events` to deliver and `commands` to send, both in order. `crash_reason`: why the
    engine has crashed, if the report says so; it is then about to be lost."""

    events: list[Event]
    commands: list[Command]
    crash_reason: str | None = None


class Loss(NamedTuple):
    """What an engine's loss means. `failed`: the job that ended it, of the request `request`, if that is certain.
    `made_progress`: whether the engine delivered an event, or such a job was found."""

    made_progress: bool
    failed: Failed | None = None
    request: int | None = None


class Dispatch:
    """Decides what is sent to the current engine. Not thread-safe, no I/O.

    Commands that methods return are to be sent to the current engine in order; without an engine there are none.
    Between an `engine_lost` and the next `engine_ready` there is no engine.
    """

    def __init__(self) -> None:
        self.book = JobBook()
        self._unsent: dict[int, None] = {}
        """Live jobs that the current engine does not have, in order of submission."""
        self._resumed: set[int] = set()
        """Live jobs that the current engine got with `resume`."""
        self._suspects = Suspects()
        self._has_engine = False
        self._made_progress = False

    @property
    def num_sent(self) -> int:
        """Live jobs that the current engine has."""
        return len(self.book.jobs) - len(self._unsent)

    def add(self, jobs: ReadOnly[Job]) -> list[Command]:
        """Take the jobs of one request."""
        self.book.add(jobs)
        self._unsent.update((job.id, None) for job in jobs)
        return self._send()

    def cancel(self, request: int) -> list[Command]:
        """End the jobs of a request. Unknown ones are ignored."""
        ended = self.book.cancel(request)
        if not ended:
            return []
        self._forget(ended)
        commands: list[Command] = [Cancel(request)] if self._has_engine else []
        return commands + self._send()

    def cancel_choice(self, job: int, choice: int) -> list[Command]:
        """End a choice. Unknown and finished ones are ignored.

        An engine can cancel a choice only once it has sampled a token of it. One that was resumed may not have, so it
        is cancelled when its next event comes (see `accept`).
        """
        if not self.book.cancel_choice(job, choice):
            return []
        commands: list[Command] = []
        if self._has_engine and job not in self._unsent and job not in self._resumed:
            commands.append(CancelChoice(job, choice))
        if job not in self.book:
            self._forget([job])
        return commands + self._send()

    def accept(self, report: StepReport) -> Outcome:
        """Record a report of the current engine. Events of jobs and choices that have ended are dropped."""
        self._suspects.admitted(job for job in report.admitted if job in self.book)
        events, ended, strays, crash_reason = self.book.accept(report.events)
        if events:
            self._made_progress = True
            self._suspects.progressed({event.job for event in events})
        self._forget(ended)
        commands: list[Command] = [CancelChoice(*stray) for stray in strays]
        return Outcome(events, commands + self._send(), crash_reason)

    def engine_ready(self) -> list[Command]:
        """Return the commands that resume all live jobs in a new engine."""
        self._has_engine = True
        self._made_progress = False
        return self._send()

    def engine_lost(self) -> Loss:
        """The current engine is gone. The job that ended it, if that is certain, ends with it."""
        sent = [job for job in self.book.jobs if job not in self._unsent]
        culprit = self._suspects.engine_lost(sent)
        self._has_engine = False
        self._unsent = dict.fromkeys(self.book.jobs)
        self._resumed.clear()
        if culprit is None:
            return Loss(self._made_progress)
        request = self.book.journal(culprit).job.request
        self.book.fail([culprit], "poisoned", POISONED)
        self._forget([culprit])
        return Loss(True, Failed(culprit, "poisoned", POISONED), request)

    def fail_all(self, kind: FailureKind, reason: str) -> list[Event]:
        """End all live jobs, and return an event for each."""
        jobs = list(self.book.jobs)
        events = self.book.fail(jobs, kind, reason)
        self._forget(jobs)
        return events

    def _forget(self, ended: Iterable[int]) -> None:
        for job in ended:
            self._unsent.pop(job, None)
            self._resumed.discard(job)
            self._suspects.ended(job)

    def _send(self) -> list[Command]:
        """Return the Submit commands of the jobs that the current engine may have now, one per request."""
        if not self._has_engine or not self._unsent:
            return []
        selected = self._suspects.select(self._unsent)
        for job in selected:
            del self._unsent[job]
        jobs = self.book.remaining(selected)
        self._resumed.update(job.id for job in jobs if job.resume is not None)
        return [Submit(group) for group in _by_request(jobs)]


def _by_request(jobs: ReadOnly[Job]) -> list[list[Job]]:
    """Group jobs by request, in order."""
    groups: dict[int, list[Job]] = {}
    for job in jobs:
        groups.setdefault(job.request, []).append(job)
    return list(groups.values())
