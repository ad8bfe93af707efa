"""Runs an engine on the toy model without threads, and collects its events."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from onward.completions.text_deltas import ChoiceText
from onward.engine.events import Decoded, EngineFinishReason, Event, Prefilled
from onward.engine.job import Job
from onward.engine.model import Hook, Row, nothing
from onward.engine.step import Engine
from onward.runtimes.toy.model import ToyModel
from onward.runtimes.toy.tokenizer import END, ToyTokenizer
from onward.sampling.outputs import Sampled
from onward.sampling.params import SamplingParams
from onward.sampling.sampler import Sampler
from onward.text.assembler import TextRules, TokenRecord

_ids = itertools.count()
TOKENIZER = ToyTokenizer()


def make_engine(
    *,
    blocks: int = 256,
    rows: int = 64,
    share: bool = True,
    context: int = 2048,
    speculate: bool = True,
    threads: int | None = None,
) -> Engine:
    """Its clock says that every step takes as long as any other: so drafts always pay, and much is drafted."""
    model = ToyModel(blocks=blocks, context_length=context)
    ticks = itertools.count()
    return Engine(
        model,
        TOKENIZER,
        Sampler(model.vocab_size, threads),
        max_rows=rows,
        share_prefixes=share,
        speculate=speculate,
        clock=lambda: float(next(ticks)),
    )


def slow_down(engine: Engine, seconds: float = 0.002) -> None:
    """Let every step take as long as real ones do: a toy's long answer may be over before anybody can stop it."""
    evaluate = engine.model.evaluate

    def slowly(rows: Sequence[Row], before_compute: Hook = nothing) -> NDArray[np.float32]:
        before_compute()
        time.sleep(seconds)
        return evaluate(rows)

    engine.model.evaluate = slowly  # type: ignore[method-assign]


def make_job(
    prompt: str | list[int] = "once upon a time",
    *,
    request: int | None = None,
    choices: int = 1,
    max_tokens: int = 16,
    rules: TextRules | None = None,
    score_top: int | None = None,
    ignore_end: bool = False,
    min_tokens: int = 0,
    prediction: Sequence[int] = (),
    **sampling: object,
) -> Job:
    ids = TOKENIZER.encode(prompt, add_special_tokens=True) if isinstance(prompt, str) else prompt
    number = next(_ids)
    return Job(
        id=number,
        request=number if request is None else request,
        prompt=tuple(ids),
        num_choices=choices,
        max_tokens=max_tokens,
        sampling=SamplingParams(**{"temperature": 1.0, "seed": 7, "logprobs": 2, **sampling}),
        rules=rules or TextRules(),
        end_tokens=frozenset() if ignore_end else frozenset({END}),
        min_tokens=min_tokens,
        score_top=score_top,
        prediction=tuple(prediction),
    )


@dataclass
class ChoiceResult:
    """One choice's events, and what they are as text."""

    _text: ChoiceText
    text: str = ""
    records: list[TokenRecord] = field(default_factory=list)
    sampled: list[Sampled] = field(default_factory=list)
    num_completion_tokens: int = 0
    finish_reason: EngineFinishReason | None = None
    num_accepted: int = 0
    num_rejected: int = 0

    def take(self, event: Decoded) -> None:
        assert self.finish_reason is None, "no event follows a finish"
        self.sampled += event.tokens
        self.finish_reason = event.finish_reason
        self.num_accepted = event.num_accepted_prediction_tokens
        self.num_rejected = event.num_rejected_prediction_tokens
        for delta in self._text.feed(event):
            self.text += delta.text
            self.records += delta.records
            self.num_completion_tokens = delta.num_completion_tokens
            assert delta.finish_reason in (None, event.finish_reason), "the engine and the text end together"
        assert self._text.finished is (event.finish_reason is not None)

    @property
    def tokens(self) -> list[int]:
        return [record.token for record in self.records]

    @property
    def bits(self) -> object:
        """All that law 2 promises, comparable by ==."""
        records = [(r.token, r.logprob, r.top, r.offset) for r in self.records]
        return (self.text, self.finish_reason, self.num_completion_tokens, records)


@dataclass
class JobResult:
    choices: dict[int, ChoiceResult] = field(default_factory=dict)
    num_cached_tokens: int | None = None
    scores: list[Sampled | None] | None = None

    @property
    def bits(self) -> object:
        scores = None if self.scores is None else list(self.scores)
        return (scores, [self.choices[index].bits for index in sorted(self.choices)])


class Results:
    """Collects events by job and checks that each job ends exactly once (law 4)."""

    def __init__(self) -> None:
        self.jobs: dict[int, JobResult] = {}
        self._submitted: dict[int, Job] = {}

    def expect(self, job: Job) -> None:
        self._submitted[job.id] = job

    def take(self, events: Sequence[Event]) -> None:
        for event in events:
            job = self.jobs.setdefault(event.job, JobResult())
            if isinstance(event, Prefilled):
                assert job.num_cached_tokens is None, "a prompt is reported once"
                job.num_cached_tokens, job.scores = event.num_cached_tokens, event.scores
                continue
            assert isinstance(event, Decoded)
            assert job.num_cached_tokens is not None, "the prompt is reported first"
            if event.choice not in job.choices:
                text = ChoiceText(self._submitted[event.job], event.choice, TOKENIZER)
                job.choices[event.choice] = ChoiceResult(text)
            job.choices[event.choice].take(event)


def run(engine: Engine, jobs: list[Job], *, before_step: Callable[[int], None] = lambda step: None) -> Results:
    """Submit all jobs and step until idle, checking blocks after every step."""
    results = Results()
    add = engine.add

    def add_expected(job: Job) -> None:
        results.expect(job)
        add(job)

    engine.add = add_expected  # type: ignore[method-assign]
    for job in jobs:
        engine.add(job)
    step = 0
    while not engine.idle:
        before_step(step)
        if engine.idle:
            break
        results.take(engine.step())
        engine.check()
        step += 1
        assert step < 20_000, "the engine does not come to an end"
    engine.add = add  # type: ignore[method-assign]
    return results


def all_ended(result: JobResult) -> bool:
    return all(choice.finish_reason for choice in result.choices.values())


def run_alone(job: Job, **engine_options: object) -> JobResult:
    """The job by itself, token by token, nothing drafted: what every other way of serving it must equal."""
    result = run(make_engine(**{"speculate": False, **engine_options}), [job]).jobs[job.id]
    assert all_ended(result) and len(result.choices) == job.num_choices
    return result
