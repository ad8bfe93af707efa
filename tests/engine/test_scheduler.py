"""Which prompt tokens and decodes share a step, who waits, and who is preempted."""

from collections import Counter
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import replace
from itertools import cycle, product

import pytest

from onward.constraints import local
from onward.constraints.choice import Outcome
from onward.constraints.grammar import choice_grammar
from onward.engine.job import Job
from onward.engine.model import StepShape
from onward.engine.pacing import MAX_PREFILL_STEPS, MAX_STEP_STRETCH, PrefillPacer, StepCost
from onward.engine.scheduler import ScheduledSequence, prefill_budget
from onward.engine.step import Engine
from onward.runtimes.toy.model import STEP_SHAPE

from .harness import all_ended, finished_jobs, make_engine, make_job, run

SHAPE = STEP_SHAPE
MIN_PREFILL, MAX_PREFILL, TILE = SHAPE.min_prefill_tokens, SHAPE.max_prefill_tokens, SHAPE.tile_tokens


def prefills(step: list[ScheduledSequence]) -> list[ScheduledSequence]:
    return [scheduled for scheduled in step if scheduled.num_tokens > 1]


def prompt(length: int, letter: str = "a") -> list[int]:
    return [ord(letter)] * length


def test_a_long_prompt_is_prefilled_in_chunks_with_decodes() -> None:
    engine = make_engine()
    scheduler = engine.scheduler
    decoding, long = make_job(max_tokens=500, ignore_end=True), make_job(prompt(1000), max_tokens=1)
    engine.add(decoding)
    engine.step()
    engine.add(long)
    chunks: list[int] = []
    while scheduler.admission or any(sequence.is_prefilling for sequence in scheduler.running):
        step = scheduler.schedule(96).scheduled
        assert [scheduled.sequence.job for scheduled in step if scheduled.num_tokens == 1] == [decoding]
        chunks += [scheduled.num_tokens for scheduled in prefills(step)]
        for scheduled in step:
            scheduler.advance(scheduled)
    assert sum(chunks) == 1000
    assert all(count == 96 for count in chunks[:-1])


def test_the_last_chunk_of_a_prompt_is_never_a_single_token() -> None:
    for length in (33, 65, 97, 129):
        engine = make_engine()
        engine.add(make_job(prompt(length)))
        counts: list[int] = []
        while not counts or engine.scheduler.running[0].is_prefilling:
            (scheduled,) = engine.scheduler.schedule(32).scheduled
            counts.append(scheduled.num_tokens)
            engine.scheduler.advance(scheduled)
        assert sum(counts) == length and 1 not in counts


def steps_until_ended(
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
def test_long_prompts_do_not_delay_a_short_one(longs: str) -> None:
    engine = make_engine()
    for letter in longs:
        engine.add(make_job(prompt(1500, letter), max_tokens=1))
    for _ in longs:
        engine.step()
    short = make_job(prompt(40, "z"), max_tokens=1)
    engine.add(short)
    assert steps_until_ended(engine, short) <= 4


def test_long_prompts_do_not_delay_one_that_is_mostly_cached() -> None:
    engine = make_engine(blocks=600)
    known = make_job(prompt(1500, "z"), max_tokens=1)
    engine.add(known)
    steps_until_ended(engine, known)
    for letter in "abcdefgh":
        engine.add(make_job(prompt(1500, letter), max_tokens=1))
    engine.step()
    longer = make_job(prompt(1500, "z") + prompt(40, "y"), max_tokens=1)
    engine.add(longer)
    assert steps_until_ended(engine, longer) <= 4


def steps_of_a_long_prompt_beside_a_stream_of_short_ones(rows: int, blocks: int) -> int:
    """The steps until a long job has ended while eight short prompts wait at any time; at most 2,000."""
    engine = make_engine(rows=rows, blocks=blocks, context=1200)
    letters = cycle("bcdefghijklmnopqrstuvwxyz")

    def refill() -> None:
        while len(engine.scheduler.admission) < 8:
            engine.add(make_job(prompt(40, next(letters)), max_tokens=4, ignore_end=True))

    refill()
    engine.step()
    long = make_job(prompt(1100), max_tokens=4, ignore_end=True)
    engine.add(long)
    return steps_until_ended(engine, long, before_step=refill)


def test_a_long_prompt_is_prefilled_during_a_stream_of_short_ones() -> None:
    assert steps_of_a_long_prompt_beside_a_stream_of_short_ones(rows=64, blocks=400) < 200


def test_a_long_prompt_is_admitted_to_the_only_row_during_a_stream_of_short_ones() -> None:
    assert steps_of_a_long_prompt_beside_a_stream_of_short_ones(rows=1, blocks=400) < 200


def test_a_long_prompt_is_admitted_to_scarce_memory_during_a_stream_of_short_ones() -> None:
    assert steps_of_a_long_prompt_beside_a_stream_of_short_ones(rows=64, blocks=42) < 200


def test_a_request_of_long_prompts_does_not_delay_short_ones_in_scarce_memory() -> None:
    engine = make_engine(blocks=42, context=1200)
    for letter in "abc":
        engine.add(make_job(prompt(1100, letter), request=1, max_tokens=90, ignore_end=True))
    short = [make_job(prompt(40, letter), max_tokens=4, ignore_end=True) for letter in "defghijklmno"]
    for job in short:
        engine.add(job)
    ended: list[int] = []
    for _ in range(60):
        ended += finished_jobs(engine.step())
    assert sorted(ended) == [job.id for job in short], "the first of the long ones still decodes"


def test_requests_take_turns_so_that_a_large_one_does_not_delay_a_small_one() -> None:
    engine = make_engine(rows=8)
    for letter in "abcdefghijklmnopqrst":
        engine.add(make_job(prompt(40, letter), request=1, max_tokens=50, ignore_end=True))
    small = make_job(prompt(40, "z"), request=2, max_tokens=2, ignore_end=True)
    engine.add(small)
    assert steps_until_ended(engine, small) < 10


def test_one_request_never_takes_all_rows() -> None:
    engine = make_engine(rows=8)
    engine.add(make_job(choices=20, max_tokens=100, ignore_end=True))
    for _ in range(5):
        engine.step()
    assert len(engine.scheduler.running) == 6


def test_a_prompt_that_does_not_fit_yet_is_admitted_once_memory_is_free() -> None:
    engine = make_engine(blocks=20, context=600)
    holder = make_job(prompt(300), max_tokens=100, ignore_end=True)
    large = make_job(prompt(500, "b"), max_tokens=4, ignore_end=True)
    small = [make_job(prompt(40, letter), max_tokens=4, ignore_end=True) for letter in "cdef"]
    jobs = [holder, large, *small]
    results = run(engine, jobs)
    assert all(all_ended(results.jobs[job.id]) for job in jobs)


def test_preempted_sequences_are_resumed_before_new_ones_are_admitted() -> None:
    engine = make_engine(blocks=10, context=320)
    old = [make_job(prompt(40, letter), max_tokens=150, ignore_end=True) for letter in "ab"]
    for job in old:
        engine.add(job)
    while not engine.scheduler.reclaim.num_preemptions:
        engine.step()
    late = make_job(prompt(40, "z"), max_tokens=150, ignore_end=True)
    engine.add(late)
    ended: list[int] = []
    while not engine.idle:
        ended += finished_jobs(engine.step())
    assert ended[-1] == late.id


def pacer_of(rows: int, step: float, prompt_token: float) -> PrefillPacer:
    """A pacer after steps of `rows` decode rows that took `step` seconds, and `prompt_token` more per prompt token."""
    cost = StepCost()
    for _ in range(50):
        cost.observe(num_prompt_tokens=0, num_rows=rows, seconds=step)
        cost.observe(num_prompt_tokens=64, num_rows=rows, seconds=step + 64 * prompt_token)
    return PrefillPacer(cost, SHAPE)


def test_the_budget_is_large_when_nothing_decodes_and_small_with_decodes() -> None:
    pacer = pacer_of(rows=8, step=0.020, prompt_token=0.0002)
    assert pacer.budget(num_decoding=0, num_prefilling=1, is_short=False) == MAX_PREFILL
    assert pacer.budget(num_decoding=8, num_prefilling=1, is_short=False) == 120, (
        "120 tokens cost 24 ms more: two tiles with 8 rows"
    )


def measured_pacer(base: float, row: float, prompt_token: float, shape: StepShape) -> PrefillPacer:
    """A pacer that has observed steps of all kinds: `base` seconds, and so many per decode row and per prompt token."""
    cost = StepCost()
    for num_rows, num_prompt_tokens in 8 * list(product((1, 8, 32, 64), (0, 16, 0, 64))):
        cost.observe(num_prompt_tokens, num_rows, base + row * num_rows + prompt_token * num_prompt_tokens)
    return PrefillPacer(cost, shape)


@pytest.mark.parametrize("tile", [8, 64])
@pytest.mark.parametrize("prompt_token", [0.002, 0.005, 0.020])
def test_a_step_with_prompts_takes_at_most_twice_as_long_as_one_in_which_all_decode(
    prompt_token: float, tile: int
) -> None:
    """Except for a tile, which is the least that is computed of a short prompt, or of several."""
    base, row = 0.035, 0.005
    pacer = measured_pacer(base, row, prompt_token, replace(SHAPE, tile_tokens=tile, min_prefill_tokens=1))
    for num_decoding, num_prefilling, short in product((1, 2, 7, 20, 31, 60), (1, 2, 12, 30), (False, True)):
        tokens = pacer.budget(num_decoding, num_prefilling, is_short=short)
        seconds = base + row * num_decoding + prompt_token * tokens
        longest = MAX_STEP_STRETCH * (base + row * (num_decoding + num_prefilling))
        assert tokens
        assert seconds <= 1.02 * longest + prompt_token * tile
        assert tokens == MAX_PREFILL or seconds >= 0.98 * longest - prompt_token * tile


def test_the_fewer_of_some_sequences_decode_the_more_is_prefilled() -> None:
    """So few decoding sequences beside many prompts do not remain few."""
    pacer = measured_pacer(base=0.035, row=0.005, prompt_token=0.005, shape=replace(SHAPE, tile_tokens=1))
    budgets = [pacer.budget(num_decoding, 32 - num_decoding, is_short=True) for num_decoding in range(1, 32)]
    assert budgets == sorted(budgets, reverse=True) and budgets[0] > budgets[-1]


def test_prompts_that_wait_for_a_row_make_no_step_longer() -> None:
    engine = make_engine(rows=4)
    for letter in "abc":
        engine.add(make_job(prompt(20, letter), max_tokens=500, ignore_end=True))
    while any(sequence.is_prefilling for sequence in engine.scheduler.running) or engine.scheduler.admission:
        engine.step()
    pacer = measured_pacer(base=0.035, row=0.005, prompt_token=0.005, shape=replace(SHAPE, tile_tokens=1))
    budgets = set[int]()
    for letter in "defghijk":
        engine.add(make_job(prompt(20, letter), max_tokens=1))
        budgets.add(prefill_budget(engine.scheduler, pacer))
    assert budgets == {pacer.budget(num_decoding=3, num_prefilling=1, is_short=True)}


def test_a_lone_long_prompt_is_prefilled_in_small_chunks_and_others_in_whole_tiles() -> None:
    pacer = pacer_of(rows=4, step=0.018, prompt_token=0.00075)
    assert pacer.budget(num_decoding=4, num_prefilling=1, is_short=False) == 20, (
        "24 prompt tokens take as long as a step, and steps have multiples of 8"
    )
    assert pacer.budget(num_decoding=4, num_prefilling=1, is_short=True) == 60
    assert pacer.budget(num_decoding=4, num_prefilling=2, is_short=False) == 60


def test_the_first_step_and_one_in_many_decode_only_to_measure_the_cost_of_decode() -> None:
    cost = StepCost()
    pacer = PrefillPacer(cost, SHAPE)
    budgets: list[int] = []
    for _ in range(3 * MAX_PREFILL_STEPS):
        budgets.append(pacer.budget(num_decoding=21, num_prefilling=11, is_short=True))
        cost.observe(num_prompt_tokens=budgets[-1], num_rows=21, seconds=0.056 if budgets[-1] else 0.031)
    assert [step for step, budget in enumerate(budgets) if not budget] == [
        0, MAX_PREFILL_STEPS + 1, 2 * MAX_PREFILL_STEPS + 2,
    ]  # fmt: skip
    assert pacer.budget(num_decoding=0, num_prefilling=11, is_short=True) == MAX_PREFILL


@pytest.mark.parametrize(("num_before", "tiles"), [(0, 3), (1, 1), (3, 1)])
def test_a_slow_outlier_among_decode_only_steps_hardly_raises_later_budgets(num_before: int, tiles: int) -> None:
    """One decode-only step takes ten seconds, after `num_before` usual ones. The first step has little to be compared
    with."""
    cost = StepCost()
    pacer = PrefillPacer(cost, SHAPE)
    cost.observe(num_prompt_tokens=128, num_rows=0, seconds=0.105)
    budgets: list[int] = []
    while len(budgets) < 8 * MAX_PREFILL_STEPS:
        budgets.append(pacer.budget(num_decoding=8, num_prefilling=8, is_short=True))
        late = not budgets[-1] and budgets.count(0) == num_before + 1
        cost.observe(num_prompt_tokens=budgets[-1], num_rows=8, seconds=10.0 if late else 0.020 + 0.0007 * budgets[-1])
    usual = TILE - 8
    assert usual <= max(budgets) <= usual + tiles * TILE


@pytest.mark.parametrize("step", [0.002, 0.020, 0.2])
def test_a_slow_first_step_does_not_distort_the_cost_of_decode(step: float) -> None:
    """The first step prepares kernels, which may take seconds."""
    cost = StepCost()
    cost.observe(num_prompt_tokens=128, num_rows=0, seconds=3.0)
    cost.observe(num_prompt_tokens=0, num_rows=4, seconds=step)
    assert cost.decode_only(4) == pytest.approx(step)


@pytest.mark.parametrize(("num_tokens", "seconds"), [(16, 3.0), (128, 3.0), (512, 10.0)])
def test_a_slow_first_step_does_not_keep_budgets_small(num_tokens: int, seconds: float) -> None:
    """With small tiles, all steps are alike then, which hides what a prompt token costs."""

    def budget_after(first_seconds: float) -> int:
        cost = StepCost()
        pacer = PrefillPacer(cost, replace(SHAPE, tile_tokens=8, min_prefill_tokens=1))
        cost.observe(num_tokens, 0, first_seconds)
        budgets: list[int] = []
        for _ in range(300):
            budgets.append(pacer.budget(num_decoding=8, num_prefilling=4, is_short=True))
            cost.observe(budgets[-1], 8, 0.075 + 0.0042 * budgets[-1])
        return max(budgets[-MAX_PREFILL_STEPS:])

    assert budget_after(seconds) >= budget_after(0.0042 * num_tokens) - 8


def test_a_budget_of_one_token_completes_a_prompt() -> None:
    """With a runtime whose smallest chunk is one token."""
    engine = make_engine()
    engine.cache.shape = replace(SHAPE, min_prefill_tokens=1)
    engine.add(make_job(max_tokens=50, ignore_end=True))
    engine.step()
    engine.add(make_job(prompt(6, "z"), max_tokens=1))
    chunks: list[int] = []
    for _ in range(6):
        step = engine.scheduler.schedule(1).scheduled
        chunks += [scheduled.num_tokens for scheduled in step if scheduled.is_prefill]
        for scheduled in step:
            engine.scheduler.advance(scheduled)
    assert chunks == [1, 1, 1, 1, 2]


def test_a_step_without_a_budget_decodes_only() -> None:
    engine = make_engine()
    engine.add(make_job(max_tokens=50, ignore_end=True))
    engine.step()
    engine.add(make_job(prompt(100), max_tokens=1))
    for _ in range(2):
        step = engine.scheduler.schedule(0).scheduled
        assert [scheduled.is_prefill for scheduled in step] == [False]


def test_a_step_that_preempts_the_only_decoding_sequence_prefills() -> None:
    engine = make_engine(blocks=11, context=320)
    scheduler = engine.scheduler
    prefilling, decoding = (
        make_job(prompt(280), max_tokens=1),
        make_job(prompt(30, "b"), max_tokens=40, ignore_end=True),
    )
    engine.add(prefilling)
    scheduler.schedule(32)
    engine.add(decoding)
    while not scheduler.reclaim.num_preemptions:
        step = scheduler.schedule(MIN_PREFILL if scheduler.running[-1].is_prefilling else 0).scheduled
        assert step
        for scheduled in step:
            scheduler.advance(scheduled)
            if not scheduled.sequence.is_prefilling and scheduled.sequence.job is decoding:
                scheduled.sequence.tokens.append(0)
    assert [scheduled.sequence.job for scheduled in step] == [prefilling]
    assert [each.job for each in scheduler.sequences() if each not in scheduler.running] == [decoding]


@pytest.mark.parametrize("num_before", [0, MAX_PREFILL_STEPS])
def test_a_step_that_suspends_the_only_decoding_sequence_prefills(num_before: int) -> None:
    """Although its budget was meant for one that only decodes, to measure what that costs."""
    engine = make_engine(rows=1)
    engine.add(make_job(max_tokens=50, ignore_end=True, client=1))
    engine.step()
    for _ in range(num_before):
        engine._cost.observe(num_prompt_tokens=0, num_rows=1, seconds=0.02)
    for _ in range(num_before):
        engine._cost.observe(num_prompt_tokens=8, num_rows=1, seconds=0.03)
    heavy = make_job(prompt(40), max_tokens=3, client=2, weight=4)
    engine.add(heavy)
    assert prefill_budget(engine.scheduler, engine._pacer) == 0
    assert steps_until_ended(engine, heavy) < 10
    while not engine.idle:
        engine.step()


@pytest.mark.parametrize("num_before", [0, MAX_PREFILL_STEPS])
def test_a_prompt_does_not_wait_for_masks_of_others(num_before: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A step that is meant to measure what decode costs cannot, while all that decode are held by their grammars."""
    engine = make_engine()
    monkeypatch.setattr(local, "SLOW_SECONDS", -1.0)
    monkeypatch.setattr(local.SlowMasks, "submit", lambda *_: Future[Outcome]())
    engine.add(make_job(max_tokens=20, grammar=choice_grammar(["no"])))
    engine.step()
    assert engine.scheduler.running[0].is_held
    for _ in range(num_before):
        engine._cost.observe(num_prompt_tokens=0, num_rows=1, seconds=0.02)
    for _ in range(num_before):
        engine._cost.observe(num_prompt_tokens=8, num_rows=1, seconds=0.03)
    waiting = make_job(prompt(100), max_tokens=1)
    engine.add(waiting)
    assert prefill_budget(engine.scheduler, engine._pacer) == 0
    assert steps_until_ended(engine, waiting, limit=10) < 10


def test_steps_that_prefill_with_decodes_have_whole_tiles() -> None:
    pacer = pacer_of(rows=8, step=0.020, prompt_token=0.0005)
    for num_decoding in range(1, 200):
        for num_prefilling, short in product((1, 3, 40, 500), (False, True)):
            tokens = pacer.budget(num_decoding, num_prefilling, is_short=short)
            assert tokens >= MIN_PREFILL
            assert num_decoding + tokens <= TILE or (num_decoding + tokens) % TILE == 0


def test_budgets_are_larger_while_steps_are_imperceptibly_short() -> None:
    pacer = pacer_of(rows=4, step=0.001, prompt_token=0.00004)
    assert pacer.budget(num_decoding=4, num_prefilling=1, is_short=True) == 252, (
        "220 prompt tokens take the remaining 9 of 10 ms"
    )


def test_the_prompt_with_the_least_left_is_prefilled_first_and_the_oldest_every_few_steps() -> None:
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


def test_the_budget_is_at_least_one_chunk_however_expensive_prefill_is() -> None:
    cost = StepCost()
    pacer = PrefillPacer(cost, SHAPE)
    cost.observe(num_prompt_tokens=0, num_rows=1, seconds=0.001)
    cost.observe(num_prompt_tokens=64, num_rows=1, seconds=1.0)
    assert MIN_PREFILL <= pacer.budget(num_decoding=1, num_prefilling=1, is_short=False) <= 4 * MIN_PREFILL
