"""Checks in disposable processes: a grammar that ends its process is refused and not retried, and no client waits for
another's."""

from __future__ import annotations

import errno
import sys
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from onward.constraints.errors import GrammarError
from onward.constraints.process import checker as room
from onward.constraints.process.checker import GrammarChecker, QueueFull, Ticket
from onward.constraints.process.messages import Check
from onward.ipc import disposable
from onward.ipc.spawn import Process
from tests.examples import examples
from tests.waiting import PATIENCE_SECONDS, wait_for

if sys.platform == "win32":
    pytest.skip("the fake process sends itself signals", allow_module_level=True)

COMMAND = (sys.executable, str(Path(__file__).with_name("fake_worker.py")))


@pytest.fixture
def checker() -> Iterator[GrammarChecker]:
    made = GrammarChecker(COMMAND)
    yield made
    made.close()


def submit(checker: GrammarChecker, text: str, client: str = "a") -> Ticket:
    return checker.submit(client, [text], lambda: Check(text))


def answer(checker: GrammarChecker, text: str, client: str = "a") -> str:
    return submit(checker, text, client).future.result(PATIENCE_SECONDS)


def pid(text: str) -> int:
    return int(text.split()[0])


def test_a_constraint_that_ends_its_process_is_refused_and_not_tried_again(checker: GrammarChecker) -> None:
    before = pid(answer(checker, "one"))
    assert pid(answer(checker, "two")) == before
    for _ in range(2):
        with pytest.raises(GrammarError, match="too complex"):
            answer(checker, "die")
    after = pid(answer(checker, "three"))
    assert after != before
    with pytest.raises(GrammarError, match="too complex"):
        answer(checker, "die", client="another")
    assert pid(answer(checker, "four")) == after
    with pytest.raises(GrammarError, match="it is refused"):
        answer(checker, "refuse")
    assert pid(answer(checker, "five")) == after


def test_the_message_says_whether_it_took_too_long() -> None:
    checker = GrammarChecker(COMMAND)
    with pytest.raises(GrammarError, match="too long"):
        checker.submit("a", ["x"], lambda: Check("take too long")).future.result(PATIENCE_SECONDS)
    checker.close()


def test_clients_do_not_wait_for_each_other(checker: GrammarChecker, tmp_path: Path) -> None:
    release = tmp_path / "release"
    held = [checker.submit("a", [str(number)], lambda: Check(f"wait {release}")) for number in range(4)]
    assert answer(checker, "quick", client="b").endswith("quick")
    assert not any(ticket.future.done() for ticket in held)
    release.touch()
    assert all(ticket.future.result(PATIENCE_SECONDS) for ticket in held)


def test_equal_constraints_are_checked_once_and_what_nobody_waits_for_is_not(
    checker: GrammarChecker, tmp_path: Path
) -> None:
    release, log = tmp_path / "release", tmp_path / "log"
    held = [checker.submit("a", [str(n)], lambda: Check(f"wait {release}")) for n in range(room.MAX_PER_CLIENT)]
    twice = [checker.submit("a", ["same"], lambda: Check(f"write {log}")) for _ in range(2)]
    dropped = checker.submit("a", ["dropped"], lambda: Check(f"write {log}"))
    twice[0].abandon()
    dropped.abandon()
    release.touch()
    assert twice[1].future.result(PATIENCE_SECONDS).endswith(str(log))
    assert [ticket.future.result(PATIENCE_SECONDS) for ticket in held]
    assert answer(checker, "last")
    assert log.read_text(encoding="utf-8") == "x"
    assert checker.submit("b", ["same"], lambda: Check(f"write {log}")).future.result(0)
    assert log.read_text(encoding="utf-8") == "x"


def test_nothing_is_kept_of_clients_that_left(checker: GrammarChecker, tmp_path: Path) -> None:
    release = tmp_path / "release"
    held = [checker.submit(client, [client], lambda: Check(f"wait {release}")) for client in "abc"]
    wait_for(lambda: len(checker._running) == room.MAX_PROCESSES, "all processes are busy")
    for number in range(10):
        submit(checker, str(number), f"client {number}").abandon()
    assert checker._queues.keys() == set("abc")
    release.touch()
    assert all(ticket.future.result(PATIENCE_SECONDS) for ticket in held)
    assert not checker._queues and not checker._running


def test_a_client_cannot_queue_without_end(
    checker: GrammarChecker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(room, "MAX_QUEUED_PER_CLIENT", 3)
    release = tmp_path / "release"
    with pytest.raises(QueueFull):
        for number in range(20):
            checker.submit("a", [str(number)], lambda: Check(f"wait {release}"))
    assert answer(checker, "quick", client="b")
    release.touch()


def test_a_grammar_that_ended_an_engine_is_refused_from_then_on(checker: GrammarChecker) -> None:
    text = answer(checker, "fine")
    checker.refuse(text, "it ended an engine")
    with pytest.raises(GrammarError, match="ended an engine"):
        answer(checker, "fine")


def test_what_cannot_be_started_or_made_is_reported() -> None:
    checker = GrammarChecker(("/nonexistent/python",))
    with pytest.raises(GrammarError, match="cannot be started"):
        answer(checker, "x")
    checker.close()


def test_an_error_of_the_conversion_is_an_error_of_the_request(checker: GrammarChecker) -> None:
    def wrong() -> Check:
        raise GrammarError("it has no start")

    with pytest.raises(GrammarError, match="it has no start"):
        checker.submit("a", ["x"], wrong).future.result(PATIENCE_SECONDS)


def test_what_waits_fails_when_the_checker_is_closed(tmp_path: Path) -> None:
    checker = GrammarChecker(COMMAND)
    held = [checker.submit("a", [str(number)], lambda: Check(f"wait {tmp_path / 'never'}")) for number in range(5)]
    assert answer(checker, "quick", client="b")
    checker.close()
    for ticket in held:
        with pytest.raises(GrammarError):
            ticket.future.result(PATIENCE_SECONDS)
    with pytest.raises(GrammarError, match="shutting down"):
        answer(checker, "late")


@pytest.mark.slow
def test_idle_processes_end_but_for_one_which_does_what_comes_then(
    checker: GrammarChecker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    release = tmp_path / "release"
    monkeypatch.setattr(room, "IDLE_SECONDS", 0.001)
    for number in range(examples(80)):
        held = [checker.submit(client, [f"{client}{number}"], lambda: Check(f"wait {release}")) for client in "ab"]
        release.touch()
        assert all(ticket.future.result(PATIENCE_SECONDS) for ticket in held)
        wait_for(lambda: len(checker._processes) == 1, "one is left")
        assert answer(checker, str(number))
        release.unlink()


def test_a_process_that_cannot_be_started_fails_only_what_it_was_for(
    checker: GrammarChecker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where another one runs, what that computes goes on, and it takes what comes afterwards."""
    release = tmp_path / "release"
    first = pid(answer(checker, "first"))
    held = checker.submit("a", ["held"], lambda: Check(f"wait {release}"))
    wait_for(lambda: checker._running, "it is computed")

    def refused(command: Sequence[str]) -> Process:
        raise OSError(errno.EAGAIN, "no more processes")

    monkeypatch.setattr(disposable, "spawn", refused)
    with pytest.raises(GrammarError, match=r"cannot be started.*no more processes"):
        answer(checker, "second", client="b")
    assert not held.future.done()
    release.touch()
    assert pid(held.future.result(PATIENCE_SECONDS)) == first
    assert pid(answer(checker, "third", client="b")) == first


def test_without_a_thread_a_constraint_is_refused_and_the_next_one_tries_again(
    checker: GrammarChecker, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", refused)
        with pytest.raises(GrammarError, match="cannot be started: can't start new thread"):
            answer(checker, "one")
        assert not checker._queues
    assert answer(checker, "one")
