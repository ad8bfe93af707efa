"""The jobs of an engine that may be lost: what each has delivered, and which of them the current engine has."""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Sequence as ReadOnly
from typing import NamedTuple

from onward.engine.client import Cancel, CancelChoice, Command, Submit
from onward.engine.events import Decoded, Event, Failed, FailureKind
from onward.engine.job import Job
from onward.engine.journal import Journal
from onward.engine_clients.link import StepReport
from onward.engine_clients.suspects import Suspects

POISONED = "engines were lost repeatedly as soon as they began to compute this job"


class Accepted(NamedTuple):
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


class JobBook:
    """Keeps the journal of every live job, and decides what is sent to the current engine. Not thread-safe, no I/O.

    A job is live from `add` until its last choice has ended, it has failed, or its request was cancelled. Commands that
    methods return are to be sent to the current engine in order; without an engine there are none. Between an
    `engine_lost` and the next `engine_ready` there is no engine.
    """

    def __init__(self) -> None:
        self._journals: dict[int, Journal] = {}
        """By job id, in order of submission."""
        self._requests: dict[int, set[int]] = {}
        """The live jobs of each request."""
        self._request_of: dict[int, int] = {}
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
        return len(self._journals) - len(self._unsent)

    @property
    def num_choices(self) -> int:
        """Choices of live jobs that have not ended."""
        return sum(journal.num_unfinished for journal in self._journals.values())

    @property
    def num_requests(self) -> int:
        return len(self._requests)

    def add(self, jobs: Iterable[Job]) -> list[Command]:
        """Take the jobs of one request."""
        for job in jobs:
            self._journals[job.id] = Journal(job)
            self._requests.setdefault(job.request, set()).add(job.id)
            self._request_of[job.id] = job.request
            self._unsent[job.id] = None
        return self._send()

    def cancel(self, request: int) -> list[Command]:
        """End the jobs of a request. Unknown ones are ignored."""
        jobs = self._requests.get(request)
        if jobs is None:
            return []
        for job in list(jobs):
            self._retire(job)
        commands: list[Command] = [Cancel(request)] if self._has_engine else []
        return commands + self._send()

    def cancel_choice(self, job: int, choice: int) -> list[Command]:
        """End a choice. Unknown and finished ones are ignored.

        An engine can cancel a choice only once it has sampled a token of it. One that was resumed may not have, so it
        is cancelled when its next event comes (see `accept`).
        """
        journal = self._journals.get(job)
        if journal is None or not journal.is_running(choice):
            return []
        commands: list[Command] = []
        if self._has_engine and job not in self._unsent and job not in self._resumed:
            commands.append(CancelChoice(job, choice))
        journal.finish(choice)
        if not journal.num_unfinished:
            self._retire(job)
        return commands + self._send()

    def accept(self, report: StepReport) -> Accepted:
        """Record a report of the current engine. Events of jobs and choices that have ended are dropped."""
        self._suspects.admitted(job for job in report.admitted if job in self._journals)
        events: list[Event] = []
        commands: list[Command] = []
        crash_reason: str | None = None
        ended: list[int] = []
        for event in report.events:
            if isinstance(event, Failed):
                if event.kind in ("stopped", "crashed", "lost"):
                    crash_reason = event.reason  # the job does not end: another engine resumes it
                elif event.job in self._journals and event.job not in ended:
                    events.append(event)
                    ended.append(event.job)
                continue
            journal = self._journals.get(event.job) if not ended or event.job not in ended else None
            if journal is not None and journal.record(event):
                events.append(event)
                if not journal.num_unfinished:
                    ended.append(event.job)
            elif isinstance(event, Decoded) and not event.finish_reason:
                commands.append(CancelChoice(event.job, event.choice))
        if events:
            self._made_progress = True
            self._suspects.progressed({event.job for event in events})
        for job in ended:
            self._retire(job)
        return Accepted(events, commands + self._send(), crash_reason)

    def engine_ready(self) -> list[Command]:
        """Return the commands that resume all live jobs in a new engine."""
        self._has_engine = True
        self._made_progress = False
        return self._send()

    def engine_lost(self) -> Loss:
        """The current engine is gone. The job that ended it, if that is certain, ends with it."""
        sent = [job for job in self._journals if job not in self._unsent]
        culprit = self._suspects.engine_lost(sent)
        self._has_engine = False
        self._unsent = dict.fromkeys(self._journals)
        self._resumed.clear()
        if culprit is None:
            return Loss(self._made_progress)
        request = self._request_of[culprit]
        self._retire(culprit)
        return Loss(True, Failed(culprit, "poisoned", POISONED), request)

    def fail_all(self, kind: FailureKind, reason: str) -> list[Event]:
        """End all live jobs, and return an event for each."""
        events: list[Event] = [Failed(job, kind, reason) for job in self._journals]
        for job in list(self._journals):
            self._retire(job)
        return events

    def _retire(self, job: int) -> None:
        del self._journals[job]
        self._unsent.pop(job, None)
        self._resumed.discard(job)
        self._suspects.ended(job)
        request = self._request_of.pop(job)
        self._requests[request].discard(job)
        if not self._requests[request]:
            del self._requests[request]

    def _send(self) -> list[Command]:
        """Return the Submit commands of the jobs that the current engine may have now, one per request."""
        if not self._has_engine or not self._unsent:
            return []
        jobs = []
        for job_id in self._suspects.select(self._unsent):
            del self._unsent[job_id]
            job = self._journals[job_id].remaining()
            assert job is not None, "a live job has an unfinished choice"
            if job.resume is not None:
                self._resumed.add(job_id)
            jobs.append(job)
        return [Submit(group) for group in _by_request(jobs)]


def _by_request(jobs: ReadOnly[Job]) -> list[list[Job]]:
    """Group jobs by request, in order."""
    groups: dict[int, list[Job]] = {}
    for job in jobs:
        groups.setdefault(job.request, []).append(job)
    return list(groups.values())
