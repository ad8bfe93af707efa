from collections import Counter
from dataclasses import replace
from itertools import cycle, product

import pytest

from onward.engine.model import CHUNK_TOKENS
from onward.engine.pacing import MOST_PROMPT_TOKENS, STALE, TILE, PrefillPacer, StepCost

from .harness import all_ended, make_engine, make_job, run


def reading(works):
    return [work for work in works if work.count > 1]


def prompt(length: int, letter: str = "a") -> list[int]:
    return [ord(letter)] * length


def test_a_long_prompt_is_read_in_chunks_beside_the_others() -> None:
    engine = make_engine()
    scheduler = engine.scheduler
    writer, long = make_job(max_tokens=500, ignore_end=True), make_job(prompt(1000), max_tokens=1)
    engine.add(writer)
    engine.step()
    engine.add(long)
    chunks = []
    while scheduler.waiting or any(sequence.reading for sequence in scheduler.running):
        works = scheduler.schedule(96)
        assert [work.sequence.job for work in works if work.count == 1] == [writer]
        chunks += [work.count for work in reading(works)]
        for work in works:
            scheduler.advance(work)
    assert sum(chunks) == 1000
    assert all(count == 96 for count in chunks[:-1])


def test_no_prompt_leaves_a_single_token_for_the_last_chunk() -> None:
    for length in (33, 65, 97, 129):
        engine = make_engine()
        engine.add(make_job(prompt(length)))
        counts = []
        while not counts or engine.scheduler.running[0].reading:
            (work,) = engine.scheduler.schedule(32)
            counts.append(work.count)
            engine.scheduler.advance(work)
        assert sum(counts) == length and 1 not in counts


def steps_until_gone(engine, job, before_step=lambda: None, most=2000) -> int:
    for step in range(most):
        if all(sequence.job is not job for sequence in engine.scheduler.sequences()):
            return step
        before_step()
        engine.step()
        engine.check()
    return most


@pytest.mark.parametrize("longs", ["a", "abcdefgh"])
def test_a_brief_prompt_waits_for_no_number_of_long_ones(longs: str) -> None:
    engine = make_engine()
    for letter in longs:
        engine.add(make_job(prompt(1500, letter), max_tokens=1))
    for _ in longs:
        engine.step()
    brief = make_job(prompt(40, "z"), max_tokens=1)
    engine.add(brief)
    assert steps_until_gone(engine, brief) <= 4


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


def steps_of_a_long_prompt_among_ever_more_brief_ones(rows: int, blocks: int) -> int:
    """Eight brief ones wait at any time; how many steps until the long one has ended, at most 2,000."""
    engine = make_engine(rows=rows, blocks=blocks, context=1200)
    letters = cycle("bcdefghijklmnopqrstuvwxyz")

    def refill() -> None:
        while engine.scheduler.waiting < 8:
            engine.add(make_job(prompt(40, next(letters)), max_tokens=4, ignore_end=True))

    refill()
    engine.step()
    long = make_job(prompt(1100), max_tokens=4, ignore_end=True)
    engine.add(long)
    return steps_until_gone(engine, long, before_step=refill)


def test_a_long_prompt_is_read_however_many_brief_ones_come() -> None:
    assert steps_of_a_long_prompt_among_ever_more_brief_ones(rows=64, blocks=400) < 200


def test_a_long_prompt_gets_the_only_row_however_many_brief_ones_come() -> None:
    assert steps_of_a_long_prompt_among_ever_more_brief_ones(rows=1, blocks=400) < 200


def test_a_long_prompt_gets_scarce_memory_however_many_brief_ones_come() -> None:
    assert steps_of_a_long_prompt_among_ever_more_brief_ones(rows=64, blocks=42) < 200


def test_one_request_of_long_prompts_does_not_hold_up_brief_ones_when_memory_is_tight() -> None:
    engine = make_engine(blocks=42, context=1200)
    for letter in "abc":
        engine.add(make_job(prompt(1100, letter), request=1, max_tokens=90, ignore_end=True))
    brief = [make_job(prompt(40, letter), max_tokens=4, ignore_end=True) for letter in "defghijklmno"]
    for job in brief:
        engine.add(job)
    ended: list[int] = []
    for _ in range(60):
        ended += [event.job for event in engine.step() if getattr(event, "ending", None)]
    assert sorted(ended) == [job.id for job in brief], "of the long ones the first still writes"


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


def test_preempted_work_goes_on_before_new_work() -> None:
    engine = make_engine(blocks=10, context=320)
    old = [make_job(prompt(40, letter), max_tokens=150, ignore_end=True) for letter in "ab"]
    for job in old:
        engine.add(job)
    while not engine.scheduler.preemptions:
        engine.step()
    late = make_job(prompt(40, "z"), max_tokens=150, ignore_end=True)
    engine.add(late)
    ended: list[int] = []
    while not engine.idle:
        ended += [event.job for event in engine.step() if getattr(event, "ending", None)]
    assert ended[-1] == late.id


def pacer_of(rows: int, step: float, prompt_token: float) -> PrefillPacer:
    """One that has seen steps of so many decode rows, with prompt tokens and without; in seconds."""
    cost = StepCost()
    for _ in range(50):
        cost.observe(prompt_tokens=0, rows=rows, seconds=step)
        cost.observe(prompt_tokens=64, rows=rows, seconds=step + 64 * prompt_token)
    return PrefillPacer(cost)


def test_the_pacer_reads_much_when_nobody_writes_and_little_beside_writers() -> None:
    pacer = pacer_of(rows=8, step=0.020, prompt_token=0.0002)
    assert pacer.budget(writers=0, readers=1, brief=False) == MOST_PROMPT_TOKENS
    assert pacer.budget(writers=8, readers=1, brief=False) == 120, "120 tokens cost 24 ms more: two tiles with 8 rows"
    assert pacer.budget(writers=8, readers=16, brief=False) == 376, "many that wait outweigh few that write"


def test_a_long_prompt_alone_is_read_in_small_chunks_and_others_a_tile_at_a_time() -> None:
    pacer = pacer_of(rows=4, step=0.018, prompt_token=0.00075)
    assert pacer.budget(writers=4, readers=1, brief=False) == 20, "24 tokens take as long as a step; 28 would not do"
    assert pacer.budget(writers=4, readers=1, brief=True) == 60
    assert pacer.budget(writers=4, readers=2, brief=False) == 60


def test_after_many_steps_that_read_one_does_not_and_tells_what_writing_costs() -> None:
    cost = StepCost()
    pacer = PrefillPacer(cost)
    budgets = []
    for _ in range(3 * STALE):
        budgets.append(pacer.budget(writers=21, readers=11, brief=True))
        cost.observe(prompt_tokens=budgets[-1], rows=21, seconds=0.056 if budgets[-1] else 0.031)
    assert [step for step, budget in enumerate(budgets) if not budget] == [STALE, 2 * STALE + 1]
    assert pacer.budget(writers=0, readers=11, brief=True) == MOST_PROMPT_TOKENS


@pytest.mark.parametrize(("held_up", "tiles"), [(0, 4), (1, 1), (3, 1)])
def test_a_decode_that_the_machine_held_up_makes_later_steps_read_little_more(held_up: int, tiles: int) -> None:
    """Of the steps that read nothing, one in STALE, that one takes ten seconds. Of the first less is known."""
    cost = StepCost()
    pacer = PrefillPacer(cost)
    cost.observe(prompt_tokens=128, rows=0, seconds=0.105)
    budgets = []
    while len(budgets) < 8 * STALE:
        budgets.append(pacer.budget(writers=8, readers=8, brief=True))
        late = not budgets[-1] and budgets.count(0) == held_up + 1
        cost.observe(prompt_tokens=budgets[-1], rows=8, seconds=10.0 if late else 0.020 + 0.0007 * budgets[-1])
    assert budgets[0] <= max(budgets) <= budgets[0] + tiles * TILE


@pytest.mark.parametrize("step", [0.002, 0.020, 0.2])
def test_however_long_the_step_that_came_first_the_first_decode_tells_what_writing_costs(step: float) -> None:
    """The first step prepares kernels, and may take seconds."""
    cost = StepCost()
    cost.observe(prompt_tokens=128, rows=0, seconds=3.0)
    cost.observe(prompt_tokens=0, rows=4, seconds=step)
    assert cost.quiet(4) == pytest.approx(step)


def test_a_step_without_a_budget_writes_and_reads_nothing() -> None:
    engine = make_engine()
    engine.add(make_job(max_tokens=50, ignore_end=True))
    engine.step()
    engine.add(make_job(prompt(100), max_tokens=1))
    for _ in range(2):
        works = engine.scheduler.schedule(0)
        assert [work.reads for work in works] == [False]


def test_a_writer_that_must_give_up_its_blocks_leaves_a_step_that_reads() -> None:
    engine = make_engine(blocks=11, context=320)
    scheduler = engine.scheduler
    reader, writer = make_job(prompt(280), max_tokens=1), make_job(prompt(30, "b"), max_tokens=40, ignore_end=True)
    engine.add(reader)
    scheduler.schedule(32)
    engine.add(writer)
    while not scheduler.preemptions:
        works = scheduler.schedule(CHUNK_TOKENS if scheduler.running[-1].reading else 0)
        assert works
        for work in works:
            scheduler.advance(work)
            if not work.sequence.reading and work.sequence.job is writer:
                work.sequence.tokens.append(0)
    assert [work.sequence.job for work in works] == [reader]
    assert [each.job for each in scheduler.sequences() if each not in scheduler.running] == [writer]


def test_no_step_beside_writers_has_a_tile_of_tokens_that_is_half_empty() -> None:
    pacer = pacer_of(rows=8, step=0.020, prompt_token=0.0005)
    for writers in range(1, 200):
        for readers, brief in product((1, 3, 40, 500), (False, True)):
            tokens = pacer.budget(writers, readers, brief=brief)
            assert tokens >= CHUNK_TOKENS
            assert writers + tokens <= TILE or (writers + tokens) % TILE == 0


def test_steps_too_short_to_be_noticed_read_more() -> None:
    pacer = pacer_of(rows=4, step=0.001, prompt_token=0.00004)
    assert pacer.budget(writers=4, readers=1, brief=True) == 252, "220 prompt tokens take the 9 ms that are left of 10"


def test_the_prompt_with_the_least_left_is_read_first_but_the_oldest_is_read_too() -> None:
    engine = make_engine()
    long = make_job(prompt(1000), max_tokens=1)
    engine.add(long)
    engine.scheduler.schedule(32)
    read = Counter[bool]()
    for letter in "bcdefghi":
        engine.add(make_job(prompt(64, letter), max_tokens=1))
        for _ in range(2):
            for work in engine.scheduler.schedule(32):
                read[work.sequence.job is long] += work.count * work.reads
                engine.scheduler.advance(work)
    assert read == {True: 4 * 32, False: 12 * 32}


def test_however_dear_reading_is_a_chunk_may_be_read() -> None:
    cost = StepCost()
    pacer = PrefillPacer(cost)
    cost.observe(prompt_tokens=0, rows=1, seconds=0.001)
    cost.observe(prompt_tokens=64, rows=1, seconds=1.0)
    assert CHUNK_TOKENS <= pacer.budget(writers=1, readers=1, brief=False) <= 4 * CHUNK_TOKENS


def test_only_written_tokens_of_a_job_that_cannot_be_repeated_may_have_other_bits() -> None:
    """Its prompt's keys and values are for everybody."""
    engine = make_engine()
    engine.add(replace(make_job(prompt(40), max_tokens=9, ignore_end=True, score_top=1), repeatable=False))
    flags = []
    while not engine.idle:
        works = engine.scheduler.schedule(CHUNK_TOKENS)
        flags += [(work.reads, row.repeatable) for work in works for row in work.rows()]
        engine._accept(works, engine.model.evaluate([row for work in works for row in work.rows()]), [])
    assert set(flags) == {(True, True), (False, False)}
