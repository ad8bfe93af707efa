"""How long an idle engine takes to resume a stream: what the loss of a replica costs once another one has the job."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from queue import SimpleQueue
from time import perf_counter

from onward.engine.events import Decoded, Event
from onward.engine.job import Job, ResumedChoice
from onward.engine.thread import EngineThread
from onward.sampling.params import SamplingParams
from onward.text.assembler import TextRules

GUARD_SECONDS = 60.0
LETTER = 97


class ReplayTimer:
    """Resumes jobs on an engine of its own, which runs from `start` to `stop`. Prompts have `prompt` tokens."""

    def __init__(self, engine: EngineThread, prompt: int) -> None:
        self._engine = engine
        self._prompt = prompt
        self._numbers = itertools.count(1)
        self._events: SimpleQueue[Event] = SimpleQueue()

    def start(self) -> None:
        self._engine.start(self._deliver)

    def stop(self) -> None:
        self._engine.stop()

    def seconds(self, tokens: int) -> float:
        """Return the seconds from submitting a job that has drawn `tokens` tokens to its next one."""
        number = next(self._numbers)
        prompt = tuple(LETTER + (number + place) % 26 for place in range(self._prompt))
        sampling = SamplingParams(seed=number)
        resume = (ResumedChoice((LETTER,) * tokens),) if tokens else None
        begun = perf_counter()
        self._engine.submit(
            [Job(number, number, prompt, 1, tokens + 8, sampling, TextRules(), frozenset(), resume=resume)]
        )
        while True:
            event = self._events.get(timeout=GUARD_SECONDS)
            if isinstance(event, Decoded) and event.job == number:
                break
        taken = perf_counter() - begun
        self._engine.cancel(number)
        return taken

    def _deliver(self, events: Sequence[Event]) -> None:
        for event in events:
            self._events.put(event)
