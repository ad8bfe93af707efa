from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from itertools import cycle, product

import pytest

from onward.engine.job import Job
from onward.engine.pacing import MAX_PREFILL_STEPS, PrefillPacer
from onward.engine.scheduler import ScheduledSequence
from onward.engine.step import Engine
from onward.engine.step_cost import StepCost
from onward.runtimes.toy.model import STEP_SHAPE

from .harness import all_ended, make_engine, make_job, run

SHAPE = STEP_SHAPE
MIN_PREFILL, MAX_PREFILL, TILE = SHAPE.min_prefill_tokens, SHAPE.max_prefill_tokens, SHAPE.tile_tokens


def prefills(step: list[ScheduledSequence]) -> list[ScheduledSequence]:
    return [scheduled for scheduled in step if scheduled.num_tokens > 1]


def prompt(length: int, letter: str = "a") -> list[int]:
    return [ord(letter)] * length


def test_a_long_prompt_is_prefilled_in_chunks_beside_the_others() -> None:
    engine = make_engine()
    scheduler = engine.scheduler
    decoding, long = make_job(max_tokens=500, ignore_end=True), make_job(prompt(1000), max_tokens=1)
    engine.add(decoding)
    engine.step()
    engine.add(long)
    chunks = []
    while scheduler.admission or any(sequence.is_prefilling for sequence in scheduler.running):
        step = scheduler.schedule(96).scheduled
        assert [scheduled.sequence.job for scheduled in step if scheduled.num_tokens == 1] == [decoding]
        chunks += [scheduled.num_tokens for scheduled in prefills(step)]
        for scheduled in step:
            scheduler.advance(scheduled)
    assert sum(chunks) == 1000
    assert all(count == 96 for count in chunks[:-1])


def test_no_prompt_leaves_a_single_token_for_the_last_chunk() -> None:
    for length in (33, 65, 97, 129):
        engine = make_engine()
        engine.add(make_job(prompt(length)))
        counts = []
        while not counts or engine.scheduler.running[0].is_prefilling:
            (scheduled,) = engine.scheduler.schedule(32).scheduled
            counts.append(scheduled.num_tokens)
            engine.scheduler.advance(scheduled)
        assert sum(counts) == length and 1 not in counts


def steps_until_gone(
    engine: Engine, job: Job, before_step: Callable[[], None] = lambda: None, limit: int = 2000
) -> int:
    for step in range(limit):
        if all(sequence.job is not job for sequence in engine.scheduler.sequences()):
            return step
        before_step()
        engine.step()
        engine.check()
    return limit


@pytest.mark.parametrize("longs", ["a", "abcdefgh"])
def test_a_short_prompt_waits_for_no_number_of_long_ones(longs: str) -> None:
    engine = make_engine()
    for letter in longs:
        engine.add(make_job(prompt(1500, letter), max_tokens=1))
    for _ in longs:
        engine.step()
    short = make_job(prompt(40, "z"), max_tokens=1)
    engine.add(short)
    assert steps_until_gone(engine, short) <= 4


def test_a_long_prompt_that_is_cached_but_for_its_end_waits_for_no_number_of_others() -> None:
    engine = make_engine(blocks=600)
    known = make_job(prompt(1500, "z"), max_tokens=1)
    engine.add(known)
    steps_until_gone(engine, known)
    for letter in "abcdefgh":
        engine.add(make_job(prompt(1500, letter), max_tokens=1))
    engine.step()
    longer = make_job(prompt(1500, "z") + prompt(40, "y"), max_tokens=1)
    engine.add(longer)
    assert steps_until_gone(engine, longer) <= 4


def steps_of_a_long_prompt_among_ever_more_short_ones(rows: int, blocks: int) -> int:
    """Eight short ones wait at any time; how many steps until the long one has ended, at most 2,000."""
    engine = make_engine(rows=rows, blocks=blocks, context=1200)
    letters = cycle("bcdefghijklmnopqrstuvwxyz")

    def refill() -> None:
        while len(engine.scheduler.admission) < 8:
            engine.add(make_job(prompt(40, next(letters)), max_tokens=4, ignore_end=True))

    refill()
    engine.step()
    long = make_job(prompt(1100), max_tokens=4, ignore_end=True)
    engine.add(long)
    return steps_until_gone(engine, long, before_step=refill)


def test_a_long_prompt_is_prefilled_however_many_short_ones_come() -> None:
    assert steps_of_a_long_prompt_among_ever_more_short_ones(rows=64, blocks=400) < 200


def test_a_long_prompt_gets_the_only_row_however_many_short_ones_come() -> None:
    assert steps_of_a_long_prompt_among_ever_more_short_ones(rows=1, blocks=400) < 200


def test_a_long_prompt_gets_scarce_memory_however_many_short_ones_come() -> None:
    assert steps_of_a_long_prompt_among_ever_more_short_ones(rows=64, blocks=42) < 200


def test_one_request_of_long_prompts_does_not_hold_up_short_ones_when_memory_is_tight() -> None:
    engine = make_engine(blocks=42, context=1200)
    for letter in "abc":
        engine.add(make_job(prompt(1100, letter), request=1, max_tokens=90, ignore_end=True))
    short = [make_job(prompt(40, letter), max_tokens=4, ignore_end=True) for letter in "defghijklmno"]
    for job in short:
        engine.add(job)
    ended: list[int] = []
    for _ in range(60):
        ended += [event.job for event in engine.step() if getattr(event, "finish_reason", None)]
    assert sorted(ended) == [job.id for job in short], "of the long ones the first still decodes"


def test_requests_take_turns_so_that_a_large_one_does_not_hold_up_a_small_one() -> None:
    engine = make_engine(rows=8)
    for letter in "abcdefghijklmnopqrst":
        engine.add(make_job(prompt(40, letter), request=1, max_tokens=50, ignore_end=True))
    small = make_job(prompt(40, "z"), request=2, max_tokens=2, ignore_end=True)
    engine.add(small)
    assert steps_until_gone(engine, small) < 10


def test_one_request_never_takes_all_rows() -> None:
    engine = make_engine(rows=8)
    engine.add(make_job(choices=20, max_tokens=100, ignore_end=True))
    for _ in range(5):
        engine.step()
    assert len(engine.scheduler.running) == 6


def test_what_does_not_fit_holds_back_what_comes_later_and_is_served_in_time() -> None:
    engine = make_engine(blocks=20, context=600)
    holder = make_job(prompt(300), max_tokens=100, ignore_end=True)
    large = make_job(prompt(500, "b"), max_tokens=4, ignore_end=True)
    small = [make_job(prompt(40, letter), max_tokens=4, ignore_end=True) for letter in "cdef"]
    jobs = [holder, large, *small]
    results = run(engine, jobs)
    assert all(all_ended(results.jobs[job.id]) for job in jobs)


def test_preempted_sequences_go_on_before_new_ones() -> None:
    engine = make_engine(blocks=10, context=320)
    old = [make_job(prompt(40, letter), max_tokens=150, ignore_end=True) for letter in "ab"]
    for job in old:
        engine.add(job)
    while not engine.scheduler.num_preemptions:
        engine.step()
    late = make_job(prompt(40, "z"), max_tokens=150, ignore_end=True)
    engine.add(late)
    ended: list[int] = []
    while not engine.idle:
        ended += [event.job for event in engine.step() if getattr(event, "finish_reason", None)]
    assert ended[-1] == late.id


def pacer_of(rows: int, step: float, prompt_token: float) -> PrefillPacer:
    """One that has seen steps of so many decode rows, with prompt tokens and without; in seconds."""
    cost = StepCost()
    for _ in range(50):
        cost.observe(num_prompt_tokens=0, num_rows=rows, seconds=step)
        cost.observe(num_prompt_tokens=64, num_rows=rows, seconds=step + 64 * prompt_token)
    return PrefillPacer(cost, SHAPE)


def test_the_pacer_prefills_much_when_nothing_decodes_and_little_beside_decodes() -> None:
    pacer = pacer_of(rows=8, step=0.020, prompt_token=0.0002)
    assert pacer.budget(num_decoding=0, num_prefilling=1, is_short=False) == MAX_PREFILL
    assert pacer.budget(num_decoding=8, num_prefilling=1, is_short=False) == 120, (
        "120 tokens cost 24 ms more: two tiles with 8 rows"
    )
    assert pacer.budget(num_decoding=8, num_prefilling=16, is_short=False) == 376, (
        "many that wait outweigh few that decode"
    )


def test_a_long_prompt_alone_is_prefilled_in_small_chunks_and_others_a_tile_at_a_time() -> None:
    pacer = pacer_of(rows=4, step=0.018, prompt_token=0.00075)
    assert pacer.budget(num_decoding=4, num_prefilling=1, is_short=False) == 20, (
        "24 tokens take as long as a step; 28 would not do"
    )
    assert pacer.budget(num_decoding=4, num_prefilling=1, is_short=True) == 60
    assert pacer.budget(num_decoding=4, num_prefilling=2, is_short=False) == 60


def test_after_many_steps_with_prompt_tokens_one_only_decodes_and_shows_what_decode_costs() -> None:
    cost = StepCost()
    pacer = PrefillPacer(cost, SHAPE)
    budgets = []
    for _ in range(3 * MAX_PREFILL_STEPS):
        budgets.append(pacer.budget(num_decoding=21, num_prefilling=11, is_short=True))
        cost.observe(num_prompt_tokens=budgets[-1], num_rows=21, seconds=0.056 if budgets[-1] else 0.031)
    assert [step for step, budget in enumerate(budgets) if not budget] == [MAX_PREFILL_STEPS, 2 * MAX_PREFILL_STEPS + 1]
    assert pacer.budget(num_decoding=0, num_prefilling=11, is_short=True) == MAX_PREFILL


@pytest.mark.parametrize(("held_up", "tiles"), [(0, 4), (1, 1), (3, 1)])
def test_a_decode_that_the_machine_held_up_makes_later_steps_prefill_little_more(held_up: int, tiles: int) -> None:
    """Of the decode-only steps, one in MAX_PREFILL_STEPS, one takes ten seconds. Of the first less is known."""
    cost = StepCost()
    pacer = PrefillPacer(cost, SHAPE)
    cost.observe(num_prompt_tokens=128, num_rows=0, seconds=0.105)
    budgets = []
    while len(budgets) < 8 * MAX_PREFILL_STEPS:
        budgets.append(pacer.budget(num_decoding=8, num_prefilling=8, is_short=True))
        late = not budgets[-1] and budgets.count(0) == held_up + 1
        cost.observe(num_prompt_tokens=budgets[-1], num_rows=8, seconds=10.0 if late else 0.020 + 0.0007 * budgets[-1])
    assert budgets[0] <= max(budgets) <= budgets[0] + tiles * TILE


@pytest.mark.parametrize("step", [0.002, 0.020, 0.2])
def test_however_long_the_step_that_came_first_the_first_decode_shows_what_decode_costs(step: float) -> None:
    """The first step prepares kernels, and may take seconds."""
    cost = StepCost()
    cost.observe(num_prompt_tokens=128, num_rows=0, seconds=3.0)
    cost.observe(num_prompt_tokens=0, num_rows=4, seconds=step)
    assert cost.decode_only(4) == pytest.approx(step)


def test_a_step_without_a_budget_decodes_only() -> None:
    engine = make_engine()
    engine.add(make_job(max_tokens=50, ignore_end=True))
    engine.step()
    engine.add(make_job(prompt(100), max_tokens=1))
    for _ in range(2):
        step = engine.scheduler.schedule(0).scheduled
        assert [scheduled.is_prefill for scheduled in step] == [False]


def test_a_decoding_sequence_that_must_give_up_its_blocks_leaves_a_step_that_prefills() -> None:
    engine = make_engine(blocks=11, context=320)
    scheduler = engine.scheduler
    prefilling, decoding = (
        make_job(prompt(280), max_tokens=1),
        make_job(prompt(30, "b"), max_tokens=40, ignore_end=True),
    )
    engine.add(prefilling)
    scheduler.schedule(32)
    engine.add(decoding)
    while not scheduler.num_preemptions:
        step = scheduler.schedule(MIN_PREFILL if scheduler.running[-1].is_prefilling else 0).scheduled
        assert step
        for scheduled in step:
            scheduler.advance(scheduled)
            if not scheduled.sequence.is_prefilling and scheduled.sequence.job is decoding:
                scheduled.sequence.tokens.append(0)
    assert [scheduled.sequence.job for scheduled in step] == [prefilling]
    assert [each.job for each in scheduler.sequences() if each not in scheduler.running] == [decoding]


def test_no_step_beside_decodes_has_a_tile_of_tokens_that_is_half_empty() -> None:
    pacer = pacer_of(rows=8, step=0.020, prompt_token=0.0005)
    for num_decoding in range(1, 200):
        for num_prefilling, short in product((1, 3, 40, 500), (False, True)):
            tokens = pacer.budget(num_decoding, num_prefilling, is_short=short)
            assert tokens >= MIN_PREFILL
            assert num_decoding + tokens <= TILE or (num_decoding + tokens) % TILE == 0


def test_imperceptible_steps_prefill_more() -> None:
    pacer = pacer_of(rows=4, step=0.001, prompt_token=0.00004)
    assert pacer.budget(num_decoding=4, num_prefilling=1, is_short=True) == 252, (
        "220 prompt tokens take the 9 ms that are left of 10"
    )


def test_the_prompt_with_the_least_left_is_prefilled_first_but_the_oldest_is_prefilled_too() -> None:
    engine = make_engine()
    long = make_job(prompt(1000), max_tokens=1)
    engine.add(long)
    engine.scheduler.schedule(32)
    prefilled = Counter[bool]()
    for letter in "bcdefghi":
        engine.add(make_job(prompt(64, letter), max_tokens=1))
        for _ in range(2):
            for scheduled in engine.scheduler.schedule(32).scheduled:
                prefilled[scheduled.sequence.job is long] += scheduled.num_tokens * scheduled.is_prefill
                engine.scheduler.advance(scheduled)
    assert prefilled == {True: 4 * 32, False: 12 * 32}


def test_however_expensive_prefill_is_a_chunk_may_be_computed() -> None:
    cost = StepCost()
    pacer = PrefillPacer(cost, SHAPE)
    cost.observe(num_prompt_tokens=0, num_rows=1, seconds=0.001)
    cost.observe(num_prompt_tokens=64, num_rows=1, seconds=1.0)
    assert MIN_PREFILL <= pacer.budget(num_decoding=1, num_prefilling=1, is_short=False) <= 4 * MIN_PREFILL


def test_only_generated_tokens_of_a_job_that_cannot_be_repeated_may_have_other_bits() -> None:
    """Its prompt's keys and values are for everybody."""
    engine = make_engine()
    engine.add(replace(make_job(prompt(40), max_tokens=9, ignore_end=True, score_top=1), repeatable=False))
    flags = []
    while not engine.idle:
        step = engine.scheduler.schedule(MIN_PREFILL).scheduled
        flags += [(scheduled.is_prefill, row.repeatable) for scheduled in step for row in scheduled.rows()]
        engine._accept(step, engine.model.evaluate([row for scheduled in step for row in scheduled.rows()]), [])
    assert set(flags) == {(True, True), (False, False)}
