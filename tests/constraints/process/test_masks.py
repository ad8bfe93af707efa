"""Which process computes a grammar: only slow grammars wait for slow grammars."""

from __future__ import annotations

import re
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from onward.constraints.errors import GrammarError
from onward.constraints.process.client import GrammarProcess
from onward.constraints.process.masks import RemoteChoice, RemoteGrammars
from onward.constraints.process.messages import Load
from onward.model_files.toy import ToyTokenizer

FAKE = (sys.executable, str(Path(__file__).with_name("fake_masks.py")))
ENDS = frozenset[int]()


@contextmanager
def grammars() -> Iterator[RemoteGrammars]:
    made = RemoteGrammars(8, ToyTokenizer(), FAKE)
    try:
        yield made
    finally:
        made.close()


def process_of(choice: RemoteChoice) -> tuple[int, int]:
    """Accept a token that is not forced; return the process that accepted it, and how many tokens it was sent."""
    assert not choice.take(0)
    process, num_sent = choice.settle().forced
    return process, num_sent


def test_one_process_is_enough_while_nothing_takes_long() -> None:
    with grammars() as made:
        first = made.compile("a", ENDS).begin()
        process, _ = process_of(first)
        del first
        assert process_of(made.compile("b", ENDS).begin())[0] == process


def test_a_grammar_is_compiled_elsewhere_while_choices_continue_and_used_on_their_thread_if_it_is_quick() -> None:
    with grammars() as made:
        first = made.compile("a", ENDS).begin()
        quick, _ = process_of(first)
        assert process_of(made.compile("b", ENDS).begin())[0] == quick
        large = made.compile("large", ENDS)
        assert large.is_slow
        assert process_of(large.begin())[0] != quick
        assert process_of(first)[0] == quick


def test_a_choice_whose_tokens_take_long_continues_in_the_other_process_with_all_its_tokens() -> None:
    with grammars() as made:
        slow, fine = made.compile("slow", ENDS), made.compile("a", ENDS)
        first, second, other = slow.begin(), slow.begin(), fine.begin()
        quick, num_sent = process_of(first)
        assert num_sent == 1 and process_of(other) == (quick, 1)
        moved, num_sent = process_of(first)
        assert moved != quick and num_sent == 2, "the other process has none of its tokens"
        assert process_of(first) == (moved, 1)
        assert process_of(second)[0] == moved, "all choices of the grammar"
        assert process_of(other) == (quick, 1)


def test_others_continue_while_a_slow_token_is_computed(tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    with grammars() as made:
        fine = made.compile("a", ENDS).begin()
        quick, _ = process_of(fine)
        waiting = made.compile(f"wait {gate}", ENDS)
        waiting.is_slow = True
        held = waiting.begin()
        assert not held.take(0)
        for _ in range(20):
            assert process_of(fine)[0] == quick
        assert not held.is_ready
        gate.touch()
        assert held.settle().forced[0] != quick


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_numpy_starts_no_threads_in_the_memory_of_a_vocabulary(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is imported once memory is limited."""
    monkeypatch.setenv("OPENBLAS_NUM_THREADS", "64")
    process = GrammarProcess()
    try:
        process.call(Load([b"a"], []))
        status = Path(f"/proc/{process.pid}/status").read_text(encoding="utf-8")
    finally:
        process.close()
    assert re.findall(r"Threads:\s+(\d+)", status) == ["2"], "the main one, and the one that answers"


def test_tokens_of_forced_texts_are_those_of_the_tokenizer() -> None:
    made = RemoteGrammars(8, ToyTokenizer(), FAKE)
    try:
        choice = made.compile("encode", ENDS).begin()
        assert not choice.take(0)
        assert choice.settle().forced == ToyTokenizer().encode("a", add_special_tokens=False)
    finally:
        made.close()


def test_what_waits_when_the_grammars_are_closed_fails(tmp_path: Path) -> None:
    made = RemoteGrammars(8, ToyTokenizer(), FAKE)
    choice = made.compile(f"wait {tmp_path / 'never'}", ENDS).begin()
    assert not choice.take(0)
    errors: list[str] = []

    def compile_another() -> None:
        with pytest.raises(GrammarError) as caught:
            made.compile("b", ENDS)
        errors.append(str(caught.value))

    made.close()
    thread = threading.Thread(target=compile_another)
    thread.start()
    thread.join(30)
    assert errors == ["its engine was stopped"]
    assert choice.settle().error
