"""Finds the job that ends engines: by who was running without progress whenever one was lost.

A job that an engine had begun to compute, but that delivered no event before the engine was lost, gets a strike; any
event clears it. After two strikes in a row it is a suspect. Suspects are held back and tried one at a time beside the
other jobs. A suspect during whose trial the engine is lost is tried once more, alone; if the engine is lost again, no
other job can have been the cause. A suspect that makes progress is cleared. So engines that are killed at random end
no job, unless that happens four times in a row before it makes any progress.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from onward.engines.losses import Losses, LossPolicy

POLICY = LossPolicy(suspect_strikes=2, suspect_losses=8)
"""One strike may be bad luck, and being tried delays a job. More losses than strikes make a suspect of one that no
engine had begun (it may end them while it is queued or admitted): in a long queue most jobs have nothing to do with a
loss. How often a suspect is tried is not a number: see above."""


class Suspects:
    """Strikes and trials of live jobs, by job id. Not thread-safe.

    `trial` is the suspect that is being tried in the current engine, None if there is none.
    """

    def __init__(self) -> None:
        self.trial: int | None = None
        self._alone: int | None = None
        """The suspect that was lost with an engine during its trial: its next trial has no job beside it."""
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
