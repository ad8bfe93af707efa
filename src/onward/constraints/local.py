"""Grammars whose masks are computed in this process, which may die: that of an engine.

The masks of a step are computed together while the model computes. A choice that takes longer than a step may wait is
moved to a thread of its own kind, whichever step that holds up no more, until it is fast again.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from heapq import heappop, heappush
from itertools import count

from numpy import uint32
from numpy.typing import NDArray

from onward.constraints.choice import TOO_SLOW, ChoiceConstraint, Masks, Outcome
from onward.constraints.errors import GrammarError
from onward.constraints.matcher import MaskBuffer, Matcher, TokenTrie
from onward.constraints.tokens import LibraryTokens
from onward.sampling.masks import pack_mask

SLOW_SECONDS = 0.002
"""Processor time for a token, from which a choice is slow."""
MAX_TOKEN_SECONDS = 0.2
"""Processor time for a token, from which a request is refused."""
VALIDATED_SECONDS = 0.0005
"""How long drafted tokens are compared with a grammar."""


@dataclass(slots=True)
class LocalCompiled:
    """Implements `choice.Compiled`. `ends`: the mask of the end tokens; without any (`has_ends`), the model cannot say
    that a text is complete."""

    matcher: Matcher
    ends: NDArray[uint32]
    has_ends: bool
    first: Masks
    slow: SlowMasks

    def begin(self) -> LocalChoice:
        return LocalChoice(self)


class LocalChoice(ChoiceConstraint):
    """A matcher of this process. While the constraint is unsettled, it belongs to the thread of `SlowMasks`."""

    __slots__ = ("compiled", "cost", "matcher")

    def __init__(self, compiled: LocalCompiled) -> None:
        super().__init__(compiled.first)
        self.compiled = compiled
        self.matcher = compiled.matcher.copy()
        self.cost = 0.0
        """Seconds that the last token took."""

    def take(self, token: int) -> bool:
        if self.is_slow:
            self._detach(self.compiled.slow.submit(self, [token]))
            return False
        self._outcome = None
        started = time.thread_time()
        is_complete = self._consume(token)
        if not is_complete and time.thread_time() - started > SLOW_SECONDS:
            self.is_slow = True
            self._detach(self.compiled.slow.submit(self, []))
        return is_complete

    @property
    def error(self) -> str:
        return "" if self.is_unsettled else self.matcher.error

    def forced_tokens(self) -> list[int]:
        return [] if self._outcome is not None else self.matcher.forced_tokens()

    def count_valid(self, tokens: list[int]) -> int:
        """As for every choice; compares more of them the less time they take."""
        if self._outcome is not None:
            return 0
        num_valid, length, end = 0, 1, time.perf_counter() + VALIDATED_SECONDS
        while num_valid < len(tokens):
            num_valid = self.matcher.count_valid(tokens[:length])
            if num_valid < min(length, len(tokens)) or time.perf_counter() > end:
                break
            length *= 4
        return num_valid

    def settle(self) -> Outcome:
        outcome = super().settle()
        self.is_slow = outcome.seconds > SLOW_SECONDS
        return outcome

    def leave_step(self, batch: Future[list[Masks]], place: int) -> None:
        """The masks of this choice were not computed in time: the choice goes on when they are."""
        self.is_slow = True
        self._detach(self.compiled.slow.submit_done(self, batch, place))

    def advance(self, tokens: list[int]) -> Outcome:
        """Take tokens and compute the mask behind them, on whatever thread owns the matcher."""
        started = time.thread_time()
        for token in tokens:
            if self._consume(token):
                return Outcome(self.first, [], True)
        masks = MaskBuffer.compute_here(self.matcher, self.compiled.ends)
        self.cost = time.thread_time() - started
        error = self.matcher.error or (TOO_SLOW if self.cost > MAX_TOKEN_SECONDS else "")
        return Outcome(masks, [], False, error, self.cost)

    def _consume(self, token: int) -> bool:
        self.matcher.consume(token)
        return self.matcher.is_complete or (not self.compiled.has_ends and self.matcher.has_ended())


class SlowMasks:
    """A thread for choices that no step waits for, from the first one on; those that take least come first."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._waiting: list[tuple[float, int, Future[Outcome], Callable[[], Outcome]]] = []
        self._numbers = count()
        self._has_thread = self._is_closed = False

    def submit(self, choice: LocalChoice, tokens: list[int]) -> Future[Outcome]:
        """Return what follows the choice's tokens and these."""

        def compute() -> Outcome:
            try:
                return choice.advance(tokens)
            except BaseException as error:  # a panic in the library
                return Outcome(choice.first, [], False, f"the library that computes it failed: {type(error).__name__}")

        return self._put(choice.cost, compute)

    def submit_done(self, choice: LocalChoice, batch: Future[list[Masks]], place: int) -> Future[Outcome]:
        """Return the masks at a place of a batch that another thread computes."""
        future: Future[Outcome] = Future()

        def done(finished: Future[list[Masks]]) -> None:
            masks = finished.result()[place][:1].copy()
            future.set_result(Outcome(masks, [], False, choice.matcher.error, 2 * SLOW_SECONDS))

        batch.add_done_callback(done)
        return future

    def close(self) -> None:
        """End the thread after what it computes."""
        with self._changed:
            self._is_closed = True
            self._changed.notify()

    def _put(self, cost: float, compute: Callable[[], Outcome]) -> Future[Outcome]:
        future: Future[Outcome] = Future()
        with self._changed:
            heappush(self._waiting, (cost, next(self._numbers), future, compute))
            if not self._has_thread:
                self._has_thread = True
                threading.Thread(target=self._run, name="onward-slow-masks", daemon=True).start()
            self._changed.notify()
        return future

    def _run(self) -> None:
        while True:
            with self._changed:
                while not self._waiting and not self._is_closed:
                    self._changed.wait()
                if self._is_closed:
                    return
                _, _, future, compute = heappop(self._waiting)
            future.set_result(compute())


class LocalGrammars:
    """Compiles grammars, and computes the masks of steps. `load_tokens` is called once, for the first grammar."""

    def __init__(self, load_tokens: Callable[[], LibraryTokens]) -> None:
        self._load_tokens = load_tokens
        self._trie: TokenTrie | None = None
        self._loading = threading.Lock()
        self._slow = SlowMasks()
        self._buffer: MaskBuffer | None = None
        self._executor: ThreadPoolExecutor | None = None

    def compile(self, grammar: str, end_tokens: frozenset[int]) -> LocalCompiled:
        """Return a compiled grammar. Takes up to a second, the first time longer. Any thread. Raises
        GrammarError."""
        with self._loading:
            if self._trie is None:
                self._trie = TokenTrie(self._load_tokens())
        matcher = self._trie.compile(grammar)
        ends = pack_mask(end_tokens, self._trie.vocab_size)
        first = MaskBuffer.compute_here(matcher, ends)
        if matcher.error:
            raise GrammarError(matcher.error)
        return LocalCompiled(matcher, ends, bool(end_tokens), first, self._slow)

    def compute(self, wanted: Sequence[tuple[LocalChoice, list[int]]]) -> Future[list[Masks]]:
        """Return the masks of choices and their drafts, views that are valid until the next call. The matchers must not
        be used meanwhile."""
        assert self._trie is not None
        if self._buffer is None:
            self._buffer = MaskBuffer(self._trie)
        if self._executor is None:
            self._executor = ThreadPoolExecutor(1, thread_name_prefix="onward-masks")
        rows = [(choice.matcher, draft, choice.compiled.ends) for choice, draft in wanted]
        return self._executor.submit(self._buffer.compute, rows)

    def abandon(self) -> None:
        """Compute the masks of later steps elsewhere: a batch takes too long, and keeps its thread and buffer until it
        is done."""
        if self._executor is not None:
            self._executor.shutdown(wait=False)
        self._executor = self._buffer = None

    def close(self) -> None:
        """End the threads after what they compute."""
        self._slow.close()
        self.abandon()
