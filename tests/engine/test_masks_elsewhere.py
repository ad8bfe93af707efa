"""Masks that no step waits for: computed by a slow thread or in a disposable process, they change no token."""

from __future__ import annotations

import os
import signal
import sys
from concurrent.futures import Future

import pytest

from onward.constraints import local
from onward.constraints.choice import TOO_SLOW, Outcome
from onward.constraints.grammar import choice_grammar, regex_grammar
from onward.constraints.process.client import GrammarProcess
from onward.engine import constraints
from onward.engine.events import Decoded, Event, Failed
from onward.engine.job import Job
from onward.text.assembler import TextRules

from .harness import JobResult, ToyEngine, make_engine, make_job, run, run_alone
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


def check_the_same(engine: ToyEngine) -> None:
    made = jobs()
    try:
        results = run(engine, made)
        for job in made:
            assert summary(results.jobs[job.id]) == summary(run_alone(job)), job.grammar
    finally:
        engine.constraints.close()


@pytest.mark.parametrize("speculate", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_a_disposable_process_changes_nothing(speculate: bool) -> None:
    check_the_same(make_engine(in_disposable_process=True, speculate=speculate))


@pytest.mark.parametrize("speculate", [True, False])
def test_choices_that_are_slow_change_nothing(monkeypatch: pytest.MonkeyPatch, speculate: bool) -> None:
    engine = make_engine(speculate=speculate)
    monkeypatch.setattr(local, "SLOW_SECONDS", -1.0)
    made = jobs()
    results = run(engine, made)
    monkeypatch.undo()
    assert [summary(results.jobs[job.id]) for job in made] == [summary(run_alone(job)) for job in made]


def test_choices_that_leave_every_step_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = make_engine()
    monkeypatch.setattr(constraints, "MAX_WAIT_SECONDS", 0.0)
    made = jobs()
    results = run(engine, made)
    monkeypatch.undo()
    assert [summary(results.jobs[job.id]) for job in made] == [summary(run_alone(job)) for job in made]


@pytest.mark.slow
def test_preempted_choices_go_on_in_the_process() -> None:
    check_the_same(make_engine(in_disposable_process=True, blocks=24, rows=6))


@pytest.mark.skipif(sys.platform == "win32", reason="no signals")
def test_choices_go_on_in_another_process_when_somebody_kills_theirs(monkeypatch: pytest.MonkeyPatch) -> None:
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
    assert [summary(results.jobs[job.id]) for job in made] == [summary(run_alone(job)) for job in made]


def test_others_go_on_while_a_mask_is_computed(monkeypatch: pytest.MonkeyPatch) -> None:
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
    monkeypatch.setattr(local, "MAX_TOKEN_SECONDS", -1.0)
    events: list[Event] = []
    while not engine.idle:
        events += engine.step()
        engine.check()
    [failed] = [event for event in events if isinstance(event, Failed)]
    assert failed == Failed(hostile.id, "constraint", TOO_SLOW)
    assert [event.job for event in events if isinstance(event, Decoded) and event.finish_reason] == [fine.id]
