"""Drafting what comes next makes a job faster and changes nothing else: law 2 with speculation."""

import random
from collections.abc import Sequence
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from onward.engine.drafter import MAX_DRAFT_TOKENS, Draft, Drafter, Index, Prediction, Track
from onward.engine.scheduler import SchedulerOutput
from onward.engine.sequence import Sequence as EngineSequence
from onward.engine.speculation import (
    MAX_FRUITLESS_STEPS,
    MAX_SKIPPED_STEPS,
    MAX_STEP_DRAFT_TOKENS,
    STEP_SIZES,
    Speculation,
    choose_drafts,
)
from onward.engine.step import Engine
from onward.engine.step_cost import StepCost
from onward.text.assembler import TextRules

from .harness import END, Results, all_ended, make_engine, make_job, run, run_alone

PROMPT = "once upon a time there was a fox"


def generated(prompt: str | list[int], **options: object) -> list[int]:
    """The tokens that a job generates."""
    return run_alone(make_job(prompt, **options)).choices[0].tokens


def edited(tokens: Sequence[int], rng: random.Random, changes: int) -> list[int]:
    """`tokens` with so many of them replaced, left out or preceded by others."""
    result = list(tokens)
    for _ in range(changes):
        place = rng.randrange(len(result) + 1)
        result[place : place + rng.randrange(3)] = rng.choices(range(97, 123), k=rng.randrange(3))
    return result


def steps_of(engine: Engine) -> int:
    return engine.counters.num_steps


# --- law 2 -------------------------------------------------------------------------------------------------------


@settings(max_examples=80)
@given(st.data())
def test_law_2_no_prediction_changes_a_byte(data: st.DataObject) -> None:
    """Right, half right and wrong ones; with stops, penalties, bans, choices and preemption."""
    rng = random.Random(data.draw(st.integers(0, 1 << 32)))
    engine = make_engine(blocks=data.draw(st.sampled_from([24, 200])), context=320, rows=data.draw(st.integers(1, 6)))
    jobs = []
    for _ in range(data.draw(st.integers(1, 5))):
        options: dict = {
            "prompt": [rng.choice([97, 98, 32]) for _ in range(rng.randrange(1, 100))],
            "max_tokens": rng.randrange(1, 60),
            "choices": rng.choice([1, 1, 3]),
            "seed": rng.randrange(4),
            "temperature": rng.choice([0.0, 0.2, 1.0]),
            "frequency_penalty": rng.choice([0.0, 0.0, 0.7]),
            "repetition_penalty": rng.choice([1.0, 1.0, 1.3]),
            "logit_bias": rng.choice([(), ((END, 5.0),)]),
            "rules": TextRules(stops=rng.choice([(), ("e",), ("ab", "the t")])),
        }
        options["min_tokens"] = rng.randrange(options["max_tokens"]) if rng.random() < 0.3 else 0
        prediction = edited(generated(**options) + [97] * rng.randrange(5), rng, rng.randrange(6))
        jobs.append(make_job(**options, prediction=prediction))
    results = run(engine, jobs)
    for job in jobs:
        assert results.jobs[job.id].bits == run_alone(job, context=320).bits
    assert engine.cache.pool.used == 0


def test_law_2_text_that_repeats_itself_is_drafted_and_stays_the_same() -> None:
    """A bias makes the text repeat: two letters, then one."""
    for bias in (((97, 60.0), (98, 59.0)), ((97, 90.0),)):
        job = make_job(PROMPT, max_tokens=200, logit_bias=bias, temperature=0.4, ignore_end=True)
        engine = make_engine()
        result = run(engine, [job]).jobs[job.id]
        assert engine.counters.drafts.lookup_accepted > 20
        assert steps_of(engine) < 180
        assert result.bits == run_alone(job).bits


def test_law_2_a_preempted_choice_replays_many_tokens_a_step_and_stays_the_same() -> None:
    jobs = [make_job(PROMPT, max_tokens=150, seed=seed, ignore_end=True, choices=2) for seed in range(6)]
    engine = make_engine(blocks=24, context=512, speculate=False)
    results = run(engine, jobs)
    assert engine.scheduler.num_preemptions > 0
    assert [results.jobs[job.id].bits for job in jobs] == [run_alone(job, context=512).bits for job in jobs]


# --- what it gains, what it reports ------------------------------------------------------------------------------


def test_a_right_prediction_saves_most_steps() -> None:
    tokens = generated(PROMPT, max_tokens=120, ignore_end=True)
    job = make_job(PROMPT, max_tokens=120, ignore_end=True, prediction=tokens)
    engine = make_engine()
    choice = run(engine, [job]).jobs[job.id].choices[0]
    assert choice.tokens == tokens
    assert steps_of(engine) < 20
    assert choice.num_accepted > 100 and choice.num_rejected == 0


@pytest.mark.parametrize("change", ["replaced", "left out", "put in"])
def test_after_a_change_the_prediction_is_found_again(change: str) -> None:
    tokens = generated(PROMPT, max_tokens=150, ignore_end=True)
    prediction = list(tokens)
    for place in (30, 60, 90, 120):
        if change == "replaced":
            prediction[place] = 200
        elif change == "left out":
            del prediction[place : place + 3]
        else:
            prediction[place:place] = [200, 201, 202]
    job = make_job(PROMPT, max_tokens=150, ignore_end=True, prediction=prediction)
    engine = make_engine()
    choice = run(engine, [job]).jobs[job.id].choices[0]
    assert choice.tokens == tokens
    assert steps_of(engine) < 60
    assert choice.num_accepted > 90


def test_a_useless_prediction_is_soon_let_go() -> None:
    job = make_job(PROMPT, max_tokens=200, ignore_end=True, prediction=[200] * 200)
    choice = run(make_engine(), [job]).jobs[job.id].choices[0]
    assert choice.num_accepted == 0
    assert 0 < choice.num_rejected <= 40


def test_accepted_and_rejected_are_all_draft_tokens_that_were_evaluated() -> None:
    rng = random.Random(1)
    tokens = generated(PROMPT, max_tokens=100, ignore_end=True)
    job = make_job(PROMPT, max_tokens=100, ignore_end=True, prediction=edited(tokens, rng, 5))
    engine = make_engine()
    choice = run(engine, [job]).jobs[job.id].choices[0]
    assert choice.num_accepted == engine.counters.drafts.prediction_accepted > 0
    assert choice.num_rejected == engine.counters.drafts.prediction_rejected > 0
    rows = engine.model.evaluated_tokens - len(job.prompt)
    lookups = engine.counters.drafts.lookup_accepted + engine.counters.drafts.lookup_rejected
    assert rows == steps_of(engine) - 1 + choice.num_accepted + choice.num_rejected + lookups


def test_drafts_behind_a_stop_count_as_rejected() -> None:
    tokens = generated(PROMPT, max_tokens=60, ignore_end=True)
    text = run_alone(make_job(PROMPT, max_tokens=60, ignore_end=True)).choices[0].text
    job = make_job(PROMPT, max_tokens=60, prediction=tokens, ignore_end=True, rules=TextRules(stops=(text[20:24],)))
    engine = make_engine()
    choice = run(engine, [job]).jobs[job.id].choices[0]
    assert choice.finish_reason == "stop" and choice.num_rejected > 0
    assert choice.num_accepted <= len(run_alone(job).choices[0].tokens) + 4


def test_beside_a_prompt_nothing_is_drafted_not_even_in_the_step_that_admits_it() -> None:
    """A newcomer every few steps, while a right prediction keeps drafts coming."""
    tokens = generated(PROMPT, max_tokens=200, ignore_end=True)
    engine = make_engine()
    engine.add(make_job(PROMPT, max_tokens=200, ignore_end=True, prediction=tokens))
    schedule, kinds = engine.scheduler.schedule, []

    def noting(budget: int) -> SchedulerOutput:
        output = schedule(budget)
        step = output.scheduled
        kinds.append((any(scheduled.is_prefill for scheduled in step), any(scheduled.draft for scheduled in step)))
        return output

    engine.scheduler.schedule = noting  # type: ignore[method-assign]
    while not engine.idle:
        if len(kinds) % 3 == 2:
            engine.add(make_job([98] * 40, max_tokens=1))
        engine.step()
        engine.check()
    assert set(kinds) >= {(True, False), (False, True)}
    assert (True, True) not in kinds


def test_with_speculation_off_nothing_is_drafted() -> None:
    engine = make_engine(speculate=False)
    job = make_job(PROMPT, max_tokens=30, prediction=[97] * 30)
    result = run(engine, [job])
    assert not engine.counters.drafts.total
    assert result.jobs[job.id].choices[0].num_rejected == 0


def test_drafts_never_take_the_blocks_that_others_need() -> None:
    tokens = generated(PROMPT, max_tokens=200, ignore_end=True)
    jobs = [
        make_job(PROMPT, max_tokens=200, ignore_end=True, prediction=tokens),
        *(make_job([97 + seed] * 90, max_tokens=60, seed=seed, ignore_end=True) for seed in range(3)),
    ]
    engine, plain = make_engine(blocks=25, context=512), make_engine(blocks=25, context=512, speculate=False)
    results: Results = run(engine, jobs)
    run(plain, jobs)
    assert engine.scheduler.num_preemptions <= plain.scheduler.num_preemptions
    assert all(all_ended(results.jobs[job.id]) for job in jobs)


# --- when it pays ------------------------------------------------------------------------------------------------


def learnt(first: float, row: float, change: float = 0.0, last: int = 1) -> StepCost:
    """The costs of a machine on which a step takes `first` seconds, `row` more for each further row, and `change` more
    when there are more or fewer rows than before. The newest steps had `last` rows."""
    cost = StepCost()
    for rows in [*[1, 2, 4, 8, 16, 32] * 10, last]:
        for repeated in range(4):
            cost.observe(0, rows, first + row * (rows - 1) + (0.0 if repeated else change))
    return cost


def following(number: int, tokens: int = 60) -> list[EngineSequence]:
    """Running sequences that all follow a prediction so far."""
    engine = make_engine()
    jobs = [
        make_job([97 + index] * 3, max_tokens=200, ignore_end=True, prediction=[99] * tokens) for index in range(number)
    ]
    for job in jobs:
        engine.add(job)
    while len(engine.scheduler.running) < number or any(each.is_prefilling for each in engine.scheduler.running):
        engine.step()
    for sequence in engine.scheduler.running:
        sequence.drafter = Drafter(sequence.tokens, sequence.prompt_length, [99] * tokens)
    return engine.scheduler.running


def test_the_line_of_costs_is_learnt() -> None:
    cost = learnt(0.020, 0.0015)
    assert cost.decode(1) == pytest.approx(0.020, rel=0.2)
    assert cost.row == pytest.approx(0.0015, rel=0.1)


def test_what_a_change_of_rows_costs_is_learnt_apart_from_what_rows_cost() -> None:
    cost = learnt(0.010, 0.0005, change=0.006)
    assert cost.change == pytest.approx(0.006, rel=0.3)
    assert cost.row == pytest.approx(0.0005, rel=0.3)


def test_a_step_during_which_others_had_the_processor_teaches_little() -> None:
    cost = learnt(0.020, 0.0015)
    cost.observe(0, 1, 5.0)
    cost.observe(0, 8, 5.0)
    assert cost.decode(1) < 0.060
    assert cost.change < 0.060


def test_steps_of_one_size_do_not_teach_what_a_row_costs() -> None:
    cost = StepCost()
    for noise in range(100):
        cost.observe(0, 8, 0.02 + 0.0001 * (noise % 7))
    assert 0.02 * 0.01 < cost.row < 0.02 / 8


def test_the_more_choices_share_a_step_the_less_is_drafted() -> None:
    cost = learnt(0.020, 0.0015)
    per_choice = []
    for number in (1, 4, 16):
        drafts = choose_drafts(following(number), cost)
        per_choice.append(sum(len(draft.tokens) for draft in drafts.values()) / number)
    assert per_choice[0] > per_choice[1] > per_choice[2]
    assert per_choice[0] >= 4


def test_rows_stay_as_many_where_a_change_is_expensive() -> None:
    for last in (7, 24):
        drafts = choose_drafts(following(1), learnt(0.001, 0.00005, change=0.005, last=last))
        assert 1 + sum(len(draft.tokens) for draft in drafts.values()) == last


def test_rows_otherwise_take_few_numbers() -> None:
    """Every number of rows that a runtime has not met yet is one more set of kernels to prepare."""
    for writers in (1, 3, 4):
        for row in (0.0002, 0.0005, 0.001, 0.002):
            drafts = choose_drafts(following(writers), learnt(0.020, row, last=writers))
            assert writers + sum(len(draft.tokens) for draft in drafts.values()) in (writers, *STEP_SIZES)


def test_while_prompts_are_prefilled_nothing_is_drafted() -> None:
    cost = learnt(0.020, 0.0015)
    speculation = Speculation(cost)
    assert speculation.choose(following(2))
    cost.observe(64, 2, 0.2)
    assert speculation.choose(following(2)) == {}
    cost.observe(0, 2, 0.021)
    assert speculation.choose(following(2))


def test_where_rows_cost_as_much_as_steps_nothing_is_drafted() -> None:
    assert choose_drafts(following(4), learnt(0.001, 0.001)) == {}


def test_a_step_evaluates_a_bounded_number_of_draft_tokens() -> None:
    drafts = choose_drafts(following(16), learnt(0.020, 0.0))
    assert sum(len(draft.tokens) for draft in drafts.values()) <= MAX_STEP_DRAFT_TOKENS


# --- the drafts -------------------------------------------------------------------------------------------------


def test_a_track_grows_surer_with_every_token_that_came_as_expected() -> None:
    track = Track(0.5)
    before = track.probabilities(3, 0.0)
    for _ in range(10):
        track.accept()
    after = track.probabilities(3, 0.0)
    assert all(now > then for now, then in zip(after, before, strict=True))
    assert after == sorted(after, reverse=True)
    assert track.probabilities(100, after[1]) == after[:1]


def test_a_track_expects_breaks_as_often_as_there_were_some() -> None:
    """However long the text has been repeated since the last one."""
    smooth, broken = Track(0.5), Track(0.5)
    for _ in range(10):
        for track in (smooth, broken):
            track.place = 0
            for _ in range(20):
                track.accept()
        broken.reject()
    for _ in range(40):
        smooth.accept()
        broken.accept()
    assert sum(broken.probabilities(40, 0.0)) < 0.75 * sum(smooth.probabilities(40, 0.0))


@pytest.mark.parametrize("share", [0.2, 0.5, 0.9])
def test_the_probabilities_of_a_track_come_true(share: float) -> None:
    """Places are found again and again, and each token comes with the same probability: the estimate settles at it."""
    rng, track, said, came = random.Random(1), Track(0.5), 0.0, 0
    for turn in range(3000):
        track.place = max(track.place, 0)
        hit = rng.random() < share
        if turn >= 500:
            said += track.probabilities(1, 0.0)[0]
            came += hit
        track.accept() if hit else track.reject()
    assert said / came == pytest.approx(1.0, abs=0.15)


def test_choices_of_a_job_share_what_is_looked_up() -> None:
    tokens = [1, 2, 3, 4]
    first = Drafter(tokens, 4, [5, 6, 7])
    second = Drafter([1, 2, 3, 4], 4, [5, 6, 7], first.index)
    tokens.append(9)
    first.follow()
    assert second.index is first.index
    assert second.index.pairs is not None and len(second.index.pairs) == 2


def test_repeated_text_is_found_by_its_last_three_tokens() -> None:
    tokens = [1, 2, 3, 4, 5, 6, 7, 9]
    drafter = Drafter(tokens, len(tokens), ())
    tokens += [2, 3, 4]
    assert drafter.follow()
    proposal = drafter.propose(4, 0.0)
    assert proposal is not None and proposal.source == "lookup"
    assert proposal.tokens == [5, 6, 7, 9]


def test_text_that_runs_into_itself_is_drafted_to_repeat() -> None:
    tokens = [8, 1, 2, 3, 1, 2]
    drafter = Drafter(tokens, len(tokens), ())
    tokens += [3, 1]
    assert drafter.follow()
    proposal = drafter.propose(7, 0.0)
    assert proposal is not None
    assert proposal.tokens == [2, 3, 1, 2, 3, 1, 2]


@given(st.lists(st.lists(st.integers(0, 3), max_size=9), max_size=9), st.lists(st.integers(0, 3), max_size=30))
def test_text_is_followed_alike_token_by_token_and_many_at_once(said: list[list[int]], foreseen: list[int]) -> None:
    prompt = [0, 1, 2, 3, 0, 1]
    texts = list(prompt), list(prompt)
    slowly, at_once = (Drafter(text, len(prompt), foreseen) for text in texts)
    for part in said:
        for token in part:
            texts[0].append(token)
            slowly.follow()
        texts[1].extend(part)
        assert at_once.follow() == slowly.follow()
        assert at_once.propose(20, 0.0) == slowly.propose(20, 0.0)


@given(st.lists(st.integers(0, 3), max_size=40), st.lists(st.integers(0, 3), min_size=1, max_size=60))
def test_whatever_is_generated_a_prediction_drafts_only_its_own_text(said: list[int], foreseen: list[int]) -> None:
    prediction = Prediction(foreseen, Index({}))
    for token in said:
        prediction.follow(token)
        proposal = prediction.propose(MAX_DRAFT_TOKENS, 0.0)
        if proposal is not None:
            joined = ",".join(map(str, foreseen))
            assert ",".join(map(str, proposal.tokens)) in joined
            assert len(proposal.tokens) == len(proposal.probabilities) > 0


def test_where_nothing_is_drafted_only_some_steps_look_for_drafts_until_a_prediction_comes() -> None:
    steps: list[dict[int, Draft]] = []
    looked: list[int] = []

    class Counting(Drafter):
        def follow(self) -> bool:
            looked.append(len(steps))
            return super().follow()

    sequence = following(1)[0]
    sequence.drafter = Counting(sequence.tokens, sequence.prompt_length, ())
    speculation = Speculation(learnt(0.020, 0.0001, last=1))
    while len(steps) < 200:
        steps.append(speculation.choose([sequence]))
    assert not any(steps)
    assert looked[:MAX_FRUITLESS_STEPS] == list(range(MAX_FRUITLESS_STEPS))
    assert looked[MAX_FRUITLESS_STEPS] == MAX_FRUITLESS_STEPS + 1
    assert max(b - a for a, b in pairwise(looked)) == MAX_SKIPPED_STEPS + 1
    assert len(looked) < 200 / MAX_SKIPPED_STEPS + 2 * MAX_FRUITLESS_STEPS
    speculation.wake()
    speculation.choose([sequence])
    assert looked[-1] == 200
