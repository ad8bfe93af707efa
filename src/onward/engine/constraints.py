"""Constrained choices: their grammars, and the masks of a step, computed while it runs.

No step waits longer than MAX_WAIT_SECONDS for a mask: a choice whose masks take longer leaves the step, and continues
in a later one.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from concurrent.futures import FIRST_COMPLETED, Future, wait
from concurrent.futures import TimeoutError as FutureTimeoutError
from typing import TYPE_CHECKING

from onward.constraints.choice import ChoiceConstraint, Compiled, Masks
from onward.constraints.grammars import EndTokens, Grammars
from onward.constraints.local import LocalChoice, LocalGrammars
from onward.constraints.process.masks import RemoteGrammars
from onward.constraints.tokens import LibraryTokens, library_tokens
from onward.engine.job import Job

if TYPE_CHECKING:
    from onward.engine.model import Tokenizer, Vocabulary
    from onward.engine.scheduler import ScheduledSequence
    from onward.engine.sequence import Sequence

MAX_WAIT_SECONDS = 0.005
"""How long a step waits for masks."""
MAX_IDLE_SECONDS = 0.02
"""How long the engine waits where nothing else is to be computed; then it looks for commands."""

LoadTokenizer = Callable[[], "Tokenizer"]
"""Loads the model's tokenizer, which takes a second or more for large vocabularies. May be called on any thread."""


class Constraints:
    """All grammars of an engine. Owns threads, from the first constrained step on, or a process; `close` ends them."""

    def __init__(
        self,
        vocab_size: int,
        vocabulary: Vocabulary,
        load_tokenizer: LoadTokenizer | None,
        *,
        in_disposable_process: bool = False,
    ) -> None:
        """`load_tokenizer` is called once, for the first grammar; None: no job has one. `in_disposable_process`:
        compile grammars and compute masks there, because this process must not die."""
        self._vocab_size = vocab_size
        self._vocabulary = vocabulary
        self._load_tokenizer = load_tokenizer
        self._local = None if in_disposable_process else LocalGrammars(self._load_tokens)
        self._remote: RemoteGrammars | None = None
        self._loading = threading.Lock()
        self._grammars = Grammars(self._compile_elsewhere if self._local is None else self._local.compile)
        self._batch: Future[list[Masks]] | None = None
        self._places: dict[int, int] = {}
        """The place of each sequence in the batch of the step, by sequence id."""
        self._left: set[int] = set()
        """The sequences of the step that leave it, by id."""

    def is_ready(self, job: Job) -> bool:
        """Whether `prepare` returns at once. Any thread."""
        return not job.grammar or self._grammars.has(job.grammar, job.end_tokens)

    def prepare(self, job: Job) -> Compiled:
        """Return a job's compiled grammar. May take a second, the first time longer. Any thread. Raises
        GrammarError."""
        return self._grammars.compiled(job.grammar, job.end_tokens)

    def settle(self, running: Iterable[Sequence]) -> list[Sequence]:
        """Return the sequences for whose last tokens the result is known, which the caller settles. Waits briefly for
        those that are not slow."""
        unsettled = [each for each in running if each.constraint is not None and each.constraint.is_unsettled]
        if not unsettled:
            return []
        wait(self._pending(each for each in unsettled if not _of(each).is_slow), MAX_WAIT_SECONDS)
        for sequence in unsettled:
            _of(sequence).is_slow |= not _of(sequence).is_ready
        return [each for each in unsettled if _of(each).is_ready]

    def wait_for_any(self, running: Iterable[Sequence]) -> None:
        """Wait briefly until one of these sequences can continue."""
        unsettled = (each for each in running if each.constraint is not None and each.constraint.is_unsettled)
        wait(self._pending(unsettled), MAX_IDLE_SECONDS, FIRST_COMPLETED)

    def start(self, step: Iterable[ScheduledSequence]) -> None:
        """Begin to compute the masks of a step on another thread. The matchers must not be used until `late`."""
        self._finish_batch()
        wanted: list[tuple[LocalChoice, list[int]]] = []
        for scheduled in step:
            constraint = scheduled.sequence.constraint
            if not isinstance(constraint, LocalChoice) or scheduled.is_prefill or not scheduled.num_outputs:
                continue
            if constraint.exceeds_steps:
                constraint.leave_step()
                self._left.add(scheduled.sequence.id)
            elif constraint.known_masks(1) is None:
                self._places[scheduled.sequence.id] = len(wanted)
                wanted.append((constraint, scheduled.draft.tokens if scheduled.draft else []))
        if wanted:
            assert self._local is not None
            self._batch = self._local.compute(wanted)

    def late(self, step: Iterable[ScheduledSequence]) -> set[int]:
        """Wait briefly for the masks of the step. Returns the ids of the sequences that leave it."""
        left, self._left = self._left, set()
        if self._batch is None:
            return left
        batch: Future[list[Masks]] | None = None
        try:
            self._batch.result(MAX_WAIT_SECONDS)
        except FutureTimeoutError:
            batch = self._batch
        for scheduled in step:
            place, constraint = self._places.get(scheduled.sequence.id), scheduled.sequence.constraint
            if place is None or not isinstance(constraint, LocalChoice):
                continue
            if batch is not None or constraint.exceeds_steps:
                constraint.leave_step(batch, place)
                left.add(scheduled.sequence.id)
        if batch is not None:
            assert self._local is not None
            self._local.abandon()
            self._batch, self._places = None, {}
        return left

    def masks_of(self, sequence: Sequence, count: int) -> Masks | None:
        """Return the masks of a sequence that samples in this step, for the next token and `count - 1` drafted ones,
        valid until the next `start`; None if everything is allowed."""
        constraint = sequence.constraint
        if constraint is None:
            return None
        if not sequence.num_generated:
            return constraint.first
        known = constraint.known_masks(count)
        if known is not None:
            return known
        assert self._batch is not None
        return self._batch.result()[self._places[sequence.id]]

    def close(self) -> None:
        """End the threads and the process."""
        if self._local is not None:
            self._local.close()
        if self._remote is not None:
            self._remote.close()

    def _finish_batch(self) -> None:
        """Wait for masks that nobody needed, because the step failed."""
        if self._batch is not None:
            self._batch.result()
        self._batch, self._places, self._left = None, {}, set()

    def _compile_elsewhere(self, grammar: str, end_tokens: EndTokens) -> Compiled:
        with self._loading:
            if self._remote is None:
                assert self._load_tokenizer is not None, "an engine without a tokenizer takes no grammars"
                self._remote = RemoteGrammars(self._vocab_size, self._load_tokenizer())
        return self._remote.compile(grammar, end_tokens)

    def _load_tokens(self) -> LibraryTokens:
        assert self._load_tokenizer is not None, "an engine without a tokenizer takes no grammars"
        return library_tokens(self._vocab_size, self._vocabulary, self._load_tokenizer())

    @staticmethod
    def _pending(sequences: Iterable[Sequence]) -> list[Future[object]]:
        return [pending for each in sequences if (pending := _of(each).pending) is not None]  # type: ignore[misc]


def _of(sequence: Sequence) -> ChoiceConstraint:
    assert sequence.constraint is not None
    return sequence.constraint
