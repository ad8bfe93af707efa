"""Which jobs of a book the current engine has, what is sent to it, and which job ends engines. The engine has all of
them, until it is lost with all of them.

A job that an engine had begun to compute, but that delivered no event before the engine was lost, gets a strike; any
event clears it. After two strikes in a row it is a suspect. Suspects are held back and tried one at a time, while the
other jobs run. A suspect during whose trial the engine is lost is tried once more, alone; if the engine is lost again,
no other job can have been the cause. A suspect that makes progress is cleared. So engines that are killed at random end
no job, unless that happens four times in a row before it makes any progress.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from collections.abc import Sequence as ReadOnly
from typing import NamedTuple

from onward.engine.client import Cancel, CancelChoice, Command, Submit
from onward.engine.events import Event, Failed, FailureKind
from onward.engine.job import Job
from onward.engines.book import JobBook
from onward.engines.child.link import StepReport
from onward.engines.losses import Losses, LossPolicy

POLICY = LossPolicy(suspect_strikes=2, suspect_losses=8)
"""One strike may be bad luck, and being tried delays a job. More losses than strikes make a suspect of one that no
engine had begun (it may end them while it is queued or admitted): in a long queue most jobs have nothing to do with a
loss. How often a suspect is tried is not a number: see above."""

POISONED = "engines were lost repeatedly as soon as they began to compute this job"


class Suspects:
    """Strikes and trials of live jobs, by job id. Not thread-safe.

    `trial` is the suspect that is being tried in the current engine, None if there is none.
    """

    def __init__(self) -> None:
        self.trial: int | None = None
        self._alone: int | None = None
        """The suspect that was lost with an engine during its trial: its next trial is alone."""
        self._losses: dict[int, Losses] = {}
        """Those of jobs that were with an engine when it was lost, and have not made progress since."""
        self._begun: set[int] = set()
        """The live jobs that the current engine has begun to compute."""
        self._progressed: set[int] = set()
        """The live jobs that delivered an event from the current engine."""
        self._has_ended = False
        """Whether the current engine has begun to compute a job that has ended since."""

    def admitted(self, jobs: Iterable[int]) -> None:
        """The engine begins to compute these live jobs."""
        self._begun.update(jobs)

    def progressed(self, jobs: Collection[int]) -> None:
        """These live jobs have delivered an event: they are not, or no longer, suspected."""
        self._begun.update(jobs)
        self._progressed.update(jobs)
        if self._losses:
            for job in jobs:
                self._clear(job)

    def ended(self, job: int) -> None:
        """A job has ended or was cancelled."""
        self._has_ended |= job in self._begun
        self._begun.discard(job)
        self._progressed.discard(job)
        self._clear(job)

    def select(self, unsent: Iterable[int]) -> list[int]:
        """Return which of these live jobs, in order of submission, to send to the engine now. Begins a trial if one is
        due. A job that is to be tried alone is sent to a new engine before any other."""
        if not self._losses:
            return list(unsent)
        if self._alone is not None:
            if self.trial is not None:
                return []
            self.trial = self._alone
            return [self._alone]
        selected = []
        for job in unsent:
            if job in self._losses and self._losses[job].is_suspect:
                if self.trial is not None:
                    continue
                self.trial = job
            selected.append(job)
        return selected

    def engine_lost(self, sent: Collection[int]) -> int | None:
        """Count strikes, and return the job that ended the engine, None if that is not certain.

        `sent`: the live jobs that were sent to the engine. If it has begun none, it was lost while it received them,
        and all of them count as begun.
        """
        has_begun = bool(self._begun or self._has_ended)
        blamed = (self._begun if has_begun else set(sent)) - self._progressed
        culprit = None
        if self.trial is not None:
            culprit = self.trial if self.trial == self._alone else None
            self._alone = self.trial
        for job in blamed:
            self._lost(job, is_strike=True)
        for job in set(sent) - self._begun if has_begun else ():
            self._lost(job, is_strike=False)
        self.trial = None
        self._begun, self._progressed, self._has_ended = set(), set(), False
        return culprit

    def _lost(self, job: int, *, is_strike: bool) -> None:
        self._losses.setdefault(job, Losses(POLICY)).lost(is_strike=is_strike)

    def _clear(self, job: int) -> None:
        self._losses.pop(job, None)
        if self.trial == job:
            self.trial = None
        if self._alone == job:
            self._alone = None


class ReportOutcome(NamedTuple):
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

    def accept(self, report: StepReport) -> ReportOutcome:
        """Record a report of the current engine. Events of jobs and choices that have ended are dropped."""
        self._suspects.admitted(job for job in report.admitted if job in self.book)
        events, ended, strays, crash_reason = self.book.accept(report.events)
        if events:
            self._made_progress = True
            self._suspects.progressed({event.job for event in events})
        self._forget(ended)
        commands: list[Command] = [CancelChoice(*stray) for stray in strays]
        return ReportOutcome(events, commands + self._send(), crash_reason)

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
