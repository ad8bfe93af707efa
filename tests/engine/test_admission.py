"""Clients share the batch: a small request gets its first token at once, however much other clients have sent."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onward.engine.events import Decoded
from onward.engine.job import Job
from tests.examples import slow_but

from .harness import Results, ToyEngine, finished_jobs, make_engine, make_job, run, run_alone

BUSY, SMALL = 1, 2
"""Numbers of two clients."""


def large_jobs(kind: str) -> list[Job]:
    """What one client may send."""
    match kind:
        case "n=128":
            return [make_job("a", client=BUSY, choices=128, max_tokens=400, ignore_end=True, seed=1)]
        case "64 streams":
            return [make_job(f"{n}", client=BUSY, max_tokens=400, ignore_end=True, seed=n) for n in range(64)]
        case "a batch of 500 prompts":
            return [
                make_job(f"{n} " + "x" * (n % 90), request=7, client=BUSY, max_tokens=50, ignore_end=True, seed=n)
                for n in range(500)
            ]
        case "nine times n=128":
            return [make_job(f"{n}", client=BUSY, choices=128, max_tokens=100, ignore_end=True) for n in range(9)]
        case "long prompts":
            return [make_job([97 + n, *range(97, 122)] * 30, client=BUSY, max_tokens=50) for n in range(20)]
    raise AssertionError(kind)


KINDS = ["n=128", "64 streams", "a batch of 500 prompts", "nine times n=128", "long prompts"]


def steps_until_first_token(engine: ToyEngine, job: Job) -> int:
    engine.add(job)
    for number in range(1, 1000):
        events = engine.step()
        engine.check()
        if any(isinstance(event, Decoded) and event.job == job.id for event in events):
            return number
    raise AssertionError("no token came")


@pytest.mark.parametrize("rows", slow_but([4], [4, 64]))
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("after", [1, 20])
def test_a_small_request_among_large_ones_of_another_client_waits_one_step_more_than_alone(
    kind: str, rows: int, after: int
) -> None:
    """At most twice as many steps as alone, plus one. A batch of few rows may consist of prompts."""
    engine = make_engine(rows=rows, blocks=4096)
    for job in large_jobs(kind):
        engine.add(job)
    for _ in range(after):
        engine.step()
    small = make_job("once upon a time", client=SMALL, max_tokens=4)
    assert steps_until_first_token(engine, small) <= 3
    alone = make_engine(rows=rows)
    assert steps_until_first_token(alone, make_job("once upon a time", max_tokens=4)) == 1


def test_many_small_requests_take_half_of_the_rows_and_no_more() -> None:
    engine = make_engine(rows=16)
    for number in range(16):
        engine.add(make_job(f"{number}", client=BUSY, max_tokens=1000, ignore_end=True))
    for _ in range(30):
        engine.step()
    for number in range(40):
        engine.add(make_job(f"s{number}", client=SMALL, max_tokens=1000, ignore_end=True))
    for _ in range(30):
        engine.step()
        engine.check()
    held = [sum(each.job.client == client for each in engine.scheduler.running) for client in (BUSY, SMALL)]
    assert held == [8, 8]
    assert len(engine.scheduler.returning.suspended) == 8 and engine.scheduler.reclaim.num_preemptions == 0


def test_a_client_alone_uses_all_rows() -> None:
    engine = make_engine(rows=16)
    for number in range(40):
        engine.add(make_job(f"{number}", client=BUSY, max_tokens=100, ignore_end=True))
    for _ in range(20):
        engine.step()
    assert engine.scheduler.rows.num_taken == 16 and not engine.scheduler.returning.suspended


def test_suspended_sequences_return_as_soon_as_rows_are_free_and_compute_nothing_twice() -> None:
    engine = make_engine(rows=4, speculate=False)
    large = [make_job(f"{n}", client=BUSY, max_tokens=60, ignore_end=True, seed=n) for n in range(4)]
    small = [make_job(f"s{n}", client=SMALL, max_tokens=5, ignore_end=True, seed=n) for n in range(6)]
    results = Results(engine.jobs)
    for job in large:
        engine.add(job)
    for step in range(400):
        if step in range(10, 40, 5):
            engine.add(small[(step - 10) // 5])
        if engine.idle:
            break
        results.take(engine.step())
        engine.check()
    for job in (*large, *small):
        assert results.jobs[job.id].bits == run_alone(job).bits
    sampled = sum(len(choice.sampled) for job in results.jobs.values() for choice in job.choices.values())
    assert engine.counters.num_decode_tokens == sampled - len(results.jobs), "each token was computed once"
    assert engine.load().num_preemptions == 0


def test_memory_is_taken_back_for_a_client_without_any() -> None:
    """A client that fills the memory loses some of it to a client without any, and recomputes what it lost."""
    engine = make_engine(rows=8, blocks=24, share=False, context=320)
    large = [make_job(f"{n} " + "y" * 60, client=BUSY, max_tokens=100, ignore_end=True, seed=n) for n in range(8)]
    results = Results(engine.jobs)
    for job in large:
        engine.add(job)
    for _ in range(20):
        results.take(engine.step())
        engine.check()
    small = make_job("once " * 20, client=SMALL, max_tokens=20, ignore_end=True)
    engine.add(small)
    steps = 0
    while not engine.idle:
        results.take(engine.step())
        engine.check()
        steps += small.id not in results.jobs
    assert steps <= 3
    for job in (*large, small):
        assert results.jobs[job.id].bits == run_alone(job, context=320).bits


def test_a_suspended_choice_is_cancelled_with_its_blocks() -> None:
    engine = make_engine(rows=2)
    large = make_job("a", client=BUSY, choices=2, max_tokens=500, ignore_end=True)
    other = make_job("b", client=BUSY, max_tokens=500, ignore_end=True)
    for job in (large, other):
        engine.add(job)
    for _ in range(10):
        engine.step()
    engine.add(make_job("c", client=SMALL, max_tokens=500, ignore_end=True))
    while not engine.scheduler.returning.suspended:
        engine.step()
    (suspended,) = engine.scheduler.returning.suspended
    engine.cancel_choice(suspended.job.id, suspended.choice)
    engine.check()
    assert not engine.scheduler.returning.suspended and not suspended.blocks
    for job in (large, other):
        engine.cancel(job.request)
        engine.check()


@given(data=st.data())
def test_law_2_and_4_whatever_clients_send_everything_ends_with_its_own_bits(data: st.DataObject) -> None:
    """With few rows, little memory, clients that come and go, and cancellations."""
    engine = make_engine(
        blocks=data.draw(st.integers(12, 30)),
        rows=data.draw(st.integers(1, 5)),
        share=data.draw(st.booleans()),
        context=320,
    )
    jobs = [
        make_job(
            [97 + (n * data.draw(st.integers(0, 2)) + i) % 9 for i in range(data.draw(st.integers(1, 120)))],
            request=n,
            client=data.draw(st.integers(0, 3)),
            choices=data.draw(st.integers(1, 3)),
            max_tokens=data.draw(st.integers(0, 60)),
            seed=n,
            ignore_end=True,
        )
        for n in range(data.draw(st.integers(1, 9)))
    ]
    arrivals = {n: data.draw(st.integers(0, 60)) for n in range(len(jobs))}
    cancels = data.draw(st.dictionaries(st.integers(0, 80), st.integers(0, 8), max_size=2))
    results, step = Results(engine.jobs), 0
    cancelled = set()
    while step <= 60 or not engine.idle:
        for n, arrival in arrivals.items():
            if arrival == step:
                engine.add(jobs[n])
        if step in cancels:
            engine.cancel(cancels[step])
            cancelled.add(cancels[step])
        if not engine.idle:
            results.take(engine.step())
            engine.check()
        step += 1
        assert step < 20_000
    for n, job in enumerate(jobs):
        if n not in cancelled:
            assert results.jobs[job.id].bits == run_alone(job, context=320).bits
    assert engine.cache.pool.num_used == 0


# --- priorities --------------------------------------------------------------------------------------------------

LONG = [97 + number % 25 for number in range(1500)]


def order_of(jobs: list[Job]) -> list[int]:
    """The indices of the jobs in the order in which they end, run one at a time. Checks that results are the same as
    alone."""
    engine = make_engine(rows=1, blocks=512)
    events = []
    for job in jobs:
        engine.add(job)
    while not engine.idle:
        events += engine.step()
        engine.check()
    numbers = {job.id: index for index, job in enumerate(jobs)}
    return [numbers[job] for job in finished_jobs(events)]


def test_waiting_requests_of_a_client_begin_in_the_order_of_their_priority_numbers() -> None:
    jobs = [
        make_job(f"{n}", max_tokens=3, priority=priority) for n, priority in enumerate((5, 0, -1, 0, 2**63 - 1, -1))
    ]
    assert order_of(jobs) == [2, 5, 1, 3, 0, 4]


@pytest.mark.parametrize("urgent", ["short", "long"])
def test_priorities_hold_between_short_and_long_prompts(urgent: str) -> None:
    short = [make_job(f"{n}", max_tokens=2, priority=-(urgent == "short")) for n in range(3)]
    long = [make_job([98 + n, *LONG], max_tokens=2, priority=-(urgent == "long")) for n in range(3)]
    expected = [0, 2, 4, 1, 3, 5] if urgent == "short" else [1, 3, 5, 0, 2, 4]
    assert order_of([job for pair in zip(short, long, strict=True) for job in pair]) == expected


@pytest.mark.parametrize("priority", [-1000, 1000])
def test_a_priority_places_no_request_before_those_of_other_clients(priority: int) -> None:
    """The other client's request begins as early as without priorities."""
    steps = []
    for each in (0, priority):
        engine = make_engine(rows=2)
        for number in range(12):
            engine.add(make_job(f"{number}", client=BUSY, max_tokens=20, ignore_end=True, priority=each))
        engine.step()
        steps.append(steps_until_first_token(engine, make_job("small", client=SMALL, max_tokens=1)))
    assert steps[0] == steps[1]


def test_requests_of_all_priorities_end_and_cancelled_ones_leave_nothing() -> None:
    engine = make_engine(rows=3, blocks=512)
    jobs = [make_job(f"{n}", client=n % 2, priority=n % 5 - 2, choices=2, max_tokens=9, seed=n) for n in range(20)]
    gone = {jobs[n].id for n in (3, 8, 19)}

    def cancel(step: int) -> None:
        if step == 4:
            for job in gone:
                engine.cancel(engine.jobs[job].request)

    results = run(engine, jobs, before_step=cancel)
    for job in jobs:
        if job.id not in gone:
            assert results.jobs[job.id].bits == run_alone(job).bits
    assert engine.idle and engine.cache.pool.num_used == 0
