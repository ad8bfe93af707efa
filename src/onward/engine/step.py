"""One step of the engine: schedule → evaluate → sample → accept → emit. No threads here."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from onward.engine.cache import KVCache
from onward.engine.events import Ending, Event, Piece, Prefilled
from onward.engine.job import Job
from onward.engine.model import Model, Vocabulary
from onward.engine.pacing import PrefillPacer
from onward.engine.scheduler import Scheduler, Work
from onward.engine.sequence import Sequence
from onward.sampling.choice import Sampled
from onward.sampling.sampler import Sampler
from onward.text.assembler import TokenRecord


@dataclass(slots=True)
class Counters:
    """What the engine has done since its start. Written by the engine thread, read by anyone."""

    steps: int = 0
    prefill_tokens: int = 0
    decode_tokens: int = 0
    cached_tokens: int = 0


class Engine:
    """Turns jobs into events, a step at a time. Owned by one thread; `loop.EngineThread` is its usual owner."""

    def __init__(
        self,
        model: Model,
        vocabulary: Vocabulary,
        *,
        rows: int = 64,
        share_prefixes: bool = True,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.model = model
        self.vocabulary = vocabulary
        self.cache = KVCache(model.blocks, share_prefixes=share_prefixes)
        self.scheduler = Scheduler(self.cache, rows)
        self.counters = Counters()
        self._sampler = Sampler(model.vocab_size)
        self._pacer = PrefillPacer()
        self._clock = clock
        self.untold: list[Event] = []
        """What the last step has made ready, also when it broke half-way."""

    @property
    def idle(self) -> bool:
        return self.scheduler.idle

    def add(self, job: Job) -> None:
        self.scheduler.add(job)

    def cancel(self, request: int) -> None:
        """Drop a request's jobs; no event of them follows."""
        self.scheduler.cancel(request)

    def step(self) -> list[Event]:
        """Do one step; give what it made ready, in order. Must not be called when idle.

        Raises what the runtime raises; the engine is unusable then.
        """
        started = self._clock()
        self.untold = []
        works = self.scheduler.schedule(self._prompt_budget())
        assert works, "jobs wait, and none can be admitted"
        logits = self.model.evaluate([work.row() for work in works])
        self._accept(works, logits, self.untold)
        self._count(works, self._clock() - started)
        return self.untold

    def check(self) -> None:
        """AssertionError if a block or row is lost. For tests, between steps."""
        self.cache.check(list(self.scheduler.sequences()))

    def _prompt_budget(self) -> int:
        writers = sum(not sequence.reading for sequence in self.scheduler.running)
        readers = len(self.scheduler.running) - writers + self.scheduler.waiting
        return self._pacer.budget(writers, readers)

    def _accept(self, works: list[Work], logits: NDArray[np.float32], events: list[Event]) -> None:
        drawing: list[Sequence] = []
        rows: list[int] = []
        row = 0
        for work in works:
            sequence = work.sequence
            self._score(work, logits, row)
            row += work.outputs
            was_reading = sequence.reading
            self.scheduler.advance(work)
            if sequence.reading or not work.outputs:
                continue
            ready = self._prompt_read(sequence, events) if was_reading else [sequence]
            drawing += ready
            rows += [row - 1] * len(ready)
        if drawing:
            self._draw(drawing, rows, logits, events)

    def _score(self, work: Work, logits: NDArray[np.float32], first_row: int) -> None:
        """Score the prompt tokens that this chunk's logits predict."""
        sequence = work.sequence
        if not sequence.wants_scores or not work.outputs:
            return
        scores, top = sequence.scores, sequence.job.score_top
        assert scores is not None and top is not None
        targets = sequence.job.prompt[len(scores) : work.end + 1]
        if targets:
            scores += self._sampler.score(logits, first_row, targets, top)

    def _prompt_read(self, sequence: Sequence, events: list[Event]) -> list[Sequence]:
        """A prompt is read: tell it (once a job), fork the other choices; give the sequences that now draw."""
        if not sequence.reported:
            cached = sequence.reused or 0
            self.counters.cached_tokens += cached
            events.append(Prefilled(sequence.job.id, cached, sequence.scores))
            sequence.reported = True
            sequence.scores = None
        forked, copies = self.scheduler.fork(sequence)
        for source, target in copies:
            self.model.copy_block(source, target)
        ready = [sequence, *forked]
        if sequence.job.max_tokens:
            return ready
        for each in ready:
            self._end(each, "length", None, events)
        return []

    def _draw(
        self, sequences: list[Sequence], rows: list[int], logits: NDArray[np.float32], events: list[Event]
    ) -> None:
        banned = [each.job.end_tokens if each.generated < each.job.min_tokens else None for each in sequences]
        sampled = self._sampler.draw(logits, rows, [each.sampler for each in sequences], banned)
        for sequence, drawn in zip(sequences, sampled, strict=True):
            self._take(sequence, drawn, events)

    def _take(self, sequence: Sequence, drawn: Sampled, events: list[Event]) -> None:
        """Append a drawn token to its choice, and end the choice where it is due."""
        job, token = sequence.job, drawn.token
        record = TokenRecord(token, self.vocabulary.token_bytes(token), drawn.logprob, drawn.top)
        sequence.tokens.append(token)
        sequence.sampler.accept(token)
        if token in job.end_tokens:
            self._end(sequence, "stop", record, events)
            return
        release = sequence.assembler.feed(record, special=self.vocabulary.is_special(token))
        ending: Ending | None = None
        if sequence.assembler.stopped:
            ending = "stop"
        elif sequence.generated >= job.max_tokens:
            ending = "length"
            rest = sequence.assembler.flush()
            release.text += rest.text
            release.records += rest.records
        events.append(Piece(job.id, sequence.choice, release.text, release.records, sequence.assembler.billed, ending))
        if ending:
            self.scheduler.finish(sequence)

    def _end(self, sequence: Sequence, ending: Ending, terminator: TokenRecord | None, events: list[Event]) -> None:
        rest = sequence.assembler.flush(terminator)
        events.append(
            Piece(sequence.job.id, sequence.choice, rest.text, rest.records, sequence.assembler.billed, ending)
        )
        self.scheduler.finish(sequence)

    def _count(self, works: list[Work], seconds: float) -> None:
        decoded = sum(work.count == 1 for work in works)
        read = sum(work.count for work in works) - decoded
        self.counters.steps += 1
        self.counters.prefill_tokens += read
        self.counters.decode_tokens += decoded
        self._pacer.observe(read, decoded, seconds)
