"""Constrained choices: their grammars, and the masks of a step, computed beside it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING

from onward.constraints.choice import Compiled, Masks
from onward.constraints.grammars import Grammars
from onward.constraints.matcher import MaskBuffer, Wanted
from onward.constraints.tokens import LibraryTokens, library_tokens
from onward.engine.job import Job

if TYPE_CHECKING:
    from onward.engine.model import Tokenizer, Vocabulary
    from onward.engine.scheduler import ScheduledSequence
    from onward.engine.sequence import Sequence

MAX_INLINE_CHOICES = 2
"""Choices whose masks are computed at once: another thread would take longer to wake."""

LoadTokenizer = Callable[[], "Tokenizer"]
"""Loads the model's tokenizer, which takes a second or more for large vocabularies. May be called on any thread."""


class Constraints:
    """All grammars of an engine. Owns a thread, from the first constrained step on; `close` ends it."""

    def __init__(self, vocab_size: int, vocabulary: Vocabulary, load_tokenizer: LoadTokenizer | None) -> None:
        """`load_tokenizer` is called once, for the first grammar; None: no job has one."""

        def load() -> LibraryTokens:
            assert load_tokenizer is not None, "an engine without a tokenizer takes no grammars"
            return library_tokens(vocab_size, vocabulary, load_tokenizer())

        self._grammars = Grammars(load)
        self._executor: ThreadPoolExecutor | None = None
        self._buffer: MaskBuffer | None = None
        self._step: dict[int, int] = {}
        """The place of each constrained sequence in the step's masks, by sequence id."""
        self._masks: Future[list[Masks]] | None = None

    def is_ready(self, job: Job) -> bool:
        """Whether `prepare` returns at once. Any thread."""
        return not job.grammar or self._grammars.has(job.grammar, job.end_tokens)

    def prepare(self, job: Job) -> Compiled:
        """Return a job's compiled grammar. May take a second, the first time longer. Any thread. Raises
        GrammarError."""
        return self._grammars.compiled(job.grammar, job.end_tokens)

    def start(self, step: Iterable[ScheduledSequence]) -> None:
        """Begin to compute the masks of a step, on another thread unless they are few. The matchers must not be used
        until `masks_of`."""
        self._wait()
        self._step = {}
        wanted: list[Wanted] = []
        for scheduled in step:
            constraint = scheduled.sequence.constraint
            if constraint is None or scheduled.is_prefill or not scheduled.num_outputs:
                continue
            self._step[scheduled.sequence.id] = len(wanted)
            draft = scheduled.draft.tokens if scheduled.draft else []
            wanted.append((constraint.matcher, draft, constraint.compiled.ends))
        if not wanted:
            return
        if self._buffer is None:
            self._buffer = MaskBuffer(self._grammars.trie)
        if len(wanted) <= MAX_INLINE_CHOICES:
            self._masks = Future()
            self._masks.set_result(self._buffer.compute(wanted))
            return
        if self._executor is None:
            self._executor = ThreadPoolExecutor(1, thread_name_prefix="onward-masks")
        self._masks = self._executor.submit(self._buffer.compute, wanted)

    def masks_of(self, sequence: Sequence) -> Masks | None:
        """Return the masks of a sequence that samples in this step, valid until the next `start`; None if everything is
        allowed. Waits until they are computed."""
        constraint = sequence.constraint
        if constraint is None:
            return None
        if not sequence.num_generated:
            return constraint.compiled.first
        assert self._masks is not None
        return self._masks.result()[self._step[sequence.id]]

    def close(self) -> None:
        """End the thread."""
        if self._executor is not None:
            self._executor.shutdown()

    def _wait(self) -> None:
        """Wait for masks that nobody needed, because the step failed."""
        if self._masks is not None:
            self._masks.result()
            self._masks = None
