"""A draft model makes a single job faster and changes nothing else; where it does not help, it costs little.

The models advance a virtual clock: nothing here depends on the machine.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from onward.constraints.grammar import regex_grammar
from onward.engine.draft_model import (
    MAX_MODEL_DRAFT_TOKENS,
    MAX_PROBE_INTERVAL_TOKENS,
    MIN_CHUNK_TOKENS,
    PROBE_INTERVAL_TOKENS,
)
from onward.engine.events import Decoded
from onward.engine.job import Job, ResumedChoice
from onward.engine.model import Hook, Row, nothing
from onward.model_files.toy import END
from onward.runtimes.toy.model import ToyModel, _mix
from onward.sampling.params import Mirostat
from onward.text.assembler import TextRules
from tests.engine.toy_states import ToyWithStates
from tests.examples import examples, slow_but

from .harness import JobOptions, JobResult, ToyEngine, events_of, make_engine, make_job, run, run_alone

STEP = 1.0
"""Seconds of a step of one row."""
PROMPT = "once upon a time there was a fox"


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


class LocalToy(ToyModel):
    """A toy whose text depends on the last three tokens only, so that it goes on as well from a part of a prompt."""

    def _row_hashes(self, row: Row) -> list[int]:
        recent = self._cell(row, row.start - 1) if row.start else 0
        hashes: list[int] = []
        for position, token in enumerate(row.tokens, row.start):
            recent = (recent << 9 | token) & (1 << 27) - 1
            block, offset = divmod(position, self.shape.block_tokens)
            self._cells[row.blocks[block], offset] = recent
            hashes.append(_mix(recent))
        self.evaluated_tokens += len(row.tokens)
        return hashes


def alone(job: Job) -> JobResult:
    """The job by itself, without drafts."""
    return run_alone(job, model=LocalToy(blocks=256))


class Timed(LocalToy):
    """A toy whose steps take time: `step`, and `per_token` for each token beyond the first."""

    def __init__(
        self, clock: Clock, step: float, per_token: float, *, blocks: int = 256, context_length: int = 2048
    ) -> None:
        super().__init__(blocks=blocks, context_length=context_length)
        self._clock, self._step, self._per_token = clock, step, per_token
        self.longest = 0.0
        self.is_closed = False

    def evaluate(self, rows: Sequence[Row], before_compute: Hook = nothing) -> NDArray[np.float32]:
        seconds = self._step + self._per_token * (sum(len(row.tokens) for row in rows) - 1)
        self._clock.now += seconds
        self.longest = max(self.longest, seconds)
        return super().evaluate(rows, before_compute)

    def close(self) -> None:
        self.is_closed = True
        super().close()


class Draft(Timed):
    """A toy that agrees with the other one except where a hash is a multiple of `period`; 1: never agrees, 0:
    always."""

    def __init__(
        self, clock: Clock, period: int = 0, step: float = STEP / 10, *, width: int = 0, context_length: int = 2048
    ) -> None:
        super().__init__(clock, step, step / 10, context_length=context_length)
        self._period, self._width = period, width or self.vocab_size

    def evaluate(self, rows: Sequence[Row], before_compute: Hook = nothing) -> NDArray[np.float32]:
        logits = super().evaluate(rows, before_compute)
        if self._width <= logits.shape[1]:
            return logits[:, : self._width]
        padding = np.full((len(logits), self._width - logits.shape[1]), -30.0, np.float32)
        return np.concatenate([logits, padding], axis=1)

    def narrow(self) -> Draft:
        self.vocab_size = self._width
        return self

    def _logits(self, value: int) -> NDArray[np.float32]:
        logits = super()._logits(value)[: self.vocab_size]
        return np.roll(logits, 7) if self._period and value % self._period == 0 else logits


def engine_with(
    draft: ToyModel | None, clock: Clock, *, rows: int = 64, blocks: int = 256, draft_seconds: float = 1000.0
) -> ToyEngine:
    """An engine whose drafts may cost a lot, so that there are many."""
    model = Timed(clock, STEP, STEP / 20, blocks=blocks)
    engine = make_engine(rows=rows, draft_model=draft, clock=clock, model=model)
    engine.draft_seconds = draft_seconds
    if draft is not None:
        draft.steps = draft.evaluated_tokens = 0  # without those that were measured
    return engine


def seconds_of(draft: Draft | None, jobs: list[Job], clock: Clock) -> float:
    """The virtual seconds of jobs, one after the other, whose drafts have no more than their budgets."""
    engine, began = engine_with(draft, clock, draft_seconds=0.0), clock.now
    for job in jobs:
        assert run(engine, [job]).jobs[job.id].bits == alone(job).bits
    engine.close()
    return clock.now - began


# --- law 2 -------------------------------------------------------------------------------------------------------


@settings(max_examples=examples(80))
@given(st.data())
def test_law_2_a_draft_model_does_not_change_a_byte(data: st.DataObject) -> None:
    """Right, half right and wrong drafts, with all samplers; alone, among other jobs, with several choices and
    preemption."""
    rng = random.Random(data.draw(st.integers(0, 1 << 32)))
    clock = Clock()
    draft = Draft(clock, rng.choice([0, 2, 3, 5, 1]), step=rng.choice([0.02, 0.1, 1.0]), width=rng.choice([0, 400]))
    engine = engine_with(
        draft, clock, rows=rng.randrange(1, 5), blocks=data.draw(st.sampled_from([24, 200])),
        draft_seconds=rng.choice([3.0, 1000.0]),
    )  # fmt: skip
    jobs = []
    for _ in range(data.draw(st.integers(1, 3))):
        max_tokens = rng.randrange(1, 80)
        options: JobOptions = {
            "max_tokens": max_tokens,
            "choices": rng.choice([1, 1, 1, 3]),
            "seed": rng.randrange(4),
            "temperature": rng.choice([0.0, 0.4, 1.0]),
            "frequency_penalty": rng.choice([0.0, 0.0, 0.7]),
            "repetition_penalty": rng.choice([1.0, 1.0, 1.3]),
            "logit_bias": rng.choice([(), ((END, 5.0),)]),
            "banned_tokens": rng.choice([(), (97, 98)]),
            "banned_sequences": rng.choice([(), ((97, 98), (101, 32))]),
            "logprobs": rng.choice([None, 2]),
            "rules": TextRules(stops=rng.choice([(), ("e",), ("ab", "the t")])),
            "min_tokens": rng.randrange(max_tokens) if rng.random() < 0.3 else 0,
        }
        if rng.random() < 0.1:
            options["mirostat"] = Mirostat(2, 5.0, 0.1)
        jobs.append(make_job([rng.choice([97, 98, 32]) for _ in range(rng.randrange(1, 90))], **options))
    results = run(engine, jobs)
    for job in jobs:  # as texts, because log-probabilities that were not asked for are not numbers
        assert repr(results.jobs[job.id].bits) == repr(alone(job).bits)
    assert engine.cache.pool.num_used == 0


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_law_2_holds_over_resume_and_the_prefix_cache(temperature: float) -> None:
    clock = Clock()
    job = make_job(PROMPT, max_tokens=60, temperature=temperature, ignore_end=True)
    whole = alone(job).choices[0]
    engine = engine_with(Draft(clock, 5), clock)
    assert run(engine, [job]).jobs[job.id].choices[0].bits == whole.bits
    again = make_job(PROMPT, max_tokens=60, temperature=temperature, ignore_end=True)
    found = run(engine, [again]).jobs[again.id]
    assert found.num_reused_tokens and found.choices[0].bits == whole.bits
    for count in (1, 20, 41):
        resumed = replace_job(job, ResumedChoice(tuple(whole.tokens[:count])))
        other = engine_with(Draft(clock, 5), clock)
        events = [event for event in events_of(other, [resumed]) if isinstance(event, Decoded)]
        assert [each.token for event in events for each in event.tokens] == whole.tokens[count:]
        assert other.counters.drafts.model_accepted


def replace_job(job: Job, choice: ResumedChoice) -> Job:
    return replace(job, id=job.id + 100_000, request=job.id + 100_000, resume=(choice,))


# --- what it saves and costs ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("temperature", slow_but([1.0], [0.0, 1.0]))
def test_a_draft_model_that_is_right_saves_steps(temperature: float) -> None:
    """It uses the job's random numbers, so a draft is right where its logits are, whatever the temperature."""
    clock = Clock()
    job = make_job(PROMPT, max_tokens=400, ignore_end=True, temperature=temperature)
    plain = seconds_of(None, [job], clock)
    engine = engine_with(Draft(clock), clock)
    run(engine, [job])
    load = engine.load()
    assert load.num_steps < 400 / 4 and load.drafts.model_accepted + load.drafts.lookup_accepted > 300
    assert load.drafts.model_accepted > 100
    assert load.drafts.model_rejected < 20
    assert 0.0 < load.draft_seconds < clock.now
    assert clock.now - plain < plain / 2


@pytest.mark.slow
def test_a_draft_model_that_is_often_right_saves_time_and_one_that_is_seldom_right_costs_little() -> None:
    jobs = [make_job(PROMPT + str(number), max_tokens=300, ignore_end=True, seed=number) for number in range(3)]
    plain, half, seldom = (
        seconds_of(None if period is None else Draft(clock, period), jobs, clock)
        for period, clock in ((None, Clock()), (4, Clock()), (1, Clock()))
    )
    assert half < plain / 1.2
    assert seldom < plain / 0.97


class Mistaken(Draft):
    """Is certain of a token that the model never generates."""

    def _logits(self, value: int) -> NDArray[np.float32]:
        logits = super()._logits(value)
        logits[200] += 1000.0
        return logits


@pytest.mark.parametrize("step", [0.02, 0.1, 0.3])
def test_a_draft_model_that_is_never_right_is_tried_ever_more_seldom(step: float) -> None:
    clock = Clock()
    engine = engine_with(Mistaken(clock, step=step * STEP), clock)
    engine.add(make_job(PROMPT, max_tokens=1200, ignore_end=True))
    tries: list[int] = []
    """Numbers of the steps with its drafts."""
    while not engine.idle:
        before = engine.counters.drafts.model_rejected
        engine.step()
        if engine.counters.drafts.model_rejected > before:
            tries.append(engine.counters.num_steps)
    assert engine.counters.drafts.model_accepted == 0
    at_first = [step for step in tries if step < PROBE_INTERVAL_TOKENS]
    assert 0 < len(at_first) <= 4
    gaps = [b - a for a, b in pairwise(tries[len(at_first) - 1 :])]
    assert len(gaps) >= 4 and gaps[0] >= PROBE_INTERVAL_TOKENS and gaps[1] >= 2 * PROBE_INTERVAL_TOKENS
    assert min(gaps[2:]) >= MAX_PROBE_INTERVAL_TOKENS


@pytest.mark.slow
@pytest.mark.parametrize("period", [0, 1, 3])
def test_a_draft_model_as_slow_as_the_model_costs_a_bounded_time(period: int) -> None:
    jobs = [make_job(PROMPT + str(number), max_tokens=500, ignore_end=True) for number in range(3)]
    plain = seconds_of(None, jobs, Clock())
    clock = Clock()
    assert seconds_of(Draft(clock, period, step=STEP), jobs, clock) < plain / 0.97


@pytest.mark.slow
def test_the_loss_is_bounded_after_an_easy_text_too() -> None:
    clock = Clock()
    draft = Draft(clock)
    engine = engine_with(draft, clock, draft_seconds=0.0)
    run(engine, [make_job(PROMPT, max_tokens=300, ignore_end=True)])
    draft._period = 1
    hard, began = make_job(PROMPT + "!", max_tokens=1000, ignore_end=True), clock.now
    run(engine, [hard])
    took = clock.now - began
    assert took < seconds_of(None, [hard], Clock()) / 0.97
    draft._period, before = 0, engine.load().drafts.model_accepted
    run(engine, [make_job(PROMPT + "?", max_tokens=1000, ignore_end=True)])
    assert engine.load().drafts.model_accepted > before + 300, "it is tried again, and then used"


@settings(max_examples=examples(60))
@given(
    step=st.floats(0.01, 5.0),
    period=st.sampled_from([0, 1, 2, 5]),
    texts=st.lists(st.tuples(st.sampled_from([16, 32, 120, 300]), st.sampled_from([0, 8, 40])), min_size=1, max_size=6),
)
def test_clients_that_come_and_go_while_one_is_drafted_for_lose_no_more(
    step: float, period: int, texts: list[tuple[int, int]]
) -> None:
    """In the middle of each text another client's runs beside it for so many tokens."""
    clock = Clock()
    plain, drafted = (seconds_of_interrupted(draft, texts, clock) for draft in (None, Draft(clock, period, step=step)))
    assert drafted <= plain / 0.97


def seconds_of_interrupted(draft: Draft | None, texts: list[tuple[int, int]], clock: Clock) -> float:
    engine = engine_with(draft, clock, draft_seconds=0.0)
    began = clock.now
    for number, (length, beside) in enumerate(texts):
        job = make_job(PROMPT + str(number), max_tokens=length, ignore_end=True, seed=number)
        engine.add(job)
        left, is_interrupted = length, False
        while not engine.idle:
            for event in engine.step():
                if isinstance(event, Decoded) and event.job == job.id:
                    left -= len(event.tokens)
            if left <= length // 2 and beside and not is_interrupted:
                engine.add(make_job("and then" + str(number), max_tokens=beside, ignore_end=True, seed=number))
                is_interrupted = True
    engine.close()
    return clock.now - began


@pytest.mark.parametrize("tile", [8, 64])
def test_a_long_prompt_is_computed_in_parts_and_only_for_a_long_completion(tile: int) -> None:
    prompt = [97 + number % 26 for number in range(1500)]
    clock = Clock()
    draft = Draft(clock, step=STEP / 5)
    draft.shape = replace(draft.shape, tile_tokens=tile)
    engine = engine_with(draft, clock)
    run(engine, [make_job(prompt, max_tokens=12, ignore_end=True)])
    assert draft.evaluated_tokens < 200, "it would cost more than the completion can save"
    run(engine, [make_job(prompt[7:], max_tokens=500, ignore_end=True)])
    assert draft.evaluated_tokens > 1500 and engine.load().drafts.model_accepted > 200
    assert draft.longest < 1.5 * STEP, "no token waits much longer than for a step"


class Noting(Draft):
    """Remembers the rows that it evaluates."""

    def __init__(self, clock: Clock) -> None:
        super().__init__(clock)
        self.rows: list[Row] = []

    def evaluate(self, rows: Sequence[Row], before_compute: Hook = nothing) -> NDArray[np.float32]:
        self.rows += rows
        return super().evaluate(rows, before_compute)


def test_of_a_long_prompt_a_draft_model_evaluates_the_end_that_is_affordable() -> None:
    """A tenth of the time of the prompt would be too much."""
    rng, clock = random.Random(1), Clock()
    draft = Noting(clock)
    engine = engine_with(draft, clock, draft_seconds=0.0)
    draft.rows.clear()
    prompt = [rng.randrange(97, 123) for _ in range(1000)]
    job = make_job(prompt, max_tokens=60, ignore_end=True)
    assert run(engine, [job]).jobs[job.id].bits == alone(job).bits
    [first] = (row for row in draft.rows if len(row.tokens) > 1)
    assert MIN_CHUNK_TOKENS / 2 < len(first.tokens) < len(prompt) / 2
    assert list(first.tokens) == prompt[-len(first.tokens) :]
    assert draft.evaluated_tokens > len(first.tokens) + 1, "and drafts"


def test_the_next_job_keeps_what_its_text_has_in_common() -> None:
    clock = Clock()
    draft = Draft(clock)
    engine = engine_with(draft, clock)
    prompt = [97 + number % 26 for number in range(300)]
    run(engine, [make_job(prompt, max_tokens=100, ignore_end=True)])
    before = draft.evaluated_tokens
    run(engine, [make_job([*prompt, 97, 98], max_tokens=100, ignore_end=True)])
    assert 0 < draft.evaluated_tokens - before < 200
    before = draft.evaluated_tokens
    run(engine, [make_job([*prompt, 97, 98], max_tokens=100, ignore_end=True, salt="another client's")])
    assert draft.evaluated_tokens - before > len(prompt), "nobody's text makes another's completion sooner"


# --- layers of the model itself -----------------------------------------------------------------------------------


class ToyPredictor(Draft):
    """Implements engine.model.Predictor: agrees with the model unless a hash is a multiple of `period`. Knows which of
    its cells are of tokens that the model has not computed."""

    def __init__(self, clock: Clock, period: int = 0) -> None:
        super().__init__(clock, period)
        self._end, self._first_drafted, self.num_drafted = 0, 0, 0

    def evaluate(self, rows: Sequence[Row], before_compute: Hook = nothing) -> NDArray[np.float32]:
        assert rows[0].start <= self._first_drafted, "what was drafted is evaluated again"
        assert all(len(row.blocks) >= self.shape.blocks_for(row.start) for row in rows), "the model's blocks"
        self._end = self._first_drafted = rows[-1].start + len(rows[-1].tokens)
        return super().evaluate([replace(row, blocks=range(self.blocks)) for row in rows], before_compute)

    def extend(self, token: int) -> NDArray[np.float32]:
        self.num_drafted += 1
        self._end += 1
        return super().evaluate([Row(0, (token,), self._end - 1, range(self.blocks), 1)])


@pytest.mark.parametrize("period", [0, 3])
@pytest.mark.parametrize("temperature", slow_but([1.0], [0.0, 1.0]))
def test_law_2_layers_of_the_model_change_no_byte_and_save_steps(period: int, temperature: float) -> None:
    clock = Clock()
    predictor = ToyPredictor(clock, period)
    engine = engine_with(predictor, clock)
    for number in range(3):
        job = make_job(PROMPT * 3 + str(number), max_tokens=200, ignore_end=True, temperature=temperature)
        assert run(engine, [job]).jobs[job.id].bits == alone(job).bits
    load = engine.load()
    assert load.drafts.model_accepted > 200 and load.num_steps < 600 - 200
    assert predictor.num_drafted > 200
    if period == 0:
        assert load.drafts.model_rejected < 30


# --- where it does not draft -----------------------------------------------------------------------------------------


def test_a_draft_model_drafts_for_no_more_than_one_sequence() -> None:
    clock = Clock()
    draft = Draft(clock)
    engine = engine_with(draft, clock)
    jobs = [make_job(PROMPT, max_tokens=50, ignore_end=True, seed=seed) for seed in range(2)]
    run(engine, jobs)
    run(engine, [make_job(PROMPT, max_tokens=50, ignore_end=True, choices=2)])
    assert draft.steps == 0
    long = make_job(PROMPT, max_tokens=300, ignore_end=True, seed=9)
    engine.add(long)
    run(engine, jobs := [make_job(PROMPT, max_tokens=20, ignore_end=True, seed=3)])
    assert jobs and draft.steps > 0, "it drafts for the one that is left"


@pytest.mark.parametrize(
    "job",
    [
        make_job(PROMPT, max_tokens=50, ignore_end=True, mirostat=Mirostat(2, 5.0, 0.1)),
        make_job(PROMPT, max_tokens=50, grammar=regex_grammar("[a-z ]{40}")),
        make_job([97, 300, 98], max_tokens=50, ignore_end=True),
        make_job(PROMPT, max_tokens=1),
    ],
    ids=["mirostat", "a grammar", "a token that it does not have", "one token"],
)
def test_nothing_is_drafted_for_a_job_that_a_draft_model_cannot_compute(job: Job) -> None:
    clock = Clock()
    draft = Draft(clock, width=258).narrow()
    engine = engine_with(draft, clock)
    assert run(engine, [job]).jobs[job.id].bits == alone(job).bits
    assert engine.load().drafts.model_accepted == engine.load().drafts.model_rejected == 0


def test_a_draft_model_does_not_draft_beyond_its_context() -> None:
    clock = Clock()
    draft = Draft(clock, context_length=64)
    engine = engine_with(draft, clock)
    job = make_job(PROMPT, max_tokens=200, ignore_end=True)
    assert run(engine, [job]).jobs[job.id].bits == alone(job).bits
    assert 0 < engine.load().drafts.model_accepted <= 64 - len(job.prompt)


def test_a_prediction_that_is_right_comes_first() -> None:
    clock = Clock()
    draft = Draft(clock)
    plain = alone(make_job(PROMPT, max_tokens=200, ignore_end=True)).choices[0].tokens
    engine = engine_with(draft, clock)
    run(engine, [make_job(PROMPT, max_tokens=200, ignore_end=True, prediction=plain)])
    counts = engine.load().drafts
    assert counts.prediction_accepted > 150 > MAX_MODEL_DRAFT_TOKENS * 2 > counts.model_accepted


class Failing(Draft):
    def evaluate(self, rows: Sequence[Row], before_compute: Hook = nothing) -> NDArray[np.float32]:
        raise MemoryError


def test_without_memory_for_a_draft_model_nothing_is_drafted() -> None:
    clock = Clock()
    engine = engine_with(Failing(clock), clock)
    job = make_job(PROMPT, max_tokens=50, ignore_end=True)
    assert run(engine, [job]).jobs[job.id].bits == alone(job).bits


def test_closing_the_engine_closes_the_draft_model() -> None:
    clock = Clock()
    draft = Draft(clock)
    engine_with(draft, clock).close()
    assert draft.is_closed


class ForgetfulDraft(LocalToy, ToyWithStates):
    """Agrees with the toy where a hash is no multiple of `period`. Its memory suffices for all steps but every 40th."""

    def __init__(self, clock: Clock, period: int) -> None:
        ToyWithStates.__init__(self, 2, 256)
        self._clock, self._period = clock, period

    def evaluate(self, rows: Sequence[Row], before_compute: Hook = nothing) -> NDArray[np.float32]:
        self._clock.now += STEP / 50
        logits = super().evaluate(rows, before_compute)
        if self.steps % 40 == 39:
            raise MemoryError
        return logits

    def _logits(self, value: int) -> NDArray[np.float32]:
        logits = super()._logits(value)
        return np.roll(logits, 7) if value % self._period == 0 else logits


@pytest.mark.parametrize("period", slow_but([2], [1, 2, 5, 1000]))
def test_law_2_a_draft_model_with_states_does_not_change_a_byte(period: int) -> None:
    """Of one text after the other, some of which continue the one before, and with choices and prompts between."""
    clock = Clock()
    engine = engine_with(ForgetfulDraft(clock, period), clock, draft_seconds=2.0)
    text = list(PROMPT.encode())
    for number in range(8):
        jobs = [make_job(text, max_tokens=60, seed=number, ignore_end=True, choices=1 + (number % 4 == 3))]
        if number % 3 == 2:
            jobs.append(make_job(text[:9], max_tokens=5, salt="other"))
        results = run(engine, jobs)
        for job in jobs:
            assert results.jobs[job.id].bits == alone(job).bits
        text = text + results.jobs[jobs[0].id].choices[0].tokens if number % 2 else text[: 20 + number]
    drafts = engine.counters.drafts
    assert drafts.model_accepted > 0 or period == 1
    assert drafts.model_rejected > 0 or period == 1000
    engine.close()
