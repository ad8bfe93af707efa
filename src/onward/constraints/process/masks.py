"""Masks from disposable processes, for engines that share their process with something else, and for other servers."""

from __future__ import annotations

import itertools
import threading
from collections import OrderedDict
from collections.abc import Callable
from collections.abc import Sequence as ReadOnly
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from onward.constraints.choice import ChoiceConstraint, Masks, Outcome
from onward.constraints.errors import GrammarError
from onward.constraints.process.client import WORKER
from onward.constraints.process.lane import CLOSED, Lane
from onward.constraints.process.messages import Advance, Advanced, Load
from onward.constraints.tokens import Encoder, GrammarVocabulary, encode_with
from onward.ipc.disposable import ProcessLost

T = TypeVar("T")

QUICK_COMPILE_SECONDS = 0.1
QUICK_MASK_SECONDS = 0.02
"""Processor time: a grammar that needs more, to be compiled or for a token, is used in a process apart from those that
do not."""
MAX_REFUSED = 4096
MAX_ATTEMPTS = 3
"""Processes that are killed from outside while they answer, before the grammar is refused."""


class _Tokenizer(GrammarVocabulary, Encoder, Protocol):
    """What is needed of a tokenizer (`engine.model.Tokenizer`)."""


@dataclass(eq=False, slots=True, weakref_slot=True)
class RemoteCompiled:
    """Implements `choice.Compiled`: a grammar that the processes know by its number. `is_slow`: it is used in the
    process of those that take long."""

    number: int
    grammar: str
    end_tokens: frozenset[int]
    first: Masks
    is_slow: bool
    owner: RemoteGrammars

    def begin(self) -> RemoteChoice:
        return RemoteChoice(self)

    def __del__(self) -> None:
        self.owner.forget_grammar(self.number)


class RemoteChoice(ChoiceConstraint):
    """A choice whose matcher is in a process. Its tokens are here, so that another process can continue."""

    __slots__ = ("__weakref__", "compiled", "number", "sent", "tokens")

    def __init__(self, compiled: RemoteCompiled) -> None:
        super().__init__(compiled.first)
        self.compiled = compiled
        self.number = compiled.owner.begin_choice()
        self.tokens: list[int] = []
        self.sent: tuple[Lane | None, int, int] = None, 0, 0
        """The lane and the start of its process that has the matcher, and how many tokens it has. Used on the lane's
        thread, while the constraint is unsettled."""

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
        self.compiled.owner.end_choice(self.number)


class RemoteGrammars:
    """The grammars of one model in disposable processes. Safe from every thread; `close` ends the processes.

    The first process starts with the first grammar. A second one starts when a grammar is compiled while choices run,
    or takes long: it compiles new grammars, and has those that take long, so that the others wait for none of them. A
    grammar that ends its process is refused from then on; all other choices continue in another process, which replays
    their tokens.
    """

    def __init__(self, vocab_size: int, tokenizer: _Tokenizer, command: ReadOnly[str] = WORKER) -> None:
        self._vocab_size = vocab_size
        self._num_words = -(-vocab_size // 32)
        self._tokenizer = tokenizer
        encode = encode_with(tokenizer)
        self._quick = Lane(command, self._vocabulary, encode)
        self._slow = Lane(command, self._vocabulary, encode)
        self._lock = threading.Lock()
        """Guards `_refused`."""
        self._refused: OrderedDict[tuple[str, frozenset[int]], str] = OrderedDict()
        self._numbers = itertools.count(1)
        self._choices: set[int] = set()
        """Choices that have not ended."""

    def compile(self, grammar: str, end_tokens: frozenset[int]) -> RemoteCompiled:
        """Return a compiled grammar. Waits for it. Raises GrammarError."""
        lane = self._slow if self._choices or not self._quick.is_idle else self._quick
        number = next(self._numbers)
        return lane.put(lambda: self._compile(lane, number, grammar, end_tokens), is_compiling=True).result()

    def advance(self, choice: RemoteChoice) -> Future[Outcome]:
        """Return what follows the tokens of a choice."""
        length = len(choice.tokens)
        lane = self._slow if choice.compiled.is_slow else self._quick
        return lane.put(lambda: self._advance(lane, choice, length))

    def begin_choice(self) -> int:
        """Return the number of a new choice."""
        number = next(self._numbers)
        self._choices.add(number)
        return number

    def end_choice(self, number: int) -> None:
        """A choice has ended. May be called by the garbage collector."""
        self._choices.discard(number)
        for lane in (self._quick, self._slow):
            lane.forget_choice(number)

    def forget_grammar(self, number: int) -> None:
        """No choice has the grammar any more. May be called by the garbage collector."""
        for lane in (self._quick, self._slow):
            lane.forget_grammar(number)

    def close(self) -> None:
        """End the processes without waiting for them."""
        for lane in (self._quick, self._slow):
            lane.close()

    def _compile(self, lane: Lane, number: int, grammar: str, end_tokens: frozenset[int]) -> RemoteCompiled:
        reply = self._tried(lane, grammar, end_tokens, lambda: lane.compile(number, grammar, end_tokens))
        assert reply is not None, "a new number"
        is_slow = reply.seconds > QUICK_COMPILE_SECONDS
        return RemoteCompiled(number, grammar, end_tokens, self._masks(reply.masks), is_slow, self)

    def _advance(self, lane: Lane, choice: RemoteChoice, length: int) -> Outcome:
        if length < len(choice.tokens):
            return Outcome(choice.first, [], False)  # another one follows, for all tokens
        compiled = choice.compiled
        try:
            return self._tried(
                lane, compiled.grammar, compiled.end_tokens, lambda: self._advanced(lane, choice, length)
            )
        except GrammarError as error:
            return Outcome(choice.first, [], False, str(error))

    def _tried(self, lane: Lane, grammar: str, end_tokens: frozenset[int], ask: Callable[[], T]) -> T:
        """Return an answer about a grammar, asked for again if the process was killed from outside. Raises
        GrammarError, and refuses the grammar from then on, where it ended the process."""
        for num_left in reversed(range(MAX_ATTEMPTS)):
            with self._lock:
                reason = CLOSED if lane.is_closed else self._refused.get((grammar, end_tokens))
            if reason is not None:
                raise GrammarError(reason)
            try:
                lane.prepare()
                return ask()
            except ProcessLost as error:
                if error.was_killed and (num_left or lane.is_closed):
                    continue
                with self._lock:
                    self._refused[grammar, end_tokens] = str(error)
                    if len(self._refused) > MAX_REFUSED:
                        self._refused.popitem(last=False)
                raise GrammarError(str(error)) from None
            except OSError as error:
                raise GrammarError(f"the process that computes it cannot be started: {error.strerror}") from None
        raise GrammarError(CLOSED)

    def _advanced(self, lane: Lane, choice: RemoteChoice, length: int) -> Outcome:
        """Have the process take the tokens of a choice. Raises GrammarError, ProcessLost."""
        compiled = choice.compiled
        lane.compile(compiled.number, compiled.grammar, compiled.end_tokens)
        sent_lane, start, num_sent = choice.sent
        has_matcher = sent_lane is lane and start == lane.loaded
        tokens = choice.tokens[num_sent if has_matcher else 0 : length]
        reply = lane.call(Advance(choice.number, compiled.number, tokens))
        assert isinstance(reply, Advanced)
        choice.sent = lane, lane.loaded, length
        compiled.is_slow |= reply.seconds > QUICK_MASK_SECONDS
        masks = self._masks(reply.masks) if reply.masks else choice.first
        return Outcome(masks, reply.forced, reply.completes, reply.problem, reply.seconds)

    def _vocabulary(self) -> Load:
        tokenizer = self._tokenizer
        control = [
            token for token in range(self._vocab_size) if tokenizer.is_special(token) or token in tokenizer.end_tokens
        ]
        return Load([tokenizer.token_bytes(token) for token in range(self._vocab_size)], control)

    def _masks(self, packed: bytes) -> NDArray[np.uint32]:
        return np.frombuffer(packed, np.uint32).reshape(-1, self._num_words)
