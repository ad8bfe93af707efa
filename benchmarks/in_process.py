"""The engine without a server: as many jobs in flight as there are clients, one thread, every event timed."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from benchmarks.outcome import Outcome
from benchmarks.turns import Pieces, finish
from onward.engine.events import Piece
from onward.engine.job import Job
from onward.engine.model import Model, Vocabulary
from onward.engine.step import Engine
from onward.sampling.params import SamplingParams
from onward.text.assembler import TextRules


@dataclass(slots=True)
class Stay:
    """One job from its submission to its end (seconds of the engine's clock)."""

    sent: float
    moments: list[float] = field(default_factory=list)
    tokens: int = 0


@dataclass(frozen=True, slots=True)
class EngineRun:
    """`full_steps`: seconds of each step in which all clients' rows decoded, no prompt was read and nothing guessed."""

    outcomes: list[Outcome]
    full_steps: list[float]


class InProcess:
    """An engine driven step by step by the caller's thread."""

    def __init__(
        self,
        model: Model,
        vocabulary: Vocabulary,
        *,
        temperature: float = 0.8,
        top_p: float = 0.95,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.engine = Engine(model, vocabulary, clock=clock)
        self._clock = clock
        self._temperature, self._top_p = temperature, top_p
        self._ids = itertools.count()
        self._stays: dict[int, Stay] = {}

    def run(self, prompts: list[list[int]], out: int, clients: int) -> EngineRun:
        """A closed loop: `clients` jobs in flight until all prompts have been continued by `out` tokens."""
        return finish(self.pieces(prompts, out, clients))

    def pieces(self, prompts: list[list[int]], out: int, clients: int) -> Pieces[EngineRun]:
        """The same, step by step."""
        waiting = iter(prompts)
        outcomes: list[Outcome] = []
        steps: list[float] = []
        for prompt in itertools.islice(waiting, clients):
            self.submit(prompt, out)
        counters = self.engine.counters
        while not self.engine.idle:
            read, decoded, drafted = counters.prefill_tokens, counters.decode_tokens, sum(counters.drafts.values())
            begin = self._clock()
            ended = self.step()
            plain = counters.prefill_tokens == read and sum(counters.drafts.values()) == drafted
            if plain and counters.decode_tokens - decoded == clients:
                steps.append(self._clock() - begin)
            outcomes += ended
            for prompt in itertools.islice(waiting, len(ended)):
                self.submit(prompt, out)
            yield
        return EngineRun(outcomes, steps)

    def submit(self, prompt: list[int], out: int) -> None:
        """Queue a job of one choice with `out` tokens; like the server's workload it asks for no seed."""
        number = next(self._ids)
        sampling = SamplingParams(temperature=self._temperature, top_p=self._top_p, seed=number)
        self._stays[number] = Stay(self._clock())
        self.engine.add(
            Job(
                id=number,
                request=number,
                prompt=tuple(prompt),
                choices=1,
                max_tokens=out,
                sampling=sampling,
                rules=TextRules(),
                end_tokens=frozenset(),
                repeatable=False,
            )
        )

    def step(self) -> list[Outcome]:
        """Do one step; the jobs that it ended."""
        events = self.engine.step()
        now = self._clock()
        ended = []
        for event in events:
            if not isinstance(event, Piece):
                continue
            stay = self._stays[event.job]
            stay.moments.append(now)
            stay.tokens = event.billed
            if event.ending:
                ended.append(_outcome(self._stays.pop(event.job)))
        return ended


def _outcome(stay: Stay) -> Outcome:
    moments = stay.moments
    return Outcome(
        stay.sent,
        moments[-1],
        first=moments[0] - stay.sent,
        gaps=[later - earlier for earlier, later in itertools.pairwise(moments)],
        tokens=stay.tokens,
        chunks=len(moments),
    )
