"""Finds the job that ends engines: by who was running without progress whenever one was lost.

A job that an engine had begun to compute, but that delivered no event before the engine was lost, gets a strike; any
event clears it. After two strikes in a row it is a suspect. Suspects are held back and tried one at a time beside the
other jobs. A suspect during whose trial the engine is lost is tried once more, alone; if the engine is lost again, no
other job can have been the cause. A suspect that makes progress is cleared. So engines that are killed at random end
no job, unless that happens four times in a row before it makes any progress.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

MAX_STRIKES = 2
"""Strikes from which a job is a suspect: one may be bad luck, and being tried delays a job."""
MAX_WAITS = 8
"""Losses in a row from which a job is a suspect that no engine had begun: it may end them while it is queued or
admitted. More than MAX_STRIKES, because in a long queue most jobs have nothing to do with a loss."""


class Suspects:
    """Strikes and trials of live jobs, by job id. Not thread-safe.

    `trial` is the suspect that is being tried in the current engine, None if there is none.
    """

    def __init__(self) -> None:
        self.trial: int | None = None
        self._alone: int | None = None
        """The suspect that was lost with an engine during its trial: its next trial has no job beside it."""
        self._strikes: dict[int, int] = {}
        self._waits: dict[int, int] = {}
        """Losses in a row that each job saw waiting in the engine."""
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
        if self._strikes or self._waits:
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
        if not self._strikes:
            return list(unsent)
        if self._alone is not None:
            if self.trial is not None:
                return []
            self.trial = self._alone
            return [self._alone]
        selected = []
        for job in unsent:
            if self._strikes.get(job, 0) >= MAX_STRIKES:
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
            self._strikes[job] = self._strikes.get(job, 0) + 1
        for job in set(sent) - self._begun if has_begun else ():
            self._waits[job] = self._waits.get(job, 0) + 1
            if self._waits[job] >= MAX_WAITS:
                self._strikes[job] = MAX_STRIKES
        self.trial = None
        self._begun, self._progressed, self._has_ended = set(), set(), False
        return culprit

    def _clear(self, job: int) -> None:
        self._strikes.pop(job, None)
        self._waits.pop(job, None)
        if self.trial == job:
            self.trial = None
        if self._alone == job:
            self._alone = None
