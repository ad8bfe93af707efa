"""Masks from a disposable process, for engines that share their process with something else, and for other servers."""

from __future__ import annotations

import itertools
import threading
from collections import OrderedDict, deque
from collections.abc import Callable
from collections.abc import Sequence as ReadOnly
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from onward.constraints.choice import ChoiceConstraint, Masks, Outcome
from onward.constraints.errors import GrammarError
from onward.constraints.process.client import MAX_LOAD_SECONDS, WORKER, GrammarProcess, ProcessLost
from onward.constraints.process.messages import Advance, Advanced, Compile, CompiledGrammar, Forget, Load
from onward.constraints.tokens import Encoder, Vocabulary

T = TypeVar("T")

CLOSED = "its engine was stopped"
MAX_REFUSED = 4096
MAX_ATTEMPTS = 3
"""Processes that somebody kills while they answer, before the grammar is refused."""


class _Tokenizer(Vocabulary, Encoder, Protocol):
    """What is needed of a tokenizer (`engine.model.Tokenizer`)."""


@dataclass(eq=False, slots=True, weakref_slot=True)
class RemoteCompiled:
    """Implements `choice.Compiled`: a grammar that the process knows by its number. `seconds`: of processor time that
    it took to compile."""

    number: int
    grammar: str
    end_tokens: frozenset[int]
    first: Masks
    seconds: float
    owner: RemoteGrammars

    def begin(self) -> RemoteChoice:
        return RemoteChoice(self)

    def __del__(self) -> None:
        self.owner.forget_grammar(self.number)


class RemoteChoice(ChoiceConstraint):
    """A choice whose matcher is in the process. Its tokens are here, so that another process can go on."""

    __slots__ = ("__weakref__", "compiled", "number", "sent", "tokens")

    def __init__(self, compiled: RemoteCompiled) -> None:
        super().__init__(compiled.first)
        self.compiled = compiled
        self.number = compiled.owner.next_number()
        self.tokens: list[int] = []
        self.sent = (0, 0)
        """Of which start of the process, and how many tokens it has. Used on the thread of `RemoteGrammars`."""

    def take(self, token: int) -> bool:
        self.tokens.append(token)
        known = self._take_forced(token)
        if known is None:
            self._detach(self.compiled.owner.advance(self))
        return bool(known)

    def replay(self, tokens: list[int]) -> None:
        self.tokens += tokens
        self._detach(self.compiled.owner.advance(self))

    @property
    def error(self) -> str:
        return ""

    def forced_tokens(self) -> list[int]:
        return [] if self._outcome is None else self._outcome.forced[self._offset :]

    def count_valid(self, tokens: list[int]) -> int:
        return 0

    def __del__(self) -> None:
        self.compiled.owner.forget_choice(self.number)


class RemoteGrammars:
    """The grammars of one model in a disposable process. Safe from every thread; `close` ends the process.

    Its thread and process start with the first grammar. A grammar that ends the process is refused from then on; all
    other choices go on in another process, which takes their tokens again.
    """

    def __init__(self, vocab_size: int, tokenizer: _Tokenizer, command: ReadOnly[str] = WORKER) -> None:
        self._vocab_size = vocab_size
        self._num_words = -(-vocab_size // 32)
        self._tokenizer = tokenizer
        self._process = GrammarProcess(command, self._encode)
        self._loaded = 0
        """The start of the process that has the vocabulary, and `_known`."""
        self._known: set[int] = set()
        """Grammars that the process has."""
        self._refused: OrderedDict[tuple[str, frozenset[int]], str] = OrderedDict()
        self._numbers = itertools.count(1)
        self._changed = threading.Condition()
        self._waiting: deque[Callable[[], None]] = deque()
        self._compiling: deque[Callable[[], None]] = deque()
        self._forgotten: deque[int] = deque()
        self._forgotten_grammars: deque[int] = deque()
        self._has_thread = self._is_closed = False

    def compile(self, grammar: str, end_tokens: frozenset[int]) -> RemoteCompiled:
        """Return a compiled grammar. Waits for it. Raises GrammarError."""
        future: Future[RemoteCompiled] = Future()
        self._put(self._compiling, future, lambda: self._compile(next(self._numbers), grammar, end_tokens))
        return future.result()

    def advance(self, choice: RemoteChoice) -> Future[Outcome]:
        """Return what follows the tokens of a choice."""
        future: Future[Outcome] = Future()
        length = len(choice.tokens)
        self._put(self._waiting, future, lambda: self._advance(choice, length))
        return future

    def next_number(self) -> int:
        """Return a number that was not used before."""
        return next(self._numbers)

    def forget_choice(self, number: int) -> None:
        """The choice has ended. May be called by the garbage collector."""
        self._forgotten.append(number)

    def forget_grammar(self, number: int) -> None:
        """No choice has the grammar any more. May be called by the garbage collector."""
        self._forgotten_grammars.append(number)

    def close(self) -> None:
        """End the process without waiting for it."""
        with self._changed:
            self._is_closed = True
            self._changed.notify()
        self._process.kill()

    def _put(self, queue: deque[Callable[[], None]], future: Future[T], work: Callable[[], T]) -> None:
        with self._changed:
            if self._is_closed:
                future.set_exception(GrammarError(CLOSED))
                return
            queue.append(lambda: _resolve(future, work))
            if not self._has_thread:
                self._has_thread = True
                threading.Thread(target=self._run, name="onward-masks", daemon=True).start()
            self._changed.notify()

    def _run(self) -> None:
        try:
            while True:
                with self._changed:
                    while not (self._waiting or self._compiling or self._is_closed):
                        self._changed.wait()
                    if self._is_closed:
                        break
                    work = (self._waiting or self._compiling).popleft()
                work()
                del work
        finally:
            self._process.close()
            for left in (*self._waiting, *self._compiling):
                left()

    def _compile(self, number: int, grammar: str, end_tokens: frozenset[int]) -> RemoteCompiled:
        reply = self._tried(grammar, end_tokens, lambda: self._compiled(number, grammar, end_tokens))
        return RemoteCompiled(number, grammar, end_tokens, self._masks(reply.masks), reply.seconds, self)

    def _advance(self, choice: RemoteChoice, length: int) -> Outcome:
        if length < len(choice.tokens):
            return Outcome(choice.first, [], False)  # another one follows, for all tokens
        compiled = choice.compiled
        try:
            return self._tried(compiled.grammar, compiled.end_tokens, lambda: self._advanced(choice, length))
        except GrammarError as error:
            return Outcome(choice.first, [], False, str(error))

    def _tried(self, grammar: str, end_tokens: frozenset[int], ask: Callable[[], T]) -> T:
        """Return an answer about a grammar, asked for again where somebody killed the process. Raises GrammarError, and
        refuses the grammar from then on, where it ended the process."""
        for num_left in reversed(range(MAX_ATTEMPTS)):
            reason = CLOSED if self._is_closed else self._refused.get((grammar, end_tokens))
            if reason is not None:
                raise GrammarError(reason)
            try:
                self._prepare()
                return ask()
            except ProcessLost as error:
                if error.was_killed and (num_left or self._is_closed):
                    continue
                self._refused[grammar, end_tokens] = str(error)
                if len(self._refused) > MAX_REFUSED:
                    self._refused.popitem(last=False)
                raise GrammarError(str(error)) from None
            except OSError as error:
                raise GrammarError(f"the process that computes it cannot be started: {error.strerror}") from None
        raise GrammarError(CLOSED)

    def _compiled(self, number: int, grammar: str, end_tokens: frozenset[int]) -> CompiledGrammar:
        """Have the process compile a grammar. Raises GrammarError, ProcessLost."""
        reply = self._process.call(Compile(number, grammar, sorted(end_tokens)))
        assert isinstance(reply, CompiledGrammar)
        if reply.problem:
            raise GrammarError(reply.problem)
        self._known.add(number)
        return reply

    def _advanced(self, choice: RemoteChoice, length: int) -> Outcome:
        """Have the process take the tokens of a choice. Raises GrammarError, ProcessLost."""
        compiled = choice.compiled
        if compiled.number not in self._known:
            self._compiled(compiled.number, compiled.grammar, compiled.end_tokens)
        start, num_sent = choice.sent
        tokens = choice.tokens[num_sent if start == self._loaded else 0 : length]
        reply = self._process.call(Advance(choice.number, compiled.number, tokens))
        assert isinstance(reply, Advanced)
        choice.sent = self._loaded, length
        masks = self._masks(reply.masks) if reply.masks else choice.first
        return Outcome(masks, reply.forced, reply.completes, reply.problem)

    def _prepare(self) -> None:
        """Have a process that has the vocabulary. Raises ProcessLost, OSError."""
        self._process.start()
        if self._loaded != self._process.starts:
            self._known.clear()
            self._process.call(self._vocabulary(), MAX_LOAD_SECONDS)
            self._loaded = self._process.starts
        if self._forgotten or self._forgotten_grammars:
            choices = [self._forgotten.popleft() for _ in range(len(self._forgotten))]
            grammars = [self._forgotten_grammars.popleft() for _ in range(len(self._forgotten_grammars))]
            self._known.difference_update(grammars)
            self._process.tell(Forget(choices, grammars))

    def _vocabulary(self) -> Load:
        tokenizer = self._tokenizer
        control = [
            token for token in range(self._vocab_size) if tokenizer.is_special(token) or token in tokenizer.end_tokens
        ]
        return Load([tokenizer.token_bytes(token) for token in range(self._vocab_size)], control)

    def _encode(self, text: str) -> list[int]:
        return self._tokenizer.encode(text, add_special_tokens=False)

    def _masks(self, packed: bytes) -> NDArray[np.uint32]:
        return np.frombuffer(packed, np.uint32).reshape(-1, self._num_words)


def _resolve(future: Future[T], work: Callable[[], T]) -> None:
    if not future.set_running_or_notify_cancel():
        return
    try:
        result = work()
    except GrammarError as error:
        future.set_exception(error)
    except Exception as error:
        future.set_exception(GrammarError(f"it cannot be computed: {error}"))
    else:
        future.set_result(result)
