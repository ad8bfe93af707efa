"""A thread and its disposable process, which has a model's vocabulary and works on one thing after the other."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from collections.abc import Sequence as ReadOnly
from concurrent.futures import Future
from typing import TypeVar

from onward.constraints.errors import GrammarError
from onward.constraints.process.client import MAX_LOAD_SECONDS, GrammarProcess
from onward.constraints.process.messages import Compile, CompiledGrammar, Forget, Load, WorkerReply, WorkerRequest

T = TypeVar("T")

CLOSED = "its engine was stopped"


class Lane:
    """Safe from every thread where not said otherwise. Thread and process start with the first work."""

    def __init__(
        self, command: ReadOnly[str], vocabulary: Callable[[], Load], encode: Callable[[str], list[int]]
    ) -> None:
        """`vocabulary` and `encode` (the tokens of a text) are called on the lane's thread."""
        self._process = GrammarProcess(command, encode)
        self._vocabulary = vocabulary
        self.loaded = 0
        """The start of the process that has the vocabulary, and `_known`. On the lane's thread."""
        self._known: set[int] = set()
        """Grammars that the process has."""
        self._changed = threading.Condition()
        self._advancing: deque[Callable[[], None]] = deque()
        self._compiling: deque[Callable[[], None]] = deque()
        self._forgotten: deque[int] = deque()
        self._forgotten_grammars: deque[int] = deque()
        self._has_thread = self._is_working = False
        self.is_closed = False

    @property
    def is_idle(self) -> bool:
        """Whether nothing waits or is worked on."""
        return not (self._advancing or self._compiling or self._is_working)

    def put(self, work: Callable[[], T], *, is_compiling: bool = False) -> Future[T]:
        """Do something on the lane's thread; what compiles comes after all else."""
        future: Future[T] = Future()
        with self._changed:
            if self.is_closed:
                future.set_exception(GrammarError(CLOSED))
                return future
            if not self._has_thread:
                threading.Thread(target=self._run, name="onward-masks", daemon=True).start()
                self._has_thread = True
            (self._compiling if is_compiling else self._advancing).append(lambda: _resolve(future, work))
            self._changed.notify()
        return future

    def forget_choice(self, number: int) -> None:
        """A choice has ended. May be called by the garbage collector."""
        self._forgotten.append(number)

    def forget_grammar(self, number: int) -> None:
        """No choice has a grammar any more. May be called by the garbage collector."""
        self._forgotten_grammars.append(number)

    def close(self) -> None:
        """End the process without waiting for it; what waits is still called, and finds the lane closed."""
        with self._changed:
            self.is_closed = True
            self._changed.notify()
        self._process.kill()

    def prepare(self) -> None:
        """Have a process with the vocabulary. On the lane's thread. Raises ProcessLost, OSError."""
        self._process.start()
        if self.loaded != self._process.starts:
            self._known.clear()
            self._process.call(self._vocabulary(), MAX_LOAD_SECONDS)
            self.loaded = self._process.starts
        if self._forgotten or self._forgotten_grammars:
            choices = [self._forgotten.popleft() for _ in range(len(self._forgotten))]
            grammars = [self._forgotten_grammars.popleft() for _ in range(len(self._forgotten_grammars))]
            self._known.difference_update(grammars)
            self._process.tell(Forget(choices, grammars))

    def call(self, request: WorkerRequest) -> WorkerReply:
        """Ask the process. On the lane's thread. Raises ProcessLost."""
        return self._process.call(request)

    def compile(self, number: int, grammar: str, end_tokens: frozenset[int]) -> CompiledGrammar | None:
        """Have the process compile a grammar, under a number; None if it has it. On the lane's thread. Raises
        GrammarError, ProcessLost."""
        if number in self._known:
            return None
        reply = self.call(Compile(number, grammar, sorted(end_tokens)))
        assert isinstance(reply, CompiledGrammar)
        if reply.problem:
            raise GrammarError(reply.problem)
        self._known.add(number)
        return reply

    def _run(self) -> None:
        try:
            while True:
                with self._changed:
                    self._is_working = False
                    while not (self._advancing or self._compiling or self.is_closed):
                        self._changed.wait()
                    if self.is_closed:
                        break
                    work = (self._advancing or self._compiling).popleft()
                    self._is_working = True
                work()
                del work
        finally:
            self._process.close()
            for left in (*self._advancing, *self._compiling):
                left()


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
