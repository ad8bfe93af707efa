"""A disposable process: what one question does to it, the next one does not notice."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from onward.ipc.disposable import DisposableProcess, ProcessLost
from tests.waiting import PATIENCE_SECONDS

PROGRAM = """
import os, signal, time
from onward.ipc.frames import FrameReader, write_frame
from onward.ipc.worker_end import take_connection
down, up = take_connection()
for message in FrameReader(down):
    if message == b"end":
        os._exit(0)
    if message == b"overflow":
        os._exit(3)
    if message == b"be killed":
        os.kill(os.getpid(), signal.SIGKILL)
    if message == b"take too long":
        time.sleep(600)
    write_frame(up, message.upper())
"""


@contextmanager
def disposable() -> Iterator[DisposableProcess]:
    process = DisposableProcess((sys.executable, "-c", PROGRAM), "answers")
    try:
        yield process
    finally:
        process.close()


def test_the_process_is_started_by_the_first_question_and_answers_all() -> None:
    with disposable() as process:
        assert (process.pid, process.starts) == (None, 0)
        assert [process.ask(each, PATIENCE_SECONDS) for each in (b"a", b"b")] == [b"A", b"B"]
        assert process.starts == 1
    assert process.pid is None


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no such signals")
@pytest.mark.parametrize(
    ("question", "seconds", "was_slow", "was_killed"),
    [
        (b"end", PATIENCE_SECONDS, False, False),
        (b"overflow", PATIENCE_SECONDS, False, False),
        (b"be killed", PATIENCE_SECONDS, False, True),
        (b"take too long", 0.01, True, False),
    ],
)
def test_a_question_that_ends_the_process_says_how_and_the_next_one_starts_another(
    question: bytes, seconds: float, was_slow: bool, was_killed: bool
) -> None:
    with disposable() as process:
        process.ask(b"a", PATIENCE_SECONDS)
        with pytest.raises(ProcessLost) as lost:
            process.ask(question, seconds)
        assert (lost.value.was_slow, lost.value.was_killed) == (was_slow, was_killed)
        with pytest.raises(ProcessLost):
            process.go_on(b"a", PATIENCE_SECONDS)
        assert process.ask(b"a", PATIENCE_SECONDS) == b"A" and process.starts == 2


def test_what_cannot_be_started_is_an_error_of_the_system() -> None:
    with pytest.raises(OSError):
        DisposableProcess((os.devnull,), "answers").ask(b"a", PATIENCE_SECONDS)
