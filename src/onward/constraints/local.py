"""Grammars whose masks are computed in this process, which may die: that of an engine.

The masks of a step are computed together while the model computes. A choice that takes longer than a step may wait is
moved to a thread for such choices, where it delays no step, until it is fast again.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from heapq import heappop, heappush
from itertools import count

from onward.constraints.choice import ChoiceConstraint, Masks, Outcome
from onward.constraints.errors import GrammarError
from onward.constraints.grammar import LIMITS, STEP_LIMITS
from onward.constraints.matcher import MaskBuffer, Matcher, TokenTrie, UnlockedConsumer, is_complete, what_follows
from onward.constraints.tokens import LibraryTokens
from onward.sampling.masks import pack_mask

SLOW_SECONDS = 0.002
"""Processor time for a token, from which a choice is slow."""
VALIDATED_SECONDS = 0.0005
"""How long drafted tokens are compared with a grammar."""

Advance = Callable[[UnlockedConsumer], Outcome]


class LocalCompiled:
    """Implements `choice.Compiled`. `ends`: the mask of the end tokens; without any, the model cannot say that a text
    is complete. `fits_steps`: whether `matcher` has STEP_LIMITS."""

    def __init__(self, trie: TokenTrie, grammar: str, end_tokens: frozenset[int], slow: SlowMasks) -> None:
        """Compile a grammar. Raises GrammarError."""
        self.ends = pack_mask(end_tokens, trie.vocab_size)
        self.slow = slow
        self._compile = partial(trie.compile, grammar)
        self._unlimited: Matcher | None = None
        self.fits_steps = True
        try:
            self.matcher = self._compile(STEP_LIMITS)
            self.first = MaskBuffer.compute_here(self.matcher, self.ends)
        except GrammarError:
            self.fits_steps = False
        if not self.fits_steps or self.matcher.has_failed:
            self.fits_steps, self.matcher = False, self._compile(LIMITS)
            self.first = MaskBuffer.compute_here(self.matcher, self.ends)
        if self.matcher.error:
            raise GrammarError(self.matcher.error)

    def begin(self) -> LocalChoice:
        return LocalChoice(self)

    def unlimited(self) -> Matcher:
        """Return a matcher before its first token that has LIMITS. On the thread of `SlowMasks`. Raises
        GrammarError."""
        if not self.fits_steps:
            return self.matcher.copy()
        if self._unlimited is None:
            self._unlimited = self._compile(LIMITS)
        return self._unlimited.copy()


class LocalChoice(ChoiceConstraint):
    """A matcher of this process. While the constraint is unsettled, it belongs to the thread of `SlowMasks`.

    A matcher within STEP_LIMITS is used on the engine's thread. One that has exceeded them is replaced by one with
    LIMITS, which is used on the thread of `SlowMasks` only.
    """

    __slots__ = ("_tokens", "_waiting_tokens", "compiled", "cost", "fits_steps", "matcher")

    def __init__(self, compiled: LocalCompiled) -> None:
        super().__init__(compiled.first)
        self.compiled = compiled
        self.matcher = compiled.matcher.copy()
        self.fits_steps = compiled.fits_steps
        self._tokens: list[int] = []
        self._waiting_tokens: list[int] = []
        """Forced tokens that were taken, and that the matcher has not."""
        self.cost = 0.0
        """Seconds that the last token took."""

    def take(self, token: int) -> bool:
        self._tokens.append(token)
        known = self._take_forced(token)
        if known is not None:
            self._waiting_tokens.append(token)
            return known
        tokens, self._waiting_tokens = [*self._waiting_tokens, token], []
        if self.is_slow or not self.fits_steps:
            self._leave(tokens)
            return False
        self._outcome = None
        started = time.thread_time()
        for each in tokens:
            self.matcher.consume(each)
        completes = is_complete(self.matcher, self.compiled.ends)
        if completes:
            return True
        self.is_slow = time.thread_time() - started > SLOW_SECONDS
        if self.is_slow or self.matcher.has_failed:
            self._leave([])
        return False

    def replay(self, tokens: list[int]) -> None:
        self._tokens += tokens
        self._leave(tokens)

    @property
    def error(self) -> str:
        return "" if self.is_unsettled else self.matcher.error

    @property
    def exceeds_steps(self) -> bool:
        """Whether the matcher needs more than STEP_LIMITS. Then `leave_step` has another one compute what follows."""
        return self.fits_steps and not self.is_unsettled and self.matcher.has_failed

    def forced_tokens(self) -> list[int]:
        if self._outcome is not None:
            return self._outcome.forced[self._offset :]
        return self.matcher.forced_tokens()

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

    def leave_step(self, batch: Future[list[Masks]] | None = None, place: int = 0) -> None:
        """Continue when the masks are there. They were not computed in time, at a place of a batch that another thread
        computes, or they take more than STEP_LIMITS."""
        self.is_slow = True
        if batch is None:
            self._leave([])
        else:
            self._detach(self.compiled.slow.submit_done(self, batch, place))

    def advance(self, tokens: list[int], consumer: UnlockedConsumer) -> Outcome:
        """Take tokens and compute what follows, on whatever thread owns the matcher. Raises GrammarError."""
        started = time.thread_time()
        consumer.consume(self.matcher, tokens)
        follows = what_follows(self.matcher, self.compiled.ends)
        if self.fits_steps and self.matcher.has_failed:
            self.matcher, self.fits_steps = self.compiled.unlimited(), False
            consumer.consume(self.matcher, self._tokens)
            follows = what_follows(self.matcher, self.compiled.ends)
        self.cost = time.thread_time() - started
        return follows._replace(seconds=self.cost)

    def _leave(self, tokens: list[int]) -> None:
        self._detach(self.compiled.slow.submit(self, tokens))


class SlowMasks:
    """A thread for choices that no step waits for, from the first one on; those that take least come first."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._waiting: list[tuple[float, int, Future[Outcome], Advance]] = []
        self._numbers = count()
        self._has_thread = self._is_closed = False

    def submit(self, choice: LocalChoice, tokens: list[int]) -> Future[Outcome]:
        """Return what follows the choice's tokens and these."""
        future: Future[Outcome] = Future()
        self._put(future, choice, tokens)
        return future

    def submit_done(self, choice: LocalChoice, batch: Future[list[Masks]], place: int) -> Future[Outcome]:
        """Return the masks at a place of a batch that another thread computes."""
        future: Future[Outcome] = Future()

        def done(finished: Future[list[Masks]]) -> None:
            if finished.exception() is not None or choice.matcher.has_failed:
                self._put(future, choice, [])
            else:
                future.set_result(Outcome(finished.result()[place][:1].copy(), [], False, seconds=2 * SLOW_SECONDS))

        batch.add_done_callback(done)
        return future

    def close(self) -> None:
        """End the thread after what it computes."""
        with self._changed:
            self._is_closed = True
            self._changed.notify()

    def _put(self, future: Future[Outcome], choice: LocalChoice, tokens: list[int]) -> None:
        with self._changed:
            advance: Advance = partial(_advanced, choice, tokens)
            heappush(self._waiting, (choice.cost, next(self._numbers), future, advance))
            if not self._has_thread:
                self._has_thread = True
                threading.Thread(target=self._run, name="onward-slow-masks", daemon=True).start()
            self._changed.notify()

    def _run(self) -> None:
        consumer = UnlockedConsumer()
        while True:
            with self._changed:
                while not self._waiting and not self._is_closed:
                    self._changed.wait()
                if self._is_closed:
                    return
                _, _, future, advance = heappop(self._waiting)
            future.set_result(advance(consumer))


def _advanced(choice: LocalChoice, tokens: list[int], consumer: UnlockedConsumer) -> Outcome:
    """Return what follows, or the error of a grammar."""
    try:
        return choice.advance(tokens, consumer)
    except GrammarError as error:
        return Outcome(choice.first, [], False, str(error))
    except BaseException as error:  # a panic in the library
        return Outcome(choice.first, [], False, f"the library that computes it failed: {type(error).__name__}")


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
        return LocalCompiled(self._trie, grammar, end_tokens, self._slow)

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
