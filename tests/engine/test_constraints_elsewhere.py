"""Masks that no step waits for: computed by a slow thread or in a disposable process, they change no token."""

from __future__ import annotations

import os
import signal
import sys
import threading
from concurrent.futures import Future
from dataclasses import replace
from functools import cache
from typing import Any

import pytest

from onward.constraints import local, matcher
from onward.constraints.choice import TOO_SLOW, Outcome
from onward.constraints.grammar import LIMITS, choice_grammar, regex_grammar
from onward.constraints.matcher import Matcher, TokenTrie
from onward.constraints.process.client import GrammarProcess
from onward.engine import constraints
from onward.engine.events import Decoded, Event, Failed
from onward.engine.job import Job, ResumedChoice
from onward.text.assembler import TextRules
from tests.examples import slow_but

from .harness import JobResult, ToyEngine, events_of, make_engine, make_job, run, run_alone
from .test_constraints import GRAMMARS


def jobs() -> list[Job]:
    made = [make_job(choices=3, max_tokens=60, grammar=grammar, temperature=1.0) for grammar in GRAMMARS.values()]
    made += [make_job(choices=2, max_tokens=length, grammar=GRAMMARS["choice"]) for length in (5, 39, 40, 41, 42, 60)]
    made.append(make_job(choices=2, max_tokens=60, grammar=GRAMMARS["open"], rules=TextRules(stops=("e",))))
    made.append(make_job(choices=2, max_tokens=30))
    return made


def summary(result: JobResult) -> list[tuple[str, list[int], str | None]]:
    return [
        (choice.text, [sampled.token for sampled in choice.sampled], choice.finish_reason)
        for _, choice in sorted(result.choices.items())
    ]


@cache
def alone() -> list[list[tuple[str, list[int], str | None]]]:
    """The result of each job alone, with nothing that delays it."""
    return [summary(run_alone(job)) for job in jobs()]


def check_the_same(engine: ToyEngine) -> None:
    made = jobs()
    try:
        results = run(engine, made)
        assert [summary(results.jobs[job.id]) for job in made] == alone()
    finally:
        engine.constraints.close()


@pytest.mark.parametrize("speculate", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_a_disposable_process_changes_nothing(speculate: bool) -> None:
    check_the_same(make_engine(in_disposable_process=True, speculate=speculate))


@pytest.mark.parametrize("speculate", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_choices_that_are_slow_change_nothing(monkeypatch: pytest.MonkeyPatch, speculate: bool) -> None:
    engine = make_engine(speculate=speculate)
    monkeypatch.setattr(local, "SLOW_SECONDS", -1.0)
    made = jobs()
    results = run(engine, made)
    monkeypatch.undo()
    assert [summary(results.jobs[job.id]) for job in made] == alone()


def test_choices_that_leave_every_step_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = make_engine()
    monkeypatch.setattr(constraints, "MAX_WAIT_SECONDS", 0.0)
    made = jobs()
    results = run(engine, made)
    monkeypatch.undo()
    assert [summary(results.jobs[job.id]) for job in made] == alone()


MOST = [{"step_max_items": 3}, {"max_grammar_size": 12}, {"step_lexer_fuel": 40}]


@pytest.mark.parametrize("speculate", [True, pytest.param(False, marks=pytest.mark.slow)])
@pytest.mark.parametrize("most", slow_but([MOST[0]], MOST))
def test_choices_that_need_more_than_a_step_may_take_change_nothing(
    monkeypatch: pytest.MonkeyPatch, speculate: bool, most: dict[str, int]
) -> None:
    moved: list[Matcher] = []
    unlimited = local.LocalCompiled.unlimited

    def counted(compiled: local.LocalCompiled) -> Matcher:
        moved.append(unlimited(compiled))
        return moved[-1]

    engine = make_engine(speculate=speculate)
    monkeypatch.setattr(local, "STEP_LIMITS", LIMITS | most)
    monkeypatch.setattr(local.LocalCompiled, "unlimited", counted)
    made = jobs()
    results = run(engine, made)
    monkeypatch.undo()
    assert [summary(results.jobs[job.id]) for job in made] == alone()
    assert moved or "max_grammar_size" in most


FORCED_JUMPS = {
    "counts that are ambiguous": 'start: ("x"|"y") q{200} "z"\nq: p | p p\np: "a" | "a" "a" | "a" "a" "a"',
    "many alternatives": 'start: ("x"|"y") s "z"\n'
    + "s: "
    + "|".join(f"n{index}" for index in range(2500))
    + "\n"
    + "".join(f'n{index}: "a" "a" "a" "b"\n' for index in range(2500)),
    "many empty rules": 'start: ("x"|"y") s{50} "z"\ns: "a" '
    + " ".join(f"n{index}" for index in range(1200))
    + "\n"
    + "".join(f'n{index}: ""|"b"\n' for index in range(1200)),
    "a long text": regex_grammar("[xy]" + "abcdefg" * 5_000),
}


@pytest.mark.parametrize("name", slow_but([*FORCED_JUMPS][::2], FORCED_JUMPS))
def test_a_long_forced_text_holds_the_thread_of_steps_no_longer_than_the_limits(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """Measured by the library's own limits: a grammar that exceeds those of a step is never used on the engine's
    thread."""
    compile_grammar = TokenTrie.compile
    with_all_limits: list[Matcher] = []
    used_here: list[str] = []

    class Watched(Matcher):
        __slots__ = ()

        def copy(self) -> Watched:
            return Watched(self.library.deep_copy(), self.vocab_size)

        def consume(self, token: int) -> None:
            self._note("consume")
            super().consume(token)

        def forced_tokens(self) -> list[int]:
            self._note("forced tokens")
            return super().forced_tokens()

        def _note(self, what: str) -> None:
            if threading.current_thread() is threading.main_thread():
                used_here.append(what)

    def watched(trie: TokenTrie, grammar: str, limits: dict[str, Any]) -> Matcher:
        compiled = compile_grammar(trie, grammar, limits)
        if limits != LIMITS:
            return compiled
        with_all_limits.append(compiled)
        return Watched(compiled.library, compiled.vocab_size)

    monkeypatch.setattr(TokenTrie, "compile", watched)
    hostile, fine = make_job(max_tokens=40, grammar=FORCED_JUMPS[name]), make_job(max_tokens=60, ignore_end=True)
    events = events_of(make_engine(), [hostile, fine])
    assert with_all_limits and not used_here
    assert [event.job for event in events if isinstance(event, Decoded) and event.finish_reason == "length"][-1:]
    assert sum(len(event.tokens) for event in events if isinstance(event, Decoded) and event.job == fine.id) == 60


def test_tokens_of_an_earlier_engine_are_taken_on_another_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """There may be thousands of tokens."""
    submitted: list[list[int]] = []
    submit = local.SlowMasks.submit

    def noted(thread: local.SlowMasks, choice: local.LocalChoice, tokens: list[int]) -> Future[Outcome]:
        submitted.append(tokens)
        return submit(thread, choice, tokens)

    monkeypatch.setattr(local.SlowMasks, "submit", noted)
    monkeypatch.setattr(local, "SLOW_SECONDS", 1000.0)  # on a busy machine more would go there,
    monkeypatch.setattr(constraints, "MAX_WAIT_SECONDS", 600.0)  # also for masks that a step does not wait for
    whole = make_job(max_tokens=30, grammar=GRAMMARS["open"], ignore_end=True)
    tokens = [sampled.token for sampled in run_alone(whole).choices[0].sampled]
    resumed = replace(whole, resume=(ResumedChoice(tuple(tokens[:20])),))
    events = [event for event in events_of(make_engine(), [resumed]) if isinstance(event, Decoded)]
    assert [sampled.token for event in events for sampled in event.tokens] == tokens[20:]
    assert events[-1].finish_reason == "length"
    assert submitted == [tokens[:20]]


def test_a_text_that_was_complete_when_its_engine_was_lost_ends() -> None:
    """The last token was delivered, but not the finish reason."""
    whole = make_job(max_tokens=30, grammar=choice_grammar(["the end"]))
    tokens = [sampled.token for sampled in run_alone(whole).choices[0].sampled]
    resumed = replace(whole, resume=(ResumedChoice(tuple(tokens)),))
    [event] = events_of(make_engine(), [resumed])
    assert isinstance(event, Decoded) and (event.tokens, event.finish_reason) == ([], "stop")


@pytest.mark.slow
def test_preempted_choices_continue_in_the_process() -> None:
    check_the_same(make_engine(in_disposable_process=True, blocks=24, rows=6))


@pytest.mark.skipif(sys.platform == "win32", reason="no signals")
def test_choices_continue_in_another_process_when_somebody_kills_theirs(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = make_engine(in_disposable_process=True, speculate=False)
    processes: list[GrammarProcess] = []
    start = GrammarProcess.start

    def watched(process: GrammarProcess) -> None:
        start(process)
        processes[:] = [process]

    monkeypatch.setattr(GrammarProcess, "start", watched)
    made = jobs()

    def kill(step: int) -> None:
        if step == 5:
            pid = processes[0].pid
            assert pid is not None
            os.kill(pid, signal.SIGKILL)

    try:
        results = run(engine, made, before_step=kill)
    finally:
        engine.constraints.close()
    assert processes[0].starts == 2
    assert [summary(results.jobs[job.id]) for job in made] == alone()


def test_others_continue_while_a_mask_is_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = make_engine(speculate=False)
    held, free = make_job(max_tokens=8, grammar=regex_grammar("[a-z]+")), make_job(max_tokens=40, ignore_end=True)
    other = make_job(max_tokens=200, grammar=choice_grammar(["once upon a time"]))
    slow = engine.constraints.prepare(held)
    gates: list[tuple[Future[Outcome], Future[Outcome]]] = []
    submit = local.SlowMasks.submit

    def gated(thread: local.SlowMasks, choice: local.LocalChoice, tokens: list[int]) -> Future[Outcome]:
        computed = submit(thread, choice, tokens)
        if choice.compiled is not slow:
            return computed
        gate: Future[Outcome] = Future()
        gates.append((gate, computed))
        return gate

    monkeypatch.setattr(local, "SLOW_SECONDS", -1.0)
    monkeypatch.setattr(local.SlowMasks, "submit", gated)
    for job in (held, free, other):
        engine.add(job)
    ended: list[int] = []

    def step() -> None:
        ended.extend(event.job for event in engine.step() if isinstance(event, Decoded) and event.finish_reason)

    while len(ended) < 2:
        step()
    assert set(ended) == {free.id, other.id} and len(gates) == 1
    while not engine.idle:
        for gate, computed in gates:
            gate.set_result(computed.result())
        gates.clear()
        step()
        engine.check()
    assert ended[2:] == [held.id]


def test_masks_that_take_too_long_end_their_request_only(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = make_engine()
    hostile, fine = make_job(max_tokens=20, grammar=GRAMMARS["open"]), make_job(max_tokens=20, ignore_end=True)
    for job in (hostile, fine):
        engine.add(job)
    monkeypatch.setattr(local, "SLOW_SECONDS", -1.0)
    monkeypatch.setattr(matcher, "MAX_TOKEN_SECONDS", -1.0)
    events: list[Event] = []
    while not engine.idle:
        events += engine.step()
        engine.check()
    [failed] = [event for event in events if isinstance(event, Failed)]
    assert failed == Failed(hostile.id, "constraint", TOO_SLOW)
    assert [event.job for event in events if isinstance(event, Decoded) and event.finish_reason] == [fine.id]
