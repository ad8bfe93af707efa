"""The journal of a job: what its engine has reported, so that another engine can resume it."""

from __future__ import annotations

from dataclasses import replace

from onward.engine.events import Decoded, Event, Prefilled
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
