"""Runs an engine on the toy model without threads, and collects its events."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypedDict, Unpack

import numpy as np
from numpy.typing import NDArray

from onward.completions.text_deltas import ChoiceText
from onward.engine.client import Stop, Submit
from onward.engine.events import Decoded, EngineFinishReason, Event, Prefilled
from onward.engine.job import Job
from onward.engine.loop import EngineLoop
from onward.engine.model import Hook, ModelRunner, Row, nothing
from onward.engine.step import Engine
from onward.model_files.toy import END, ToyTokenizer
from onward.runtimes.toy.model import ToyModel
from onward.sampling.outputs import Sampled
from onward.sampling.params import Mirostat, SamplingParams
from onward.sampling.sampler import Sampler
from onward.text.assembler import TextRules, TokenRecord

_ids = itertools.count()
TOKENIZER = ToyTokenizer()


class EngineOptions(TypedDict, total=False):
    """Keyword arguments of `make_engine`."""

    blocks: int
    rows: int
    share: bool
    context: int
    speculate: bool
    threads: int | None
    in_disposable_process: bool
    model: ToyModel


class SamplingOptions(TypedDict, total=False):
    """Keyword arguments of `make_job` that become its SamplingParams."""

    temperature: float
    presence_penalty: float
    frequency_penalty: float
    repetition_penalty: float
    logit_bias: tuple[tuple[int, float], ...]
    filters: tuple[tuple[str, float], ...]
    mirostat: Mirostat
    allowed_tokens: tuple[int, ...]
    banned_tokens: tuple[int, ...]
    banned_sequences: tuple[tuple[int, ...], ...]
    seed: int
    logprobs: int | None


class JobOptions(SamplingOptions, total=False):
    """Keyword arguments of `make_job`."""

    request: int | None
    client: int
    choices: int
    max_tokens: int
    rules: TextRules | None
    score_top: int | None
    score_ranks: bool
    ignore_end: bool
    min_tokens: int
    prediction: Sequence[int]
    grammar: str
    salt: str
    priority: int
    is_background: bool


class ToyEngine(Engine):
    """An engine on the toy model, which remembers its jobs by id."""

    model: ToyModel

    def __init__(
        self,
        model: ToyModel,
        sampler: Sampler,
        *,
        max_rows: int,
        share: bool,
        speculate: bool,
        in_disposable_process: bool = False,
        draft_model: ModelRunner | None = None,
        clock: Callable[[], float] | None = None,
    ) -> None:
        """By default the clock ticks once per step, so every step takes as long as any other: drafts always pay, and
        there are many, because the engine knows that they cost nothing."""
        super().__init__(
            model,
            TOKENIZER,
            sampler,
            max_rows=max_rows,
            share_prefixes=share,
            speculate=speculate,
            draft_model=draft_model,
            clock=clock or (lambda: float(model.steps)),
            load_tokenizer=lambda: TOKENIZER,
            in_disposable_process=in_disposable_process,
        )
        self.jobs: dict[int, Job] = {}
        self.draft_seconds = 0.0
        """What drafts of a job may cost, besides what they always may."""
        if clock is None:
            let_rows_cost_nothing(self)

    def add(self, job: Job) -> None:
        self.jobs[job.id] = job
        super().add(job)
        for sequence in self.scheduler.admission:
            if sequence.job is job:
                sequence.draft_budget.seconds += self.draft_seconds


def let_rows_cost_nothing(engine: Engine) -> None:
    """Let an engine whose steps take a second know that further rows hardly add to it."""
    engine._cost._most_row.begin(1e-3)
    engine._cost._most_first_row.begin(1e-3)


def make_engine(
    *,
    blocks: int = 256,
    rows: int = 64,
    share: bool = True,
    context: int = 2048,
    speculate: bool = True,
    threads: int | None = None,
    in_disposable_process: bool = False,
    draft_model: ModelRunner | None = None,
    clock: Callable[[], float] | None = None,
    model: ToyModel | None = None,
) -> ToyEngine:
    model = model or ToyModel(blocks=blocks, context_length=context)
    sampler = Sampler(model.vocab_size, threads)
    return ToyEngine(
        model,
        sampler,
        max_rows=rows,
        share=share,
        speculate=speculate,
        in_disposable_process=in_disposable_process,
        draft_model=draft_model,
        clock=clock,
    )


class SlowModel:
    """A model whose steps take `seconds` longer. Implements engine.model.ModelRunner."""

    def __init__(self, model: ModelRunner, seconds: float) -> None:
        self.vocab_size = model.vocab_size
        self.context_length = model.context_length
        self.blocks = model.blocks
        self.shape = model.shape
        self._model = model
        self._seconds = seconds

    def evaluate(self, rows: Sequence[Row], before_compute: Hook = nothing) -> NDArray[np.float32]:
        before_compute()
        time.sleep(self._seconds)
        return self._model.evaluate(rows)

    def block_memory(self, block: int) -> Sequence[NDArray[np.uint8]]:
        return self._model.block_memory(block)

    def close(self) -> None:
        self._model.close()


def slow_down(engine: Engine, seconds: float = 0.002) -> None:
    """Make steps as long as a real model's, so that the toy does not finish a long completion before a test can cancel
    it."""
    engine.model = SlowModel(engine.model, seconds)


def make_job(
    prompt: str | Sequence[int] = "once upon a time",
    *,
    request: int | None = None,
    client: int = 0,
    choices: int = 1,
    max_tokens: int = 16,
    rules: TextRules | None = None,
    score_top: int | None = None,
    score_ranks: bool = False,
    ignore_end: bool = False,
    min_tokens: int = 0,
    prediction: Sequence[int] = (),
    grammar: str = "",
    salt: str = "",
    priority: int = 0,
    is_background: bool = False,
    weight: int = 1,
    **sampling: Unpack[SamplingOptions],
) -> Job:
    """A job with an id of its own, and with a request of its own unless one is passed."""
    ids = TOKENIZER.encode(prompt, add_special_tokens=True) if isinstance(prompt, str) else prompt
    number = next(_ids)
    defaults: SamplingOptions = {"temperature": 1.0, "seed": 7, "logprobs": 2}
    merged: SamplingOptions = {**defaults, **sampling}
    return Job(
        id=number,
        request=number if request is None else request,
        prompt=tuple(ids),
        num_choices=choices,
        max_tokens=max_tokens,
        sampling=SamplingParams(**merged),
        rules=rules or TextRules(),
        end_tokens=frozenset() if ignore_end else frozenset({END}),
        min_tokens=min_tokens,
        score_top=score_top,
        score_ranks=score_ranks,
        prediction=tuple(prediction),
        client=client,
        grammar=grammar,
        salt=salt,
        priority=priority,
        is_background=is_background,
        weight=weight,
    )


@dataclass
class ChoiceResult:
    """One choice: its events so far, and the text that they make."""

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
            assert not delta.finish or delta.finish.reason == event.finish_reason, "engine and text end together"
        assert self._text.finished is (event.finish_reason is not None)

    @property
    def tokens(self) -> list[int]:
        return [record.token for record in self.records]

    @property
    def bits(self) -> object:
        """Everything that law 2 covers, comparable by ==."""
        records = [(r.token, r.logprob, r.alternatives, r.offset) for r in self.records]
        return (self.text, self.finish_reason, self.num_completion_tokens, records)


@dataclass
class JobResult:
    """What a job reported: its cached prompt tokens and scores (both None before its Prefilled), and its choices."""

    choices: dict[int, ChoiceResult] = field(default_factory=dict)
    num_cached_tokens: int | None = None
    scores: list[Sampled | None] | None = None

    @property
    def num_reused_tokens(self) -> int:
        """`num_cached_tokens` of a job whose prompt is computed."""
        assert self.num_cached_tokens is not None
        return self.num_cached_tokens

    @property
    def prompt_scores(self) -> list[Sampled | None]:
        """`scores` of a job that requested them."""
        assert self.scores is not None
        return self.scores

    @property
    def bits(self) -> object:
        scores = None if self.scores is None else list(self.scores)
        return (scores, [self.choices[index].bits for index in sorted(self.choices)])


class Results:
    """Collects events by job and checks that each job ends exactly once (law 4). `submitted`: all jobs by id."""

    def __init__(self, submitted: Mapping[int, Job]) -> None:
        self.jobs: dict[int, JobResult] = {}
        self._submitted = submitted

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


def steps_of(engine: Engine, jobs: list[Job]) -> Iterator[list[Event]]:
    """Submit all jobs and yield the events of each step until the engine is idle, checking blocks after each."""
    for job in jobs:
        engine.add(job)
    while not engine.idle:
        events = engine.step()
        engine.check()
        yield events


def events_of(engine: Engine, jobs: list[Job], max_steps: int = 10_000) -> list[Event]:
    """Submit all jobs and return the events of at most this many steps, checking blocks after each."""
    return [event for events in itertools.islice(steps_of(engine, jobs), max_steps) for event in events]


def run(engine: ToyEngine, jobs: list[Job], *, before_step: Callable[[int], None] = lambda step: None) -> Results:
    """Submit all jobs and step until idle, checking blocks after every step."""
    results = Results(engine.jobs)
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
        assert step < 20_000, "the engine does not become idle"
    return results


def all_ended(result: JobResult) -> bool:
    return all(choice.finish_reason for choice in result.choices.values())


def finished_jobs(events: Sequence[Event]) -> list[int]:
    """The job of every event that finishes a choice, in order."""
    return [event.job for event in events if isinstance(event, Decoded) and event.finish_reason]


def run_alone(job: Job, **engine_options: Unpack[EngineOptions]) -> JobResult:
    """The job by itself, token by token, without drafts: the reference for every other way to serve it."""
    options: EngineOptions = {"speculate": False, **engine_options}
    result = run(make_engine(**options), [job]).jobs[job.id]
    assert all_ended(result) and len(result.choices) == job.num_choices
    return result


def serve(engine: Engine, jobs: Sequence[Job], *, one_by_one: bool = False, save: bool = True) -> list[JobResult]:
    """Serve jobs as an engine's thread does, then stop; one by one: each begins once all evicted blocks are written.
    Returns their results."""
    loop, results, left = EngineLoop(engine), Results({job.id: job for job in jobs}), list(jobs)

    def submit() -> None:
        count = 1 if one_by_one else len(left)
        loop.mailbox.put(Submit(left[:count]) if left else Stop())
        del left[:count]

    def publish() -> None:
        results.take(loop.take_events())
        begun = [job for job in jobs if job not in left]
        if engine.idle and not loop.preparing and all(_has_ended(results, job) for job in begun):
            engine.check()
            if one_by_one:
                wait_for_writer(engine)
            submit()

    submit()
    loop.run(publish)
    if save:
        loop.save()
        engine.check()
    return [results.jobs[job.id] for job in jobs]


def wait_for_writer(engine: Engine) -> None:
    assert engine.disk is not None
    written = threading.Event()
    engine.disk._writer.put(written.set)
    assert written.wait(60)


def _has_ended(results: Results, job: Job) -> bool:
    found = results.jobs.get(job.id)
    return found is not None and len(found.choices) == job.num_choices and all_ended(found)
