"""Where a choice ends: at an end token, a stop sequence, the end of its grammar, or its length.

The one rule for every engine: `step.Engine` asks it for each sampled token, and so do clients that have another server
sample. `completions` finds the same ends again, from the same tokens, for the text that clients get.
"""

from __future__ import annotations

from onward.constraints.choice import ChoiceConstraint
from onward.constraints.errors import GrammarError
from onward.engine.events import EngineFinishReason
from onward.engine.job import Job
from onward.engine.model import Vocabulary
from onward.text.assembler import Assembler, TokenRecord


class ChoiceEnd:
    """The end of one choice. Fed every token in order, also those that an earlier engine sampled. `constraint`: the
    state in the job's grammar, None without one; it is advanced here. Not thread-safe."""

    __slots__ = ("_assembler", "_constraint", "_job", "_num_taken", "_vocabulary")

    def __init__(self, job: Job, vocabulary: Vocabulary, constraint: ChoiceConstraint | None = None) -> None:
        self._job = job
        self._vocabulary = vocabulary
        self._constraint = constraint
        self._assembler = Assembler(job.rules, pending=job.pending) if job.rules.stops else None
        self._num_taken = 0

    def take(self, token: int) -> EngineFinishReason | None:
        """Take the next token. Returns the finish reason, None if the choice continues, or if its constraint is
        unsettled: then `settle` says. Not called after the end."""
        self._num_taken += 1
        if token in self._job.end_tokens:
            return "stop"
        if self._assembler is not None and self._completes_stop(self._assembler, token):
            return "stop"
        if self._constraint is not None:
            if self._constraint.take(token):
                return "stop"
            if self._constraint.is_unsettled:
                return None
        return "length" if self._num_taken >= self._job.max_tokens else None

    def replay(self, tokens: list[int]) -> None:
        """Take the first tokens, which an earlier engine sampled and none of which was the end."""
        self._num_taken += len(tokens)
        if self._assembler is not None:
            for token in tokens:
                self._completes_stop(self._assembler, token)
        if self._constraint is not None and tokens:
            self._constraint.replay(tokens)

    def settle(self) -> EngineFinishReason | None:
        """Return the finish reason after the tokens taken, for a constraint that was unsettled. Raises GrammarError
        where the choice cannot continue."""
        assert self._constraint is not None
        outcome = self._constraint.settle()
        if outcome.completes and not outcome.forced:
            return "stop"
        if self._num_taken >= self._job.max_tokens:
            return "length"
        if outcome.error:
            raise GrammarError(outcome.error)
        return None

    def _completes_stop(self, assembler: Assembler, token: int) -> bool:
        record = TokenRecord(token, self._vocabulary.token_bytes(token), 0.0, ())
        assembler.feed(record, special=self._vocabulary.is_special(token))
        return assembler.stopped
