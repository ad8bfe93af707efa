"""Background jobs yield: other jobs get their first tokens as on an idle engine, and no capacity is left unused."""

from __future__ import annotations

import random

import pytest

from onward.engine.job import Job
from onward.engine.scheduler import ScheduledSequence
from onward.engine.step import Engine
from tests.examples import slow_but

from .harness import ToyEngine, all_ended, make_engine, make_job, run, run_alone


def background(index: int, length: int = 40, max_tokens: int = 300) -> Job:
    return make_job(
        [65 + index % 20] * length, max_tokens=max_tokens, client=7 + index % 2, ignore_end=True, is_background=True
    )


def work_until_first_token(engine: Engine, job: Job) -> tuple[int, int]:
    """Return the steps until a job has its first token, and the rows that they computed after the first of them."""
    computed: list[int] = []
    schedule = engine.scheduler.schedule

    def counted(budget: int) -> object:
        output = schedule(budget)
        computed.append(sum(scheduled.num_tokens for scheduled in output.scheduled))
        return output

    engine.scheduler.schedule = counted  # type: ignore[assignment, method-assign]
    for _ in range(500):
        events = engine.step()
        engine.check()
        if any(event.job == job.id for event in events):
            engine.scheduler.schedule = schedule  # type: ignore[method-assign]
            return len(computed), sum(computed)
    raise AssertionError("no token")


@pytest.mark.parametrize("length", [3, 40, 900, 1500])
@pytest.mark.parametrize("rows", [1, 4, 64])
def test_a_first_token_comes_as_on_an_idle_engine(length: int, rows: int) -> None:
    def job() -> Job:
        return make_job([122] * length, max_tokens=4)

    alone = make_engine(rows=rows)
    alone.add(first := job())
    steps, computed = work_until_first_token(alone, first)
    engine = make_engine(rows=rows)
    for index in range(3 * rows):
        engine.add(background(index))
    for _ in range(12):
        engine.step()
    engine.add(second := job())
    beside = work_until_first_token(engine, second)
    assert beside[0] <= 2 * steps + 1 and beside[1] <= 2 * computed


def test_a_first_token_does_not_wait_for_the_prompts_of_background_jobs() -> None:
    engine = make_engine(rows=2)
    for index in range(4):
        engine.add(background(index, length=1500, max_tokens=1))
    engine.step()
    engine.add(job := make_job([122] * 40, max_tokens=4))
    assert work_until_first_token(engine, job)[0] <= 3


def test_idle_rows_are_used_while_others_decode() -> None:
    engine = make_engine(rows=8)
    engine.add(make_job([122] * 40, max_tokens=300, ignore_end=True))
    for _ in range(3):
        engine.step()
    for index in range(20):
        engine.add(background(index))
    for _ in range(20):
        engine.step()
    assert len(engine.scheduler.running) == 8
    step: list[ScheduledSequence] = engine.scheduler.schedule(256).scheduled
    assert len({scheduled.sequence.id for scheduled in step}) == 8


def test_a_large_request_at_its_limit_of_rows_leaves_the_others_to_background_jobs() -> None:
    engine = make_engine(rows=8)
    engine.add(make_job([122] * 4, choices=40, max_tokens=300, ignore_end=True))
    for index in range(8):
        engine.add(background(index))
    for _ in range(30):
        engine.step()
    running = [each.job.is_background for each in engine.scheduler.running]
    assert (len(running), sum(running)) == (8, 2)
    assert {each.sequence.job.is_background for each in engine.scheduler.schedule(64).scheduled} == {True, False}


def test_background_jobs_of_two_clients_share_the_rows() -> None:
    engine = make_engine(rows=8)
    for index in range(0, 40, 2):
        engine.add(background(index))
    for _ in range(10):
        engine.step()
    for index in range(1, 40, 2):
        engine.add(background(index))
    for _ in range(30):
        engine.step()
    clients = [each.job.client for each in engine.scheduler.running]
    assert sorted(clients) == [7] * 4 + [8] * 4


@pytest.mark.parametrize("is_background", [False, True])
@pytest.mark.parametrize("order", slow_but([(2, 5, 1)], [(1, 2, 5), (5, 2, 1), (2, 5, 1)]))
def test_clients_share_the_rows_by_their_weights(order: tuple[int, ...], is_background: bool) -> None:
    """Whichever came first: rows beyond a client's share are taken back."""
    engine = make_engine(rows=8)
    for weight in order:
        for index in range(20):
            engine.add(
                make_job(
                    [65 + index] * 9,
                    client=weight,
                    weight=weight,
                    max_tokens=300,
                    ignore_end=True,
                    is_background=is_background,
                )
            )
        for _ in range(40):
            engine.step()
            engine.check()
    weights = [each.job.weight for each in engine.scheduler.running]
    assert sorted(weights) == [1] + [2] * 2 + [5] * 5


def test_a_client_of_great_weight_does_not_shut_out_another_one() -> None:
    engine = make_engine(rows=4)
    for index in range(40):
        engine.add(make_job([65 + index % 20] * 9, client=1, weight=100, max_tokens=300, ignore_end=True))
    for _ in range(10):
        engine.step()
    engine.add(job := make_job([122] * 9, client=2, max_tokens=4))
    for _ in range(600):
        if any(event.job == job.id for event in engine.step()):
            return
    raise AssertionError("it has no token though rows became free")


def test_memory_is_taken_from_background_jobs_first() -> None:
    engine = make_engine(rows=8, blocks=24)
    for index in range(8):
        engine.add(background(index, length=60, max_tokens=200))
    for _ in range(10):
        engine.step()
    engine.add(job := make_job([122] * 200, max_tokens=50, ignore_end=True))
    assert work_until_first_token(engine, job)[0] <= 3
    while any(each.job is job for each in engine.scheduler.sequences()):
        assert any(each.job is job for each in engine.scheduler.running), "it never gives way"
        engine.step()
        engine.check()


@pytest.mark.parametrize("seed", slow_but([0], range(8)))
def test_law_2_background_jobs_have_the_bytes_of_a_job_alone(seed: int) -> None:
    """Law 2, with background jobs that are held, suspended and preempted at random moments."""
    rng = random.Random(seed)
    engine: ToyEngine = make_engine(rows=rng.choice([2, 4, 8]), blocks=rng.choice([24, 64, 400]), context=256)
    jobs = [
        make_job(
            [rng.randrange(65, 70) for _ in range(rng.randrange(2, 120))],
            max_tokens=rng.randrange(1, 30),
            choices=rng.choice([1, 1, 2]),
            client=rng.randrange(4),
            is_background=rng.random() < 0.6,
            seed=index,
        )
        for index in range(24)
    ]
    waiting = jobs[3:]

    def add_some(step: int) -> None:
        engine.check()
        if waiting and rng.random() < 0.3:
            engine.add(waiting.pop())

    results = run(engine, jobs[:3], before_step=add_some)
    for job in (*jobs[:3], *(job for job in jobs[3:] if job not in waiting)):
        assert all_ended(results.jobs[job.id]) and results.jobs[job.id].bits == run_alone(job).bits
