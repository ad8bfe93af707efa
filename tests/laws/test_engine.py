"""Laws 2 to 5 of the design, on the toy model: its text changes with any wrong block, copy, kernel or random number."""

import random
from dataclasses import replace
from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from onward.engine.job import Job
from onward.model_files.toy import END
from onward.runtimes.toy.model import STEP_SHAPE
from onward.text.assembler import TextRules
from tests.engine.harness import TOKENIZER, all_ended, make_engine, make_job, run, run_alone
from tests.examples import examples, slow_but

BLOCK_TOKENS, MIN_SHARED = STEP_SHAPE.block_tokens, STEP_SHAPE.min_prefill_tokens
STORY = "once upon a time there was a little fox who lived at the edge of the wood and the fox was very "


def neighbours(count: int, rng: random.Random) -> list[Job]:
    return [
        make_job(
            [rng.randrange(97, 123) for _ in range(rng.randrange(1, 200))],
            choices=rng.randrange(1, 4),
            max_tokens=rng.randrange(1, 40),
            seed=rng.getrandbits(64),
        )
        for _ in range(count)
    ]


def again(job: Job) -> Job:
    """The same job with another id, as another request."""
    return replace(job, id=make_job().id, request=make_job().id)


# --- law 2: same request, same seed, same bytes ------------------------------------------------------------------


@pytest.mark.parametrize("length", slow_but([33], [1, 2, 31, 32, 33, 34, 63, 64, 65, 66, 97, 200]))
def test_law_2_a_seeded_job_returns_the_same_bytes_alone_and_among_31_others(length: int) -> None:
    prompt = TOKENIZER.encode(STORY * 4, add_special_tokens=True)[:length]
    job = make_job(prompt, choices=3, max_tokens=24, score_top=2, score_ranks=True)
    alone = run_alone(job).bits
    rng = random.Random(length)
    for _ in range(3):
        jobs = neighbours(31, rng)
        twin = again(job)
        jobs.insert(rng.randrange(len(jobs)), twin)
        assert run(make_engine(), jobs).jobs[twin.id].bits == alone


def test_law_2_preemption_does_not_change_a_byte() -> None:
    jobs = [make_job(STORY[:40], max_tokens=150, seed=seed, ignore_end=True, choices=2) for seed in range(6)]
    alone = [run_alone(job, context=512).bits for job in jobs]
    engine = make_engine(blocks=24, context=512)
    together = run(engine, jobs)
    assert engine.scheduler.reclaim.num_preemptions > 0, "memory must be scarce enough to preempt"
    assert [together.jobs[job.id].bits for job in jobs] == alone


def test_law_2_different_seeds_and_choices_sample_different_texts() -> None:
    first = run_alone(make_job(choices=4, max_tokens=30, seed=1))
    second = run_alone(make_job(choices=4, max_tokens=30, seed=2))
    texts = [choice.text for result in (first, second) for choice in result.choices.values()]
    assert len(set(texts)) == 8


# --- law 3: cached = uncached ------------------------------------------------------------------------------------


@pytest.mark.parametrize("score_top", [None, 0, 2])
@pytest.mark.parametrize("length", [9, 10, 33, 34, 64, 65, 66, 96, 97, 130, 161])
def test_law_3_a_cached_prompt_returns_the_same_bytes_and_is_not_computed_again(
    length: int, score_top: int | None
) -> None:
    prompt = TOKENIZER.encode(STORY * 4, add_special_tokens=True)[:length]
    engine = make_engine()
    first, second = (make_job(prompt, score_top=score_top, score_ranks=score_top == 0, max_tokens=3) for _ in range(2))
    cold = run(engine, [first]).jobs[first.id]
    before = engine.model.evaluated_tokens
    warm = run(engine, [second]).jobs[second.id]
    assert cold.num_cached_tokens == 0
    assert warm.bits == cold.bits
    blocks, rest = divmod(length - 2, BLOCK_TOKENS)
    reusable = blocks * BLOCK_TOKENS + (rest if rest >= MIN_SHARED else 0)
    assert warm.num_cached_tokens == reusable - (2 if reusable and score_top is not None else 0)
    decoded = len(warm.choices[0].tokens) - (warm.choices[0].finish_reason == "length")
    assert engine.model.evaluated_tokens - before == length - warm.num_reused_tokens + decoded


def test_law_3_prompts_that_arrive_together_compute_their_common_prefix_once() -> None:
    context = TOKENIZER.encode(STORY * 6, add_special_tokens=True)[:320]
    jobs = [
        make_job([*context, *map(ord, ending)], request=0, max_tokens=1, score_top=1, temperature=0.0)
        for ending in ("alpha", "beta", "gamma", "delta")
    ]
    engine = make_engine()
    results = run(engine, jobs)
    assert engine.model.evaluated_tokens < 320 + 4 * (BLOCK_TOKENS + 8)
    for job in jobs:
        assert results.jobs[job.id].bits == run_alone(job).bits


COMMON = [MIN_SHARED - 1, MIN_SHARED, 20, 31, 32 + 20, 64 + 7, 64 + 8, 64 + 31]


@pytest.mark.parametrize("score_top", [None, 1])
@pytest.mark.parametrize("common", slow_but([MIN_SHARED - 1, MIN_SHARED, 64 + 31], COMMON))
def test_law_3_prompts_that_differ_inside_a_block_share_all_tokens_before_the_difference(
    common: int, score_top: int | None
) -> None:
    stem = TOKENIZER.encode(STORY * 2, add_special_tokens=True)[:common]
    first, second = (
        make_job([*stem, *map(ord, ending)], max_tokens=40, score_top=score_top, choices=2, ignore_end=True)
        for ending in ("A different ending", "Below, what another one says")
    )
    engine = make_engine()
    run(engine, [first])
    result = run(engine, [second]).jobs[second.id]
    assert result.bits == run_alone(second).bits
    whole, rest = divmod(common, BLOCK_TOKENS)
    reusable = whole * BLOCK_TOKENS + (rest if rest >= MIN_SHARED else 0)
    assert result.num_cached_tokens == reusable - (2 if reusable and score_top is not None else 0)


def test_law_3_the_end_of_a_prompt_is_reused_while_its_sequence_decodes_into_the_same_block() -> None:
    stem = TOKENIZER.encode(STORY, add_special_tokens=True)[:50]
    first = make_job(stem, max_tokens=60, ignore_end=True)
    second = make_job([*stem, *b"and so on"], max_tokens=60, ignore_end=True, seed=3)
    engine = make_engine()

    def add_second(step: int) -> None:
        if step == 10:
            assert not engine.idle
            engine.add(second)

    results = run(engine, [first], before_step=add_second)
    assert results.jobs[second.id].num_cached_tokens == 50
    for job in (first, second):
        assert results.jobs[job.id].bits == run_alone(job).bits


def test_law_3_a_prompt_that_grows_token_by_token_has_one_cached_block_for_its_end() -> None:
    typed = TOKENIZER.encode(STORY, add_special_tokens=True)
    engine = make_engine()
    for length in range(40, 64):
        job = make_job(typed[:length], max_tokens=1, score_top=length % 2 or None)
        assert run(engine, [job]).jobs[job.id].bits == run_alone(job).bits
        assert engine.cache.pool.num_cached == 2


def test_law_3_a_block_that_is_evicted_for_the_prompt_that_copies_it_is_copied_first() -> None:
    """Three blocks in all: the second prompt needs all of them, including the one that it copies from."""
    stem = TOKENIZER.encode(STORY, add_special_tokens=True)[:60]
    first = make_job(stem, max_tokens=1)
    second = make_job([*stem[:50], *b"otherwise it goes"], max_tokens=20, ignore_end=True)
    engine = make_engine(blocks=3, context=96)
    run(engine, [first])
    result = run(engine, [second]).jobs[second.id]
    assert result.num_cached_tokens == 50
    assert result.bits == run_alone(second).bits
    assert engine.cache.pool.num_used == 0


def test_law_3_cached_scores_with_too_few_alternatives_are_not_reused() -> None:
    prompt = TOKENIZER.encode(STORY * 4, add_special_tokens=True)[:130]
    engine = make_engine()
    few, many, few_again = (make_job(prompt, score_top=top, max_tokens=1) for top in (1, 4, 1))
    run(engine, [few])
    results = run(engine, [many])
    assert results.jobs[many.id].num_cached_tokens == 0
    assert results.jobs[many.id].bits == run_alone(many).bits
    after = run(engine, [few_again])
    assert after.jobs[few_again.id].num_reused_tokens > 0
    assert after.jobs[few_again.id].bits == run_alone(few).bits


def test_law_3_cached_scores_without_ranks_are_not_reused_for_ranks_and_both_are_kept() -> None:
    prompt = TOKENIZER.encode(STORY * 4, add_special_tokens=True)[:130]
    engine = make_engine()

    def reused(score_top: int, *, score_ranks: bool) -> int:
        job = make_job(prompt, score_top=score_top, score_ranks=score_ranks, max_tokens=1)
        result = run(engine, [job]).jobs[job.id]
        assert result.bits == run_alone(job).bits
        assert all((score.rank > 0) == score_ranks for score in result.prompt_scores[1:] if score is not None)
        return result.num_reused_tokens

    assert reused(4, score_ranks=False) == 0
    assert reused(1, score_ranks=True) == 0
    assert min(reused(4, score_ranks=False), reused(4, score_ranks=True), reused(1, score_ranks=False)) > 0


def test_law_3_prompts_share_prefixes_only_with_those_of_the_same_salt() -> None:
    """Full blocks, partial blocks and tails, also with scores; no salt behaves as one more salt."""
    prompt = TOKENIZER.encode(STORY * 4, add_special_tokens=True)[:130]
    half = [*prompt[:50], *b"another way to go on"]
    engine = make_engine()
    alone = run_alone(make_job(prompt, max_tokens=3, score_top=1)).bits
    for salt in ("", "one", "two"):
        cold, warm, parted = (
            make_job(tokens, max_tokens=3, score_top=1, salt=salt) for tokens in (prompt, prompt, half)
        )
        for job, num_cached in ((cold, 0), (warm, 126), (parted, 48)):
            result = run(engine, [job]).jobs[job.id]
            assert result.num_cached_tokens == num_cached
            assert job is parted or result.bits == alone


def test_law_3_prompts_of_other_salts_do_not_wait_for_a_prefix_that_is_being_computed() -> None:
    """Waiting would reveal, by the time to the first token, that another client is prefilling the same prompt."""
    prompt = TOKENIZER.encode(STORY * 6, add_special_tokens=True)[:300]
    engine = make_engine()
    jobs = [make_job(prompt, max_tokens=2, salt=salt) for salt in ("one", "one", "two", "")]
    results = run(engine, jobs)
    cached = [results.jobs[job.id].num_reused_tokens for job in jobs]
    assert (cached[0], cached[2], cached[3]) == (0, 0, 0) and cached[1] > 250
    assert len({str(results.jobs[job.id].bits) for job in jobs}) == 1


def test_what_a_salt_has_cached_is_evicted_with_its_root() -> None:
    engine = make_engine(blocks=8, context=192)
    for number in range(12):
        run(engine, [make_job(STORY, max_tokens=2, salt=str(number))])
    assert engine.cache.pool.num_cached <= 8


def test_law_3_without_sharing_nothing_is_reused_and_no_byte_changes() -> None:
    job = make_job(STORY, max_tokens=8)
    engine = make_engine(share=False)
    run(engine, [again(job)])
    twin = again(job)
    result = run(engine, [twin]).jobs[twin.id]
    assert result.num_cached_tokens == 0
    assert result.bits == run_alone(job).bits


# --- law 4: every job ends exactly once, nothing is lost ---------------------------------------------------------


def test_law_4_a_cancelled_request_releases_its_blocks_and_does_not_change_the_others() -> None:
    engine = make_engine()
    jobs = [make_job(STORY * 3, max_tokens=60, seed=seed, choices=3) for seed in range(4)]
    cancelled = jobs[2]

    def cancel(step: int) -> None:
        if step == 5:
            engine.cancel(cancelled.request)

    results = run(engine, jobs, before_step=cancel)
    for job in jobs:
        if job is not cancelled:
            assert results.jobs[job.id].bits == run_alone(job).bits
    assert not any(choice.finish_reason for choice in results.jobs[cancelled.id].choices.values())
    assert engine.cache.pool.num_used == 0
    assert not list(engine.scheduler.sequences())


LETTERS = st.lists(st.sampled_from([97, 98]), min_size=1, max_size=130)
DIVERGING = st.tuples(st.integers(1, 100), st.lists(st.sampled_from([97, 98]), min_size=1, max_size=30)).map(
    lambda parts: [*map(ord, STORY[: parts[0]]), *parts[1]]
)
PROMPTS = st.one_of(LETTERS, DIVERGING)


@settings(max_examples=examples(120))
@given(st.data())
def test_law_4_random_jobs_in_scarce_memory_end_and_equal_the_same_jobs_alone(data: st.DataObject) -> None:
    """Two-letter prompts, because small vocabularies share most prefixes; and prompts that diverge at any token."""
    engine = make_engine(blocks=14, rows=data.draw(st.integers(1, 6)), context=320, share=data.draw(st.booleans()))
    jobs = [
        make_job(
            data.draw(PROMPTS),
            request=data.draw(st.integers(0, 3)),
            choices=data.draw(st.integers(1, 3)),
            max_tokens=data.draw(st.integers(0, 40)),
            seed=data.draw(st.integers(0, 3)),
            client=data.draw(st.integers(0, 2)),
            score_top=data.draw(st.sampled_from([None, None, 0, 1, 3])),
            score_ranks=data.draw(st.booleans()),
        )
        for _ in range(data.draw(st.integers(1, 6)))
    ]
    cancels = data.draw(st.dictionaries(st.integers(0, 30), st.integers(0, 3), max_size=2))
    cancelled: set[int] = set()

    def before(step: int) -> None:
        if step in cancels:
            engine.cancel(cancels[step])
            cancelled.add(cancels[step])

    with patch("onward.engine.admission.SHORT_PROMPT_TOKENS", data.draw(st.sampled_from([40, 1024]))):
        results = run(engine, jobs, before_step=before)
    for job in jobs:
        if job.request not in cancelled:
            assert all_ended(results.jobs[job.id])
            assert results.jobs[job.id].bits == run_alone(job, context=320).bits
    assert engine.cache.pool.num_used == 0


def test_law_4_a_prompt_that_fills_the_memory_exactly_is_scored() -> None:
    prompt = [97 + number % 7 for number in range(320)]
    result = run_alone(make_job(prompt, max_tokens=0, score_top=1), blocks=10, context=320)
    assert len(result.prompt_scores) == 320


def test_law_3_a_short_prompt_waits_for_the_common_prefix_that_a_long_one_computes() -> None:
    engine = make_engine(context=1200)
    long = [97 + number % 7 for number in range(1100)]
    jobs = [make_job(long, max_tokens=2, ignore_end=True), make_job([*long[:640], 98, 98, 98], max_tokens=2)]
    results = run(engine, jobs)
    assert [results.jobs[job.id].num_cached_tokens for job in jobs] == [0, 640]


def test_tokens_that_a_preempted_job_recomputes_do_not_count_as_cached() -> None:
    engine = make_engine(blocks=24, context=512)
    jobs = [make_job([97 + seed] * 150, max_tokens=150, ignore_end=True) for seed in range(5)]
    results = run(engine, jobs)
    assert engine.scheduler.reclaim.num_preemptions > 0
    assert [results.jobs[job.id].num_cached_tokens for job in jobs] == [0] * 5


# --- law 5: one prefill, a first token per choice ---------------------------------------------------------------


@pytest.mark.parametrize("length", [31, 32, 33, 64, 70])
def test_law_5_choices_share_one_prefill_and_sample_their_own_first_tokens(length: int) -> None:
    prompt = TOKENIZER.encode(STORY * 4, add_special_tokens=True)[:length]
    job = make_job(prompt, choices=8, max_tokens=12, ignore_end=True)
    engine = make_engine()
    result = run(engine, [job]).jobs[job.id]
    assert engine.model.evaluated_tokens == length + 8 * 11
    assert len({choice.tokens[0] for choice in result.choices.values()}) > 1
    assert sorted(result.choices) == list(range(8))


def test_law_5_a_choice_does_not_depend_on_the_number_of_choices() -> None:
    three = run_alone(make_job(STORY, choices=3, max_tokens=20))
    eight = run_alone(make_job(STORY, choices=8, max_tokens=20))
    assert [three.choices[index].bits for index in range(3)] == [eight.choices[index].bits for index in range(3)]


def test_law_5_more_choices_than_rows_are_all_completed() -> None:
    job = make_job(STORY, choices=9, max_tokens=10)
    few_rows = run_alone(job, rows=2)
    assert few_rows.bits == run_alone(job).bits


# --- finish reasons ----------------------------------------------------------------------------------------------


def test_a_job_with_max_tokens_0_finishes_after_prefill() -> None:
    result = run_alone(make_job(STORY, max_tokens=0, choices=2, score_top=0))
    assert [choice.finish_reason for choice in result.choices.values()] == ["length", "length"]
    assert [choice.num_completion_tokens for choice in result.choices.values()] == [0, 0]
    assert len(result.prompt_scores) == len(make_job(STORY).prompt)
    assert result.prompt_scores[0] is None


def test_an_end_token_finishes_a_choice_and_does_not_count_as_a_completion_token() -> None:
    result = run_alone(make_job(STORY, max_tokens=500, logit_bias=((END, 5.0),)))
    (choice,) = result.choices.values()
    assert choice.finish_reason == "stop"
    assert choice.num_completion_tokens == len(choice.records)
    assert END not in choice.tokens


def test_end_tokens_are_not_sampled_before_min_tokens() -> None:
    result = run_alone(make_job(STORY, max_tokens=50, min_tokens=20, logit_bias=((END, 100.0),)))
    (choice,) = result.choices.values()
    assert choice.num_completion_tokens == 20
    assert choice.finish_reason == "stop"


def test_a_stop_sequence_ends_generation_at_the_step_that_completes_it() -> None:
    engine = make_engine()
    job = make_job(STORY, max_tokens=400, rules=TextRules(stops=(" ",)), logit_bias=((END, -100.0),))
    (choice,) = run(engine, [job]).jobs[job.id].choices.values()
    assert choice.finish_reason == "stop"
    assert " " not in choice.text
    assert engine.counters.num_decode_tokens <= choice.num_completion_tokens + 1
