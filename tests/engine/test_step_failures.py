"""A fault of one request ends that request: the engine and all others continue, with the same bits."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest
from numpy.typing import NDArray

from onward.engine.events import Event, Failed
from onward.engine.job import Job
from onward.engine.model import Hook, Row, nothing
from tests.examples import slow_but

from .harness import Results, ToyEngine, make_engine, make_job, run_alone

LONG = "once upon a time there was a prompt that fills more than two of the blocks that the engine shares, and a tail"


class Faulty:
    """Wraps the model's `evaluate`: `fault` may change the logits of a step, or raise."""

    def __init__(self, engine: ToyEngine, fault: Callable[[Sequence[Row], NDArray[np.float32]], None]) -> None:
        self._evaluate = engine.model.evaluate
        self._fault = fault

    def __call__(self, rows: Sequence[Row], before_compute: Hook = nothing) -> NDArray[np.float32]:
        logits = self._evaluate(rows, before_compute).copy()
        self._fault(rows, logits)
        return logits


def spoil(value: float, wanted: Callable[[Row], bool]) -> Callable[[Sequence[Row], NDArray[np.float32]], None]:
    """Return a fault that sets one logit of all rows that are `wanted`."""

    def fault(rows: Sequence[Row], logits: NDArray[np.float32]) -> None:
        start = 0
        for row in rows:
            if wanted(row):
                logits[start : start + row.outputs, 5] = value
            start += row.outputs

    return fault


def step_until_idle(engine: ToyEngine, jobs: Sequence[Job]) -> tuple[Results, list[Failed]]:
    """Run the jobs; return the results of those that did not fail, and the failures."""
    for job in jobs:
        engine.add(job)
    events: list[Event] = []
    while not engine.idle:
        events += engine.step()
        engine.check()
    failures = [event for event in events if isinstance(event, Failed)]
    failed = {event.job for event in failures}
    results = Results(engine.jobs)
    results.take([event for event in events if event.job not in failed])
    return results, failures


@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.parametrize("position", slow_but([40], [3, 40]))
@pytest.mark.parametrize("score_top", [None, 1])
def test_logits_that_are_not_finite_end_their_request_only(
    monkeypatch: pytest.MonkeyPatch, value: float, position: int, score_top: int | None
) -> None:
    """At the prompt's end and in the middle of decode, with scores, n, drafts, and another job of the request."""
    engine = make_engine()
    prompt = LONG[:position]
    bad = make_job(prompt, request=1, choices=2, max_tokens=60, ignore_end=True, score_top=score_top, prediction=[97])
    sibling = make_job("a sibling", request=1, max_tokens=200, ignore_end=True)
    others = [make_job(LONG, request=2 + seed, choices=2, max_tokens=40, seed=seed) for seed in range(4)]
    spoiled = spoil(value, lambda row: _is_of(engine, row, bad) and row.start + len(row.tokens) > position + 5)
    monkeypatch.setattr(engine.model, "evaluate", Faulty(engine, spoiled))
    results, failures = step_until_idle(engine, [bad, sibling, *others])
    assert sorted(event.job for event in failures) == [bad.id, sibling.id]
    assert all(event.kind == "rejected" and "not finite" in event.reason for event in failures)
    assert [results.jobs[job.id].bits for job in others] == [run_alone(job).bits for job in others]
    assert engine.cache.pool.num_used == 0


def _is_of(engine: ToyEngine, row: Row, job: Job) -> bool:
    return any(sequence.id == row.sequence and sequence.job is job for sequence in engine.scheduler.running)


def test_what_a_failed_request_computed_is_not_reused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its keys and values may be what is not finite; if they were kept, every later request with the prefix would
    fail."""
    engine = make_engine()
    before = make_job(LONG + " before", max_tokens=2)
    other = make_job("another prompt that is long enough for a block of its own", max_tokens=2)
    step_until_idle(engine, [before, other])
    evaluate = engine.model.evaluate
    monkeypatch.setattr(engine.model, "evaluate", Faulty(engine, spoil(np.nan, lambda row: True)))
    _, failures = step_until_idle(engine, [make_job(LONG, max_tokens=2)])
    assert len(failures) == 1
    monkeypatch.setattr(engine.model, "evaluate", evaluate)
    again, unrelated = make_job(LONG, max_tokens=2), make_job("another prompt that is long enough for a block of it")
    results, failures = step_until_idle(engine, [again, unrelated])
    assert failures == [] and results.jobs[again.id].bits == run_alone(again).bits
    assert results.jobs[again.id].num_reused_tokens == 0
    assert results.jobs[unrelated.id].num_reused_tokens >= 32


def test_what_neighbours_computed_from_blocks_of_a_failed_request_is_not_reused_either(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """They are prefilling when the other one fails, and keep the blocks that they share with it."""
    engine = make_engine()
    step_until_idle(engine, [make_job(LONG, max_tokens=2)])
    neighbour, bad = make_job(LONG * 14, request=1, max_tokens=2), make_job(LONG, request=2, max_tokens=20)
    spoiled = spoil(np.nan, lambda row: _is_of(engine, row, bad))
    monkeypatch.setattr(engine.model, "evaluate", Faulty(engine, spoiled))
    _, failures = step_until_idle(engine, [neighbour, bad])
    assert [event.job for event in failures] == [bad.id]
    assert engine.cache.tree.blocks == set()


@pytest.mark.parametrize("prompt", ["short", LONG])
def test_a_damaged_tail_is_not_reused_either(monkeypatch: pytest.MonkeyPatch, prompt: str) -> None:
    engine = make_engine()
    monkeypatch.setattr(engine.model, "evaluate", Faulty(engine, spoil(np.nan, lambda row: True)))
    step_until_idle(engine, [make_job(prompt, max_tokens=2)])
    assert engine.cache.tree.blocks == set()


def test_a_choice_without_a_token_left_ends_its_request_only() -> None:
    engine = make_engine()
    bans = tuple((token, -np.inf) for token in range(engine.model.vocab_size))
    bad, other = make_job(request=1, logit_bias=bans), make_job(request=2, max_tokens=20)
    results, failures = step_until_idle(engine, [bad, other])
    assert [event.job for event in failures] == [bad.id] and "no token is left" in failures[0].reason
    assert results.jobs[other.id].bits == run_alone(other).bits


def test_where_memory_does_not_suffice_for_a_step_its_largest_request_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """The step changes nothing, so the next one repeats it for the others."""
    engine = make_engine()
    large = make_job(LONG * 3, request=1, score_top=5)
    others = [make_job(LONG, request=2 + seed, choices=2, max_tokens=30, seed=seed) for seed in range(3)]

    def fault(rows: Sequence[Row], logits: NDArray[np.float32]) -> None:
        if len(logits) > 60:
            raise MemoryError

    monkeypatch.setattr(engine.model, "evaluate", Faulty(engine, fault))
    results, failures = step_until_idle(engine, [*others, large])
    assert [(event.job, event.kind) for event in failures] == [(large.id, "rejected")]
    assert "memory" in failures[0].reason
    assert [results.jobs[job.id].bits for job in others] == [run_alone(job).bits for job in others]
    assert engine.cache.pool.num_used == 0


class Panic(BaseException):
    """As a library written in Rust raises it."""


@pytest.mark.parametrize("error", [Panic, SystemExit, KeyboardInterrupt, RuntimeError])
def test_whatever_else_a_step_raises_ends_the_engine(
    monkeypatch: pytest.MonkeyPatch, error: type[BaseException]
) -> None:
    engine = make_engine()

    def fault(rows: Sequence[Row], logits: NDArray[np.float32]) -> None:
        raise error

    monkeypatch.setattr(engine.model, "evaluate", Faulty(engine, fault))
    with pytest.raises(error):
        step_until_idle(engine, [make_job()])
