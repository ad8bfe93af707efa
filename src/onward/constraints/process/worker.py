"""`python -m onward.constraints.process.worker`: compiles grammars and computes masks for the process that started it.

It handles one message after the other. Processor time and memory are limited; what exceeds them, or overflows the stack
of a native library, ends it, and the other side knows which message did.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from typing import TYPE_CHECKING

from onward.constraints.errors import GrammarError
from onward.constraints.grammar import check, text_grammar
from onward.constraints.json_schema import check_embedded, json_schema_grammar
from onward.constraints.process.messages import (
    Advance,
    Check,
    Checked,
    Compile,
    Encode,
    Encoded,
    Forget,
    Load,
    Loaded,
    WorkerReply,
    WorkerRequest,
    decode_request,
    encode,
)
from onward.constraints.reasons import shown_reason
from onward.ipc.frames import BrokenFrame, FrameReader, write_frame
from onward.ipc.worker_end import (
    ignore_server_signals,
    limit_memory,
    limited_processor_time,
    prefer_as_oom_victim,
    take_connection,
)

if TYPE_CHECKING:
    from onward.constraints.process.choices import Choices

CHECK_SECONDS = 2.0
"""Processor time for one grammar: its text, its first masks."""
LOAD_SECONDS = 120.0
"""For a vocabulary, which the operator's model has."""
ADVANCE_SECONDS = 1.0
"""For the next masks of a choice, after each MAX_REPLAYED_TOKENS of its tokens."""
MAX_REPLAYED_TOKENS = 1000
MAX_EXTRA_MEMORY = 1 << 30
"""Bytes of addresses, not counting those that the process has when it begins; a vocabulary of 262,144 tokens takes a
third, and numpy 80 MB."""
STACK_BYTES = 4 << 20
"""Half the usual stack of a thread: what does not overflow here overflows nowhere else."""
NICENESS = 5


class Worker:
    """Answers requests. Used on one thread."""

    def __init__(self, down: int, up: int) -> None:
        self._requests = self._read(down)
        self._up = up
        self._choices: Choices | None = None
        """Once a vocabulary is loaded."""

    def run(self) -> None:
        """Answer until the other side is gone."""
        for request in self._requests:
            with limited_processor_time(_seconds(request)):
                reply = self._answer(request)
            if reply is not None:
                self._send(reply)

    def _answer(self, request: WorkerRequest) -> WorkerReply | None:
        match request:
            case Check():
                return _checked(request)
            case Load(token_bytes, control):
                return self._load(token_bytes, frozenset(control))
            case Encoded():
                raise BrokenFrame("an answer to no question")
        assert self._choices is not None
        match request:
            case Compile(number, grammar, end_tokens):
                return self._choices.compile(number, grammar, end_tokens)
            case Advance(choice, grammar, tokens):
                return self._choices.advance(choice, grammar, tokens)
            case Forget(choices, grammars):
                self._choices.forget(choices, grammars)
        return None

    def _load(self, token_bytes: list[bytes], control: frozenset[int]) -> Loaded:
        os.environ["OPENBLAS_NUM_THREADS"] = "1"  # each would take 40 MB of MAX_EXTRA_MEMORY, whoever has set more
        from onward.constraints.process.choices import Choices  # and numpy, which no check needs

        self._choices = Choices(token_bytes, control, self._encode)
        return Loaded()

    def _encode(self, text: str) -> list[int]:
        """Ask the other side for the tokens of a text."""
        self._send(Encode(text))
        answer = next(self._requests)
        if not isinstance(answer, Encoded):
            raise BrokenFrame("a question was not answered")
        return answer.tokens

    def _send(self, reply: WorkerReply) -> None:
        write_frame(self._up, encode(reply))

    @staticmethod
    def _read(down: int) -> Iterator[WorkerRequest]:
        for payload in FrameReader(down):
            yield decode_request(payload)


def _checked(request: Check) -> Checked:
    """Return the answer to Check: whatever the library raises is a problem of the grammar."""
    try:
        grammar = request.grammar
        if request.schema is not None:
            grammar = json_schema_grammar(json.loads(request.schema), whitespace=request.whitespace)
        elif request.references is not None:
            grammar = text_grammar(grammar, request.references)
            check_embedded(grammar)
        problem = check(grammar)
    except GrammarError as error:
        problem = str(error)
    except RecursionError:
        problem = "it is nested too deeply"
    except ValueError as error:
        problem = f"the schema is not JSON: {error}"
    except MemoryError:
        problem = "it needs too much memory to compile; make it simpler"
    except BaseException as error:  # a panic in the library
        problem = shown_reason(str(error)) or "it is not valid"
    return Checked("", problem) if problem else Checked(grammar)


def _seconds(request: WorkerRequest) -> float:
    """Return how much processor time a request may take."""
    match request:
        case Load():
            return LOAD_SECONDS
        case Advance(_, _, tokens):
            return ADVANCE_SECONDS * (1 + len(tokens) // MAX_REPLAYED_TOKENS)
        case _:
            return CHECK_SECONDS


def _work(worker: Worker) -> None:
    """Run until the other side is gone; then the process ends, whatever threads the library has."""
    try:
        worker.run()
    except (BrokenFrame, OSError, StopIteration):
        os._exit(1)
    except BaseException as error:
        print(f"onward: the process for grammars ends: {type(error).__name__}: {error}", file=sys.stderr, flush=True)
        os._exit(70)
    os._exit(0)


def main() -> None:
    """Serve the connection that is standard input."""
    ignore_server_signals()
    prefer_as_oom_victim()
    with suppress(AttributeError, OSError):
        os.nice(NICENESS)
    check("start: /a/")  # load the library before anybody waits, and before memory is limited
    limit_memory(MAX_EXTRA_MEMORY)
    threading.stack_size(STACK_BYTES)
    worker = Worker(*take_connection())
    thread = threading.Thread(target=_work, args=(worker,), name="onward-grammars")
    thread.start()
    thread.join()


if __name__ == "__main__":
    main()
