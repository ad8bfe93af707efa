"""A job that is interrupted at any step, and resumed with the tokens that it had sampled, emits exactly the remaining
events."""

from __future__ import annotations

import random
from typing import Unpack

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from onward.constraints.grammar import choice_grammar
from onward.constraints.json_schema import json_schema_grammar
from onward.engine.events import Decoded, Event, Prefilled
from onward.engine.job import Job
from onward.engines.book import Journal
from onward.model_files.toy import END
from onward.sampling.params import Mirostat
from onward.text.assembler import TextRules
from tests.engine.harness import EngineOptions, JobOptions, events_of, make_engine, make_job, steps_of
from tests.examples import examples, slow_but
from tests.laws.resuming import by_choice, remaining_jobs

STORY = "once upon a time there was a little fox who lived at the edge of the wood"

SCHEMA = {"type": "object", "properties": {"a": {"enum": ["fox", "wood"]}, "b": {"type": "integer"}}, "required": ["a"]}


class Interrupted:
    """Jobs whose engine is lost after any number of steps."""

    def __init__(self, jobs: list[Job], **engine_options: Unpack[EngineOptions]) -> None:
        self._jobs, self._options = jobs, engine_options
        self._steps = [*steps_of(make_engine(**engine_options), jobs)]
        self._whole = [event for step in self._steps for event in step]

    def check_resumed(self, cut: int) -> int:
        """Resume all jobs in another engine after `cut` steps. Returns how many had been prefilled."""
        first = [event for step in self._steps[:cut] for event in step]
        rest = remaining_jobs(self._jobs, first)
        rest = msgspec.msgpack.decode(msgspec.msgpack.encode(rest), type=list[Job])  # as another process receives them
        second = events_of(make_engine(**self._options), rest)
        assert by_choice(first + second) == by_choice(self._whole)
        scores = [
            {event.job: event.scores for event in part if isinstance(event, Prefilled)} for part in (first, second)
        ]
        assert not scores[0].keys() & scores[1].keys(), "a prompt is reported once"
        assert scores[0] | scores[1] == {
            event.job: event.scores for event in self._whole if isinstance(event, Prefilled)
        }
        return sum(job.resume is not None for job in rest)


VARIANTS: dict[str, JobOptions] = {
    "plain": {},
    "choices": {"choices": 5},
    "greedy": {"temperature": 0.0},
    "scored": {"choices": 2, "score_top": 2},
    "stops": {"choices": 3, "rules": TextRules(stops=("e", "th"))},
    "penalties": {"choices": 2, "frequency_penalty": 0.9, "presence_penalty": 0.3, "repetition_penalty": 1.2},
    "bias": {"logit_bias": ((97, 4.0), (END, 3.0)), "choices": 3},
    "min tokens": {"min_tokens": 12, "logit_bias": ((END, 50.0),)},
    "prediction": {"prediction": tuple(map(ord, STORY)), "choices": 2},
    "no logprobs": {"logprobs": None},
    "shaped": {
        "filters": (("typical_p", 0.9), ("xtc_probability", 0.5)),
        "choices": 3,
        "prediction": tuple(map(ord, STORY)),
    },
    "mirostat": {"mirostat": Mirostat(2, 2.0, 0.5), "choices": 3, "prediction": tuple(map(ord, STORY))},
    "mirostat 1": {"mirostat": Mirostat(1, 2.0, 0.5), "choices": 2, "grammar": json_schema_grammar(SCHEMA)},
    "allowed": {"allowed_tokens": tuple(range(97, 110)), "banned_tokens": (100,), "choices": 2},
    "grammar": {"grammar": json_schema_grammar(SCHEMA), "choices": 3},
    "forced text": {"grammar": choice_grammar([STORY, STORY[:20] + "!"]), "choices": 3, "temperature": 3.0},
    "banned sequences": {"banned_sequences": ((97, 98), (98, 97, 98)), "allowed_tokens": (97, 98, 99), "choices": 3},
}


@pytest.mark.parametrize("first", slow_but([1], [0, 1, 2]))
@pytest.mark.parametrize("variant", slow_but([*VARIANTS][::3], VARIANTS))
def test_law_2_a_job_interrupted_at_any_step_and_resumed_emits_the_remaining_events(variant: str, first: int) -> None:
    """Every third step, from `first` on."""
    common: JobOptions = {"max_tokens": 24, "ignore_end": variant not in ("bias", "min tokens")}
    options: JobOptions = {**common, **VARIANTS[variant]}
    job = make_job(STORY, **options)
    interrupted = Interrupted([job])
    num_resumed = sum(interrupted.check_resumed(cut) for cut in range(first, 27, 3))
    assert num_resumed, "some cuts must interrupt the job while it decodes"


@pytest.mark.parametrize("length", [30, 31, 32, 33, 64])
def test_a_resumed_choice_has_blocks_for_the_tokens_that_it_replays(length: int) -> None:
    """Choices that replay more than a block of tokens, after a prompt that ends at a block boundary or near one."""
    job = make_job([97 + number % 7 for number in range(length)], choices=3, max_tokens=90, ignore_end=True)
    interrupted = Interrupted([job])
    for cut in (2, 33, 50, 85):
        assert interrupted.check_resumed(cut) == 1


def test_resumed_choices_without_a_free_row_wait_and_continue() -> None:
    job = make_job(STORY, choices=9, max_tokens=40, ignore_end=True)
    whole = by_choice(events_of(make_engine(), [job]))
    journal = Journal(job)
    first = events_of(make_engine(), [job], max_steps=20)
    for event in first:
        journal.record(event)
    rest = journal.remaining()
    assert rest is not None
    assert by_choice(first + events_of(make_engine(rows=2), [rest])) == whole


def test_a_job_can_be_interrupted_and_resumed_many_times() -> None:
    job = make_job(STORY, choices=3, max_tokens=60, ignore_end=True, rules=TextRules(stops=("zz",)))
    whole = by_choice(events_of(make_engine(), [job]))
    rest: Job | None = job
    events: list[Event] = []
    for _ in range(100):
        if rest is None:
            break
        journal = Journal(rest)
        part = events_of(make_engine(), [rest], max_steps=7)
        for event in part:
            journal.record(event)
        events += part
        rest = journal.remaining()
    assert rest is None and by_choice(events) == whole


def test_prediction_counts_of_a_resumed_job_continue() -> None:
    job = make_job(STORY, max_tokens=60, ignore_end=True, prediction=tuple(map(ord, STORY * 2)))
    journal = Journal(job)
    first = events_of(make_engine(), [job], max_steps=6)
    for event in first:
        journal.record(event)
    before = [event for event in first if isinstance(event, Decoded)][-1]
    rest = journal.remaining()
    assert rest is not None
    after = [event for event in events_of(make_engine(), [rest]) if isinstance(event, Decoded)]
    assert before.num_rejected_prediction_tokens > 0
    for event in after:
        assert event.num_accepted_prediction_tokens >= before.num_accepted_prediction_tokens
        assert event.num_rejected_prediction_tokens >= before.num_rejected_prediction_tokens


@settings(max_examples=examples(60))
@given(st.data())
def test_law_2_random_jobs_in_scarce_memory_can_be_interrupted_at_any_step(data: st.DataObject) -> None:
    rng = random.Random(data.draw(st.integers(0, 1 << 32)))
    jobs = [
        make_job(
            [rng.choice([97, 98, 32]) for _ in range(rng.randrange(1, 100))],
            request=rng.randrange(3),
            choices=rng.randrange(1, 4),
            max_tokens=rng.randrange(0, 40),
            seed=rng.randrange(4),
            score_top=rng.choice([None, None, 0, 2]),
            rules=TextRules(stops=rng.choice([(), ("e",), ("ab", "the t")])),
            frequency_penalty=rng.choice([0.0, 0.7]),
            logit_bias=rng.choice([(), ((END, 5.0),)]),
            prediction=[rng.choice([97, 98, 32]) for _ in range(rng.randrange(20))],
        )
        for _ in range(rng.randrange(1, 5))
    ]
    cut, rows = data.draw(st.integers(0, 60)), data.draw(st.integers(1, 6))
    Interrupted(jobs, blocks=14, rows=rows, context=320).check_resumed(cut)


def test_nothing_remains_of_a_finished_job_and_all_of_one_that_was_not_prefilled() -> None:
    job = make_job(STORY, max_tokens=3)
    journal = Journal(job)
    assert journal.remaining() is job
    for event in events_of(make_engine(), [job]):
        journal.record(event)
    assert journal.remaining() is None


def test_a_choice_that_ended_above_the_engine_is_not_resumed() -> None:
    job = make_job(STORY, choices=3, max_tokens=20, ignore_end=True)
    journal = Journal(job)
    for event in events_of(make_engine(), [job], max_steps=4):
        journal.record(event)
    journal.finish(1)
    rest = journal.remaining()
    assert rest is not None and rest.unfinished_choices == [0, 2]
    journal.finish(0)
    journal.finish(2)
    assert journal.remaining() is None
