"""Speculation makes a job faster and changes nothing else: law 2 with drafts, what they cost, and what is drafted."""

import random
from collections.abc import Sequence
from itertools import pairwise
from typing import Unpack

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from onward.engine.drafter import (
    MAX_DRAFT_TOKENS,
    Draft,
    Drafter,
    Index,
    PredictedText,
    Track,
)
from onward.engine.pacing import StepCost
from onward.engine.scheduler import SchedulerOutput
from onward.engine.sequence import Sequence as EngineSequence
from onward.engine.speculation import (
    MAX_FRUITLESS_STEPS,
    MAX_SKIPPED_STEPS,
    STEP_SIZES,
    Speculation,
    choose_drafts,
)
from onward.engine.step import Engine
from onward.model_files.toy import END
from onward.runtimes.toy.model import ToyModel
from onward.text.assembler import TextRules
from tests.examples import examples

from .harness import JobOptions, all_ended, make_engine, make_job, run, run_alone

MAX_TOKENS = ToyModel().shape.max_draft_tokens

PROMPT = "once upon a time there was a fox"


def generated(prompt: str | list[int], **options: Unpack[JobOptions]) -> list[int]:
    """The tokens that a job generates."""
    return run_alone(make_job(prompt, **options)).choices[0].tokens


def edited(tokens: Sequence[int], rng: random.Random, changes: int) -> list[int]:
    """A copy of `tokens` with `changes` random edits: up to two tokens replaced by up to two others."""
    result = list(tokens)
    for _ in range(changes):
        index = rng.randrange(len(result) + 1)
        result[index : index + rng.randrange(3)] = rng.choices(range(97, 123), k=rng.randrange(3))
    return result


def steps_of(engine: Engine) -> int:
    return engine.counters.num_steps


# --- law 2 -------------------------------------------------------------------------------------------------------


@settings(max_examples=examples(80))
@given(st.data())
def test_law_2_a_prediction_does_not_change_a_byte(data: st.DataObject) -> None:
    """Correct, partly correct and wrong predictions; with stop sequences, penalties, bans, choices and preemption."""
    rng = random.Random(data.draw(st.integers(0, 1 << 32)))
    engine = make_engine(blocks=data.draw(st.sampled_from([24, 200])), context=320, rows=data.draw(st.integers(1, 6)))
    jobs = []
    for _ in range(data.draw(st.integers(1, 5))):
        prompt = [rng.choice([97, 98, 32]) for _ in range(rng.randrange(1, 100))]
        max_tokens = rng.randrange(1, 60)
        options: JobOptions = {
            "max_tokens": max_tokens,
            "choices": rng.choice([1, 1, 3]),
            "seed": rng.randrange(4),
            "temperature": rng.choice([0.0, 0.2, 1.0]),
            "frequency_penalty": rng.choice([0.0, 0.0, 0.7]),
            "repetition_penalty": rng.choice([1.0, 1.0, 1.3]),
            "logit_bias": rng.choice([(), ((END, 5.0),)]),
            "rules": TextRules(stops=rng.choice([(), ("e",), ("ab", "the t")])),
        }
        options["min_tokens"] = rng.randrange(max_tokens) if rng.random() < 0.3 else 0
        prediction = edited(generated(prompt, **options) + [97] * rng.randrange(5), rng, rng.randrange(6))
        options["prediction"] = prediction
        jobs.append(make_job(prompt, **options))
    results = run(engine, jobs)
    for job in jobs:
        assert results.jobs[job.id].bits == run_alone(job, context=320).bits
    assert engine.cache.pool.num_used == 0


def test_law_2_repetitive_text_is_drafted_and_does_not_change() -> None:
    """A bias makes the text repeat: two letters, then one."""
    for bias in (((97, 60.0), (98, 59.0)), ((97, 90.0),)):
        job = make_job(PROMPT, max_tokens=200, logit_bias=bias, temperature=0.4, ignore_end=True)
        engine = make_engine()
        result = run(engine, [job]).jobs[job.id]
        assert engine.counters.drafts.lookup_accepted > 20
        assert steps_of(engine) < 180
        assert result.bits == run_alone(job).bits


def test_law_2_a_preempted_choice_replays_many_tokens_per_step_and_does_not_change() -> None:
    jobs = [make_job(PROMPT, max_tokens=150, seed=seed, ignore_end=True, choices=2) for seed in range(6)]
    engine = make_engine(blocks=24, context=512, speculate=False)
    results = run(engine, jobs)
    assert engine.scheduler.reclaim.num_preemptions > 0
    assert [results.jobs[job.id].bits for job in jobs] == [run_alone(job, context=512).bits for job in jobs]


# --- speed and counts -------------------------------------------------------------------------------------------


def test_a_correct_prediction_saves_most_steps() -> None:
    tokens = generated(PROMPT, max_tokens=120, ignore_end=True)
    job = make_job(PROMPT, max_tokens=120, ignore_end=True, prediction=tokens)
    engine = make_engine()
    choice = run(engine, [job]).jobs[job.id].choices[0]
    assert choice.tokens == tokens
    assert steps_of(engine) < 20
    assert choice.num_accepted > 100 and choice.num_rejected == 0


@pytest.mark.parametrize("change", ["replaced", "deleted", "inserted"])
def test_drafts_follow_the_prediction_again_after_a_change(change: str) -> None:
    tokens = generated(PROMPT, max_tokens=150, ignore_end=True)
    prediction = list(tokens)
    for index in (30, 60, 90, 120):
        if change == "replaced":
            prediction[index] = 200
        elif change == "deleted":
            del prediction[index : index + 3]
        else:
            prediction[index:index] = [200, 201, 202]
    job = make_job(PROMPT, max_tokens=150, ignore_end=True, prediction=prediction)
    engine = make_engine()
    choice = run(engine, [job]).jobs[job.id].choices[0]
    assert choice.tokens == tokens
    assert steps_of(engine) < 60
    assert choice.num_accepted > 90


def test_few_tokens_of_a_wrong_prediction_are_evaluated() -> None:
    job = make_job(PROMPT, max_tokens=200, ignore_end=True, prediction=[200] * 200)
    choice = run(make_engine(), [job]).jobs[job.id].choices[0]
    assert choice.num_accepted == 0
    assert 0 < choice.num_rejected <= 40


def test_every_evaluated_draft_token_counts_as_accepted_or_rejected() -> None:
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


def test_drafted_tokens_after_a_stop_sequence_count_as_rejected() -> None:
    tokens = generated(PROMPT, max_tokens=60, ignore_end=True)
    text = run_alone(make_job(PROMPT, max_tokens=60, ignore_end=True)).choices[0].text
    job = make_job(PROMPT, max_tokens=60, prediction=tokens, ignore_end=True, rules=TextRules(stops=(text[20:24],)))
    engine = make_engine()
    choice = run(engine, [job]).jobs[job.id].choices[0]
    assert choice.finish_reason == "stop" and choice.num_rejected > 0
    assert choice.num_accepted <= len(run_alone(job).choices[0].tokens) + 4


def test_a_step_that_prefills_evaluates_no_drafts_not_even_the_one_that_admits_the_prompt(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A new prompt every few steps, while a correct prediction yields drafts in all others."""
    tokens = generated(PROMPT, max_tokens=200, ignore_end=True)
    engine = make_engine()
    engine.add(make_job(PROMPT, max_tokens=200, ignore_end=True, prediction=tokens))
    schedule = engine.scheduler.schedule
    kinds: list[tuple[bool, bool]] = []
    """For every step, whether it prefilled, and whether it evaluated drafts."""

    def schedule_and_note(prefill_budget: int) -> SchedulerOutput:
        output = schedule(prefill_budget)
        step = output.scheduled
        kinds.append(
            (any(scheduled.is_prefill for scheduled in step), any(scheduled.draft is not None for scheduled in step))
        )
        return output

    monkeypatch.setattr(engine.scheduler, "schedule", schedule_and_note)
    while not engine.idle:
        if len(kinds) % 3 == 2:
            engine.add(make_job([98] * 40, max_tokens=1))
        engine.step()
        engine.check()
    assert set(kinds) >= {(True, False), (False, True)}
    assert (True, True) not in kinds


def test_without_speculation_no_drafts_are_evaluated() -> None:
    engine = make_engine(speculate=False)
    job = make_job(PROMPT, max_tokens=30, prediction=[97] * 30)
    result = run(engine, [job])
    assert not engine.counters.drafts.total
    assert result.jobs[job.id].choices[0].num_rejected == 0


def test_drafts_do_not_take_blocks_that_other_sequences_need() -> None:
    tokens = generated(PROMPT, max_tokens=200, ignore_end=True)
    jobs = [
        make_job(PROMPT, max_tokens=200, ignore_end=True, prediction=tokens),
        *(make_job([97 + seed] * 90, max_tokens=60, seed=seed, ignore_end=True) for seed in range(3)),
    ]
    engine, plain = make_engine(blocks=25, context=512), make_engine(blocks=25, context=512, speculate=False)
    results = run(engine, jobs)
    run(plain, jobs)
    assert engine.scheduler.reclaim.num_preemptions <= plain.scheduler.reclaim.num_preemptions
    assert all(all_ended(results.jobs[job.id]) for job in jobs)


# --- which drafts are worth their cost --------------------------------------------------------------------------


def observed_cost(first: float, row: float, change: float = 0.0, last: int = 1) -> StepCost:
    """Step costs as observed on a machine where a step of one row takes `first` seconds, each further row adds `row`,
    and a change of the number of rows adds `change`. The last steps had `last` rows."""
    cost = StepCost()
    for rows in [*[1, 2, 4, 8, 16, 32] * 10, last]:
        for repeated in range(4):
            cost.observe(0, rows, first + row * (rows - 1) + (0.0 if repeated else change))
    return cost


def chosen(sequences: list[EngineSequence], cost: StepCost, max_tokens: int) -> dict[int, Draft]:
    """The drafts of sequences that can afford all of them."""
    return choose_drafts(sequences, {sequence.id: MAX_DRAFT_TOKENS for sequence in sequences}, cost, max_tokens)


def predicted_sequences(number: int, tokens: int = 60) -> list[EngineSequence]:
    """Decoding sequences, each with a prediction of `tokens` tokens whose first token is expected next."""
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
        sequence.draft_budget.seconds = 1.0
    return engine.scheduler.running


def test_a_choice_that_replays_tokens_drafts_nothing() -> None:
    sequence = predicted_sequences(1)[0]
    assert sequence.drafter is not None and sequence.drafter.follow()
    assert sequence.propose_draft(MAX_DRAFT_TOKENS, 0.0) is not None
    sequence.computed -= 1
    assert sequence.propose_draft(MAX_DRAFT_TOKENS, 0.0) is None


def test_a_draft_is_shorter_than_what_the_choice_may_still_have() -> None:
    sequence = predicted_sequences(1, tokens=300)[0]
    end = sequence.prompt_length + sequence.job.max_tokens
    sequence.tokens.extend([99] * (end - len(sequence.tokens) - 3))
    sequence.computed = len(sequence.tokens) - 1
    assert sequence.drafter is not None and sequence.drafter.follow()
    proposal = sequence.propose_draft(MAX_DRAFT_TOKENS, 0.0)
    assert proposal is not None and len(proposal.tokens) == 2


def test_the_costs_of_a_step_and_of_a_row_are_estimated() -> None:
    cost = observed_cost(0.020, 0.0015)
    assert cost.decode(1) == pytest.approx(0.020, rel=0.2)
    assert cost.row == pytest.approx(0.0015, rel=0.1)


def test_the_cost_of_a_change_of_rows_is_estimated_apart_from_the_cost_of_a_row() -> None:
    cost = observed_cost(0.010, 0.0005, change=0.006)
    assert cost.change == pytest.approx(0.006, rel=0.3)
    assert cost.row == pytest.approx(0.0005, rel=0.3)


def test_an_outlier_changes_the_estimates_little() -> None:
    cost = observed_cost(0.020, 0.0015)
    cost.observe(0, 1, 5.0)
    cost.observe(0, 8, 5.0)
    assert cost.decode(1) < 0.060
    assert cost.change < 0.060


def test_steps_with_the_same_number_of_rows_do_not_show_the_cost_of_a_row() -> None:
    cost = StepCost()
    for noise in range(100):
        cost.observe(0, 8, 0.02 + 0.0001 * (noise % 7))
    assert 0.02 * 0.01 < cost.row < 0.02 / 8


def test_the_more_sequences_a_step_decodes_the_fewer_tokens_are_drafted_for_each() -> None:
    cost = observed_cost(0.020, 0.0015)
    per_choice = []
    for number in (1, 4, 16):
        drafts = chosen(predicted_sequences(number), cost, MAX_TOKENS)
        per_choice.append(sum(len(draft.tokens) for draft in drafts.values()) / number)
    assert per_choice[0] > per_choice[1] > per_choice[2]
    assert per_choice[0] >= 4


def test_the_number_of_rows_is_kept_where_a_change_is_expensive() -> None:
    for last in (7, 24):
        cost = observed_cost(0.001, 0.00005, change=0.005, last=last)
        drafts = chosen(predicted_sequences(1), cost, MAX_TOKENS)
        assert 1 + sum(len(draft.tokens) for draft in drafts.values()) == last


def test_steps_with_drafts_have_few_different_numbers_of_rows() -> None:
    """Some runtimes prepare kernels for each number of rows."""
    for num_decoding in (1, 3, 4):
        for row in (0.0002, 0.0005, 0.001, 0.002):
            cost = observed_cost(0.020, row, last=num_decoding)
            drafts = chosen(predicted_sequences(num_decoding), cost, MAX_TOKENS)
            assert num_decoding + sum(len(draft.tokens) for draft in drafts.values()) in (num_decoding, *STEP_SIZES)


def test_after_a_step_that_prefilled_nothing_is_drafted() -> None:
    cost = observed_cost(0.020, 0.0015)
    speculation = Speculation(ToyModel().shape, cost, lambda: 0.0)
    assert speculation.choose(predicted_sequences(2))
    cost.observe(64, 2, 0.2)
    assert speculation.choose(predicted_sequences(2)) == {}
    cost.observe(0, 2, 0.021)
    assert speculation.choose(predicted_sequences(2))


def test_where_a_row_costs_as_much_as_a_step_nothing_is_drafted() -> None:
    assert chosen(predicted_sequences(4), observed_cost(0.001, 0.001), MAX_TOKENS) == {}


def test_the_draft_tokens_of_a_step_are_limited() -> None:
    for most in (MAX_TOKENS, 20):
        drafts = chosen(predicted_sequences(16), observed_cost(0.020, 0.0), most)
        assert 0 < sum(len(draft.tokens) for draft in drafts.values()) <= most


# --- drafters ---------------------------------------------------------------------------------------------------


def test_the_probabilities_of_a_track_rise_with_every_accepted_token() -> None:
    track = Track(0.5)
    before = track.probabilities(3, 0.0)
    for _ in range(10):
        track.accept()
    after = track.probabilities(3, 0.0)
    assert all(now > then for now, then in zip(after, before, strict=True))
    assert after == sorted(after, reverse=True)
    assert track.probabilities(100, after[1]) == after[:1]


def test_a_track_expects_rejections_as_often_as_there_were_some() -> None:
    """However many tokens have been accepted since the last rejection."""
    smooth, broken = Track(0.5), Track(0.5)
    for _ in range(10):
        for track in (smooth, broken):
            track.position = 0
            for _ in range(20):
                track.accept()
        broken.reject()
    for _ in range(40):
        smooth.accept()
        broken.accept()
    assert sum(broken.probabilities(40, 0.0)) < 0.75 * sum(smooth.probabilities(40, 0.0))


@pytest.mark.parametrize("accepted_fraction", [0.2, 0.5, 0.9])
def test_the_probabilities_of_a_track_are_calibrated(accepted_fraction: float) -> None:
    """Drafts start at several positions, and each token is accepted with the same probability, which the estimate must
    match."""
    rng, track, expected, num_accepted = random.Random(1), Track(0.5), 0.0, 0
    for step in range(3000):
        track.position = max(track.position, 0)
        is_accepted = rng.random() < accepted_fraction
        if step >= 500:
            expected += track.probabilities(1, 0.0)[0]
            num_accepted += is_accepted
        if is_accepted:
            track.accept()
        else:
            track.reject()
    assert expected / num_accepted == pytest.approx(1.0, abs=0.15)


def test_choices_of_a_job_share_one_index() -> None:
    tokens = [1, 2, 3, 4]
    first = Drafter(tokens, 4, [5, 6, 7])
    second = Drafter([1, 2, 3, 4], 4, [5, 6, 7], first.index)
    tokens.append(9)
    first.follow()
    assert second.index is first.index
    assert second.index.pairs is not None and len(second.index.pairs) == 2


def test_repeated_text_is_looked_up_by_its_last_three_tokens() -> None:
    tokens = [1, 2, 3, 4, 5, 6, 7, 9]
    drafter = Drafter(tokens, len(tokens), ())
    tokens += [2, 3, 4]
    assert drafter.follow()
    proposal = drafter.propose(4, 0.0)
    assert proposal is not None and proposal.source == "lookup"
    assert proposal.tokens == [5, 6, 7, 9]


def test_text_whose_continuation_overlaps_itself_is_drafted_to_repeat() -> None:
    tokens = [8, 1, 2, 3, 1, 2]
    drafter = Drafter(tokens, len(tokens), ())
    tokens += [3, 1]
    assert drafter.follow()
    proposal = drafter.propose(7, 0.0)
    assert proposal is not None
    assert proposal.tokens == [2, 3, 1, 2, 3, 1, 2]


@given(st.lists(st.lists(st.integers(0, 3), max_size=9), max_size=9), st.lists(st.integers(0, 3), max_size=30))
def test_following_token_by_token_or_many_at_once_makes_no_difference(
    parts: list[list[int]], predicted: list[int]
) -> None:
    prompt = [0, 1, 2, 3, 0, 1]
    texts = list(prompt), list(prompt)
    slowly, at_once = (Drafter(text, len(prompt), predicted) for text in texts)
    for part in parts:
        for token in part:
            texts[0].append(token)
            slowly.follow()
        texts[1].extend(part)
        assert at_once.follow() == slowly.follow()
        assert at_once.propose(20, 0.0) == slowly.propose(20, 0.0)


@given(st.lists(st.integers(0, 3), max_size=40), st.lists(st.integers(0, 3), min_size=1, max_size=60))
def test_whatever_is_generated_only_tokens_of_the_prediction_are_drafted(
    tokens: list[int], predicted: list[int]
) -> None:
    prediction = PredictedText(predicted, Index({}))
    for token in tokens:
        prediction.follow(token)
        proposal = prediction.propose(MAX_DRAFT_TOKENS, 0.0)
        if proposal is not None:
            joined = ",".join(map(str, predicted))
            assert ",".join(map(str, proposal.tokens)) in joined
            assert len(proposal.tokens) == len(proposal.probabilities) > 0


def test_where_nothing_is_drafted_most_steps_skip_the_search_until_a_prediction_arrives() -> None:
    steps: list[dict[int, Draft]] = []
    searched: list[int] = []

    class Counting(Drafter):
        def follow(self) -> bool:
            searched.append(len(steps))
            return super().follow()

    sequence = predicted_sequences(1)[0]
    sequence.drafter = Counting(sequence.tokens, sequence.prompt_length, ())
    speculation = Speculation(ToyModel().shape, observed_cost(0.020, 0.0001, last=1), lambda: 0.0)
    while len(steps) < 200:
        steps.append(speculation.choose([sequence]))
    assert not any(steps)
    assert searched[:MAX_FRUITLESS_STEPS] == list(range(MAX_FRUITLESS_STEPS))
    assert searched[MAX_FRUITLESS_STEPS] == MAX_FRUITLESS_STEPS + 1
    assert max(b - a for a, b in pairwise(searched)) == MAX_SKIPPED_STEPS + 1
    assert len(searched) < 200 / MAX_SKIPPED_STEPS + 2 * MAX_FRUITLESS_STEPS
    speculation.wake()
    speculation.choose([sequence])
    assert searched[-1] == 200
