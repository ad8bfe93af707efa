"""The engine without a server: as many jobs in flight as clients, one thread, every event timed."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from benchmarks.interleave import Stepwise, run_to_end
from benchmarks.outcome import Outcome
from onward.engine.events import Decoded
from onward.engine.job import Job
from onward.engine.model import ModelRunner, Vocabulary
from onward.engine.step import Engine
from onward.sampling.params import SamplingParams
from onward.sampling.sampler import Sampler
from onward.text.assembler import TextRules


@dataclass(slots=True)
class InFlightJob:
    """A job that was submitted and has not ended. Times are seconds of the engine's clock."""

    sent: float
    chunk_times: list[float] = field(default_factory=list)
    tokens: int = 0
    unfinished: int = 1
    """Choices that have not ended."""


@dataclass(frozen=True, slots=True)
class EngineRun:
    """`full_steps`: seconds of each step that decoded one row per client, without prefill and without drafts."""

    outcomes: list[Outcome]
    full_steps: list[float]


class InProcess:
    """An engine that the caller's thread drives step by step."""

    def __init__(
        self,
        model: ModelRunner,
        vocabulary: Vocabulary,
        *,
        temperature: float = 0.8,
        top_p: float = 0.95,
        max_rows: int = 64,
        clock: Callable[[], float] = time.perf_counter,
        sampler: Sampler | None = None,
    ) -> None:
        sampler = sampler or Sampler(model.vocab_size)
        self.engine = Engine(model, vocabulary, sampler, max_rows=max_rows, clock=clock)
        self._clock = clock
        self._temperature, self._top_p = temperature, top_p
        self._ids = itertools.count()
        self._in_flight: dict[int, InFlightJob] = {}

    def run(self, prompts: list[list[int]], out: int, clients: int) -> EngineRun:
        """Run a closed loop: `clients` jobs in flight until every prompt has a completion of `out` tokens."""
        return run_to_end(self.run_stepwise(prompts, out, clients))

    def run_stepwise(self, prompts: list[list[int]], out: int, clients: int) -> Stepwise[EngineRun]:
        """Do the same as `run`, pausing after each step."""
        waiting = iter(prompts)
        outcomes: list[Outcome] = []
        steps: list[float] = []
        for prompt in itertools.islice(waiting, clients):
            self.submit(prompt, out)
        counters = self.engine.counters
        while not self.engine.idle:
            prefilled, decoded, drafted = counters.num_prefill_tokens, counters.num_decode_tokens, counters.drafts.total
            begin = self._clock()
            ended = self.step()
            is_plain = counters.num_prefill_tokens == prefilled and counters.drafts.total == drafted
            if is_plain and counters.num_decode_tokens - decoded == clients:
                steps.append(self._clock() - begin)
            outcomes += ended
            for prompt in itertools.islice(waiting, len(ended)):
                self.submit(prompt, out)
            yield
        return EngineRun(outcomes, steps)

    def submit(
        self, prompt: list[int], out: int, *, choices: int = 1, request: int | None = None, client: int = 0
    ) -> int:
        """Submit a job with `out` tokens per choice; like a request of the server's workload it has no seed. Returns
        its number, which is that of its request unless `request` is another one."""
        number = next(self._ids)
        sampling = SamplingParams(temperature=self._temperature, top_p=self._top_p, seed=number)
        self._in_flight[number] = InFlightJob(self._clock(), unfinished=choices)
        self.engine.add(
            Job(
                id=number,
                request=number if request is None else request,
                prompt=tuple(prompt),
                num_choices=choices,
                max_tokens=out,
                sampling=sampling,
                rules=TextRules(),
                end_tokens=frozenset(),
                client=client,
            )
        )
        return number

    def has_first_token(self, number: int) -> bool:
        """Whether a job that has not ended has its first token."""
        return bool(self._in_flight[number].chunk_times)

    def step(self) -> list[Outcome]:
        """Do one step; return the outcomes of the jobs that ended."""
        events = self.engine.step()
        now = self._clock()
        ended = []
        for event in events:
            if not isinstance(event, Decoded):
                continue
            job = self._in_flight[event.job]
            job.chunk_times.append(now)
            job.tokens += len(event.tokens)
            job.unfinished -= event.finish_reason is not None
            if not job.unfinished:
                ended.append(_outcome(self._in_flight.pop(event.job)))
        return ended


def _outcome(job: InFlightJob) -> Outcome:
    times = job.chunk_times
    return Outcome(
        job.sent,
        times[-1],
        ttft=times[0] - job.sent,
        gaps=[later - earlier for earlier, later in itertools.pairwise(times)],
        tokens=job.tokens,
        chunks=len(times),
    )
