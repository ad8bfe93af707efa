"""One step of the engine: schedule → evaluate → sample → accept → emit. No threads here."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, get_args

import numpy as np
from numpy.typing import NDArray

from onward.engine.cache import Copy, KVCache
from onward.engine.drafts import Draft, Drafter, Source
from onward.engine.events import Ending, Event, Piece, Prefilled
from onward.engine.job import Job
from onward.engine.model import Hook, Model, Vocabulary, nothing
from onward.engine.pacing import BRIEF, PrefillPacer, StepCost
from onward.engine.scheduler import Scheduler, Work
from onward.engine.sequence import Sequence
from onward.engine.speculation import Speculation
from onward.sampling.choice import ChoiceSampler
from onward.sampling.outputs import Sampled
from onward.sampling.sampler import Sampler
from onward.text.assembler import Delta, TokenRecord


def _no_drafts() -> dict[tuple[Source, Literal["accepted", "rejected"]], int]:
    return {(source, outcome): 0 for source in get_args(Source) for outcome in ("accepted", "rejected")}


@dataclass(slots=True)
class Counters:
    """What the engine has done since its start. Written by the engine thread, read by anyone."""

    steps: int = 0
    prefill_tokens: int = 0
    decode_tokens: int = 0
    cached_tokens: int = 0
    drafts: dict[tuple[Source, Literal["accepted", "rejected"]], int] = field(default_factory=_no_drafts)
    """Guessed tokens that were evaluated, by where they came from and whether they were drawn."""


class Turn(NamedTuple):
    """A sequence that draws now: its next token by the logits at `row`, those behind its draft by the rows after it."""

    sequence: Sequence
    row: int
    draft: Draft | None


class Engine:
    """Turns jobs into events, a step at a time. Owned by one thread; `loop.EngineThread` is its usual owner."""

    def __init__(
        self,
        model: Model,
        vocabulary: Vocabulary,
        *,
        rows: int = 64,
        share_prefixes: bool = True,
        speculate: bool = True,
        threads: int | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.model = model
        self.vocabulary = vocabulary
        self.cache = KVCache(model.blocks, share_prefixes=share_prefixes)
        self._cost = StepCost()
        self._speculation = Speculation(self._cost) if speculate else None
        self.scheduler = Scheduler(self.cache, rows, self._speculation.choose if self._speculation else None)
        self.counters = Counters()
        self._sampler = Sampler(model.vocab_size, threads)
        self._pacer = PrefillPacer(self._cost)
        self._clock = clock
        self.untold: list[Event] = []
        """What is made ready and was not taken yet, also by a step that broke half-way."""

    @property
    def idle(self) -> bool:
        return self.scheduler.idle

    def add(self, job: Job) -> None:
        self.scheduler.add(job)

    def cancel(self, request: int) -> None:
        """Drop a request's jobs; no later step makes events of them."""
        self.scheduler.cancel(request)

    def step(self, before_compute: Hook = nothing) -> list[Event]:
        """Do one step; give what it made ready, in order. Must not be called when idle.

        `before_compute` is called when all is prepared, with `untold` still what the step before made ready: whom it
        wakes can run while the model computes. It is called again afterwards. Raises what the runtime raises; the
        engine is unusable then.
        """
        started = self._clock()
        works = self.scheduler.schedule(self._prompt_budget())
        assert works, "jobs wait, and none can be admitted"
        self._copy_blocks(self.scheduler.copies)
        rows = [row for work in works for row in work.rows()]
        logits = self.model.evaluate(rows, before_compute)
        before_compute()  # by a runtime that forgot it nothing is lost
        self.untold = []
        self._accept(works, logits, self.untold)
        self._count(works, len(rows), self._clock() - started)
        return self.untold

    def close(self) -> None:
        """Free what the runtime holds and end the sampler's threads, which read its logits. No step follows."""
        try:
            self._sampler.close()
        finally:
            self.model.close()

    def check(self) -> None:
        """AssertionError if a block or row is lost. For tests, between steps."""
        self.cache.check(list(self.scheduler.sequences()))

    def _copy_blocks(self, copies: list[Copy]) -> None:
        for source, target in copies:
            self.model.copy_block(source, target)

    def _prompt_budget(self) -> int:
        running = self.scheduler.running
        unread = [sequence.prompt_length - (sequence.reused or 0) for sequence in running if sequence.reading]
        writers, readers = len(running) - len(unread), len(unread) + self.scheduler.waiting
        return self._pacer.budget(writers, readers, brief=min(unread, default=0) <= BRIEF)

    def _accept(self, works: list[Work], logits: NDArray[np.float32], events: list[Event]) -> None:
        turns: list[Turn] = []
        row = 0
        for work in works:
            sequence = work.sequence
            self._score(work, logits, row)
            first, row = row, row + work.outputs
            self.scheduler.advance(work)
            if sequence.reading or not work.outputs:
                continue
            if work.reads:
                turns += [Turn(ready, row - 1, None) for ready in self._prompt_read(sequence, events)]
            else:
                turns.append(Turn(sequence, first, work.draft))
        if turns:
            self._draw(turns, logits, events)

    def _score(self, work: Work, logits: NDArray[np.float32], first_row: int) -> None:
        """Score the prompt tokens that this chunk's logits predict."""
        sequence = work.sequence
        if not work.outputs or not sequence.wants_scores:
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
        self._copy_blocks(copies)
        ready = [sequence, *forked]
        if sequence.job.max_tokens:
            self._prepare_drafts(ready)
            return ready
        for each in ready:
            self._end(each, "length", None, events)
        return []

    def _prepare_drafts(self, sequences: list[Sequence]) -> None:
        if self._speculation is None:
            return
        index = None
        for sequence in sequences:
            if sequence.drafter is None:
                if sequence.job.prediction:
                    self._speculation.wake()
                sequence.drafter = Drafter(sequence.tokens, sequence.job.prediction, index)
                index = sequence.drafter.index

    def _draw(self, turns: list[Turn], logits: NDArray[np.float32], events: list[Event]) -> None:
        """Draw for all turns at once, behind every draft as if it had come true; keep what its guesses allow."""
        rows: list[int] = []
        samplers: list[ChoiceSampler] = []
        banned: list[frozenset[int] | None] = []
        for sequence, row, draft in turns:
            job, sampler = sequence.job, sequence.sampler
            rows.append(row)
            samplers.append(sampler)
            banned.append(job.end_tokens if sequence.generated < job.min_tokens else None)
            for ahead, token in enumerate(draft.tokens if draft else (), 1):
                sampler = sampler.after((token,))
                rows.append(row + ahead)
                samplers.append(sampler)
                banned.append(job.end_tokens if sequence.generated + ahead < job.min_tokens else None)
        sampled = iter(self._sampler.sample(logits, rows, samplers, banned))
        for sequence, _, draft in turns:
            if draft is None:
                self._take(sequence, next(sampled), events)
            else:
                self._take_while_foretold(
                    sequence, draft, [next(sampled) for _ in range(len(draft.tokens) + 1)], events
                )

    def _take_while_foretold(
        self, sequence: Sequence, draft: Draft, sampled: list[Sampled], events: list[Event]
    ) -> None:
        """Take the drawn tokens up to the first that the draft did not foretell: behind it they would be others."""
        hits, mistaken, foretold = 0, sequence.mistaken, sequence.foretold
        for drawn, guessed in zip(sampled, (*draft.tokens, None), strict=True):
            hit = drawn.token == guessed
            hits += hit
            if draft.source == "prediction":
                sequence.foretold = foretold + hits
                sequence.mistaken = mistaken + len(draft.tokens) - hits
            if not self._take(sequence, drawn, events) or not hit:
                break
            sequence.computed += 1
        self.counters.decode_tokens += hits
        self.counters.drafts[draft.source, "accepted"] += hits
        self.counters.drafts[draft.source, "rejected"] += len(draft.tokens) - hits

    def _take(self, sequence: Sequence, drawn: Sampled, events: list[Event]) -> bool:
        """Append a drawn token to its choice, and end the choice where it is due; whether the choice goes on."""
        job, token = sequence.job, drawn.token
        record = TokenRecord(token, self.vocabulary.token_bytes(token), drawn.logprob, drawn.top)
        sequence.tokens.append(token)
        sequence.sampler.accept(token)
        if token in job.end_tokens:
            self._end(sequence, "stop", record, events)
            return False
        delta = sequence.assembler.feed(record, special=self.vocabulary.is_special(token))
        ending: Ending | None = None
        if sequence.assembler.stopped:
            ending = "stop"
        elif sequence.generated >= job.max_tokens:
            ending = "length"
            rest = sequence.assembler.flush()
            delta.text += rest.text
            delta.records += rest.records
        self._emit(sequence, delta, ending, events)
        return ending is None

    def _end(self, sequence: Sequence, ending: Ending, terminator: TokenRecord | None, events: list[Event]) -> None:
        self._emit(sequence, sequence.assembler.flush(terminator), ending, events)

    def _emit(self, sequence: Sequence, delta: Delta, ending: Ending | None, events: list[Event]) -> None:
        """Tell what may be shown; the last piece of a choice frees its row and blocks."""
        events.append(
            Piece(
                sequence.job.id,
                sequence.choice,
                delta.text,
                delta.records,
                sequence.assembler.num_completion_tokens,
                ending,
                sequence.foretold,
                sequence.mistaken,
            )
        )
        if ending:
            self.scheduler.release(sequence)

    def _count(self, works: list[Work], rows: int, seconds: float) -> None:
        """`rows` that the step had: those that read, and one for each token written, replayed or guessed."""
        chunks = [work.count for work in works if work.reads]
        self.counters.steps += 1
        self.counters.prefill_tokens += sum(chunks)
        self.counters.decode_tokens += sum(work.count for work in works if not work.reads)
        self._cost.observe(sum(chunks), rows - len(chunks), seconds)
