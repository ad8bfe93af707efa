"""Encodes texts in a process of its own, for a tokenizer.json whose rules may take any time: a text that takes too long
is refused, and holds up nobody else."""

from __future__ import annotations

import sys
import weakref
from dataclasses import dataclass, field
from functools import cache, partial

import msgspec

from onward.errors import TextNotEncodable
from onward.fair_pool import FairPool
from onward.ipc.disposable import DisposableProcess, ProcessLost
from onward.offload import owner

WORKER = (sys.executable, "-P", "-m", "onward.model_files.tokenizer_worker")
"""-P: a folder named onward in the working directory is not imported."""
MAX_THREADS = 2
"""At a time, of all models; a client has one. Each model has as many processes at most."""
LOAD_SECONDS = 60.0
TEXT_SECONDS, SECONDS_PER_CHARACTER = 1.0, 1e-5
"""Of processor time. Usual rules take a tenth of the second one."""
PATIENCE = 10.0
"""How many times longer an answer may take on a busy machine."""
TOO_SLOW = "the model's tokenizer takes too long for it"
TOO_LARGE = "the model's tokenizer needs more memory for it than it may have"


class TextToEncode(msgspec.Struct, frozen=True, array_like=True):
    """A question: the tokens of a text; `add_special_tokens`: with those that the file's post-processor adds."""

    text: str
    add_special_tokens: bool


class Tokens(msgspec.Struct, frozen=True, array_like=True):
    """The answer: ids, or the `problem` for which there are none."""

    ids: list[int]
    problem: str = ""


def allowed_seconds(text: str) -> float:
    """Return the processor time that a text may take."""
    return TEXT_SECONDS + SECONDS_PER_CHARACTER * len(text)


@dataclass(slots=True, eq=False)
class _Loaded:
    """A process, and which of its starts has the tokenizer."""

    process: DisposableProcess = field(default_factory=lambda: DisposableProcess(WORKER, "encodes texts"))
    start: int = 0


class TokenizerProcess:
    """The tokenizer that a tokenizer.json describes, in processes that start when they are needed and end with this.
    Safe from every thread but that of an event loop: `encode` waits."""

    def __init__(self, tokenizer: bytes) -> None:
        self._tokenizer = tokenizer
        self._idle: list[_Loaded] = []
        self._end = weakref.finalize(self, _close, self._idle)

    def encode(self, text: str, *, add_special_tokens: bool = False) -> list[int]:
        """Return the tokens of a text, which must be encodable in UTF-8. Clients take turns. Raises TextNotEncodable,
        UnicodeEncodeError."""
        question = msgspec.msgpack.encode(TextToEncode(text, add_special_tokens))
        work = partial(self._ask, question, PATIENCE * allowed_seconds(text))
        return _threads().submit(owner.get(), work).result()

    def _ask(self, question: bytes, seconds: float) -> list[int]:
        try:
            loaded = self._idle.pop()
        except IndexError:
            loaded = _Loaded()
        try:
            answer = self._answer(loaded, question, seconds)
        except ProcessLost as lost:
            raise TextNotEncodable(TOO_SLOW if lost.was_slow else TOO_LARGE) from None
        except OSError as error:
            raise TextNotEncodable(f"the tokenizer's process cannot be started: {error.strerror or error}") from None
        finally:
            self._idle.append(loaded)
        if answer.problem:
            raise TextNotEncodable(answer.problem)
        return answer.ids

    def _answer(self, loaded: _Loaded, question: bytes, seconds: float) -> Tokens:
        """Return the answer to a question, asked again where the process was killed from outside. Raises ProcessLost,
        OSError."""
        for is_last in (False, True):
            try:
                loaded.process.start()
                if loaded.start != loaded.process.starts:
                    problem = _decoded(loaded.process.ask(self._tokenizer, PATIENCE * LOAD_SECONDS))
                    if problem.problem:
                        return problem
                    loaded.start = loaded.process.starts
                return _decoded(loaded.process.ask(question, seconds))
            except ProcessLost as lost:
                if is_last or not lost.was_killed:
                    raise
        raise AssertionError


def _decoded(answer: bytes) -> Tokens:
    return msgspec.msgpack.decode(answer, type=Tokens)


def _close(idle: list[_Loaded]) -> None:
    for loaded in idle:
        loaded.process.close()


@cache
def _threads() -> FairPool:
    return FairPool("onward-texts", MAX_THREADS, 1)
