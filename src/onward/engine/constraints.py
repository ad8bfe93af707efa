"""Constrained choices: their grammars, and the masks of a step, computed beside it."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from threading import Lock
from typing import TYPE_CHECKING

from onward.constraints.grammar import GrammarError
from onward.constraints.matcher import MaskBuffer, TokenTrie, Wanted
from onward.constraints.tokens import LibraryTokens
from onward.engine.constraint import Compiled, Masks
from onward.engine.job import Job
from onward.sampling.masks import pack_mask

if TYPE_CHECKING:
    from onward.engine.model import Tokenizer, Vocabulary
    from onward.engine.scheduler import ScheduledSequence
    from onward.engine.sequence import Sequence

MAX_COMPILED_GRAMMARS = 128
MAX_INLINE_CHOICES = 2
"""Choices whose masks are computed at once: another thread would take longer to wake."""

LoadTokenizer = Callable[[], "Tokenizer"]
"""Loads the model's tokenizer, which takes a second or more for large vocabularies. May be called on any thread."""


class Constraints:
    """All grammars of an engine. Owns a thread, from the first constrained step on; `close` ends it."""

    def __init__(self, vocab_size: int, vocabulary: Vocabulary, load_tokenizer: LoadTokenizer | None) -> None:
        """`load_tokenizer` is called once, for the first grammar; None: no job has one."""
        self._load_tokenizer = load_tokenizer
        self._vocab_size = vocab_size
        self._vocabulary = vocabulary
        self._lock = Lock()
        """Guards `_compiled`; held for microseconds."""
        self._compiling = Lock()
        """Held while a grammar is compiled. Guards `_trie`."""
        self._trie: TokenTrie | None = None
        self._compiled: OrderedDict[tuple[str, frozenset[int]], Compiled | GrammarError] = OrderedDict()
        self._executor: ThreadPoolExecutor | None = None
        self._buffer: MaskBuffer | None = None
        self._step: dict[int, int] = {}
        """The place of each constrained sequence in the step's masks, by sequence id."""
        self._masks: Future[list[Masks]] | None = None

    def is_ready(self, job: Job) -> bool:
        """Whether `prepare` returns at once. Any thread."""
        return not job.grammar or (job.grammar, job.end_tokens) in self._compiled

    def prepare(self, job: Job) -> Compiled:
        """Return a job's compiled grammar. May take a second, the first time longer. Any thread. Raises
        GrammarError."""
        found = self._known(job)
        if found is None:
            with self._compiling:
                found = self._known(job)
                if found is None:
                    found = self._compile(job)
                    self._keep(job, found)
        if isinstance(found, GrammarError):
            raise found
        return found

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
            assert self._trie is not None
            self._buffer = MaskBuffer(self._trie)
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

    def _known(self, job: Job) -> Compiled | GrammarError | None:
        with self._lock:
            found = self._compiled.get((job.grammar, job.end_tokens))
            if found is not None:
                self._compiled.move_to_end((job.grammar, job.end_tokens))
            return found

    def _keep(self, job: Job, compiled: Compiled | GrammarError) -> None:
        with self._lock:
            self._compiled[job.grammar, job.end_tokens] = compiled
            if len(self._compiled) > MAX_COMPILED_GRAMMARS:
                self._compiled.popitem(last=False)

    def _make_trie(self) -> TokenTrie:
        own = self._vocabulary
        assert self._load_tokenizer is not None, "an engine without a tokenizer takes no grammars"
        tokenizer = self._load_tokenizer()
        tokens = LibraryTokens(
            self._vocab_size,
            own.token_bytes,
            lambda token: own.is_special(token) or token in own.end_tokens,
            lambda text: tokenizer.encode(text, add_special_tokens=False),
        )
        return TokenTrie(tokens)

    def _compile(self, job: Job) -> Compiled | GrammarError:
        if self._trie is None:
            self._trie = self._make_trie()
        try:
            matcher = self._trie.compile(job.grammar)
        except GrammarError as error:
            return error
        ends = pack_mask(job.end_tokens, self._vocab_size)
        [first] = MaskBuffer(self._trie).compute([(matcher, [], ends)])
        if matcher.error:
            return GrammarError(matcher.error)
        return Compiled(matcher, ends, bool(job.end_tokens), first)
