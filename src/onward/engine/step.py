"""One step of the engine: schedule → evaluate → sample → accept → emit. No threads here."""

from __future__ import annotations

import time
from collections.abc import Callable
from collections.abc import Sequence as ReadOnly
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from onward.constraints.errors import GrammarError
from onward.engine.cache import Copy, KVCache
from onward.engine.choice_end import ChoiceEnd
from onward.engine.constraints import Constraints, LoadTokenizer
from onward.engine.draft_model import drafting_with
from onward.engine.drafter import Draft, Drafter
from onward.engine.events import Decoded, EngineFinishReason, Event, Failed, FailureKind, Prefilled
from onward.engine.job import Job
from onward.engine.model import AdapterLoader, Hook, ModelRunner, Row, Vocabulary, copy_block, nothing, state_copier
from onward.engine.pacing import PrefillPacer, StepCost
from onward.engine.scheduler import ScheduledSequence, Scheduler, prefill_budget
from onward.engine.sequence import Sequence
from onward.engine.speculation import Speculation
from onward.engine_load import Counters, EngineLoad
from onward.sampling.choice import ChoiceSampler
from onward.sampling.masks import Mask
from onward.sampling.outputs import FAILURES, NOT_FINITE, Sampled
from onward.sampling.sampler import Sampler

if TYPE_CHECKING:
    from onward.engine.disk_cache import DiskCache


class PendingDraw(NamedTuple):
    """A sequence whose next token is sampled in this step from the logits at `row`, and those after its draft's tokens
    from the rows that follow."""

    sequence: Sequence
    row: int
    draft: Draft | None


class Engine:
    """Runs jobs step by step, and returns their events. Used on one thread, usually that of `thread.EngineThread`.

    Owns `model`, `draft_model` and `sampler`: `close` closes them. `load_tokenizer` is for grammars; None: no job has
    one; `in_disposable_process`: grammars are used there, because this process must not die. `clock` returns seconds.
    """

    def __init__(
        self,
        model: ModelRunner,
        vocabulary: Vocabulary,
        sampler: Sampler,
        *,
        load_tokenizer: LoadTokenizer | None = None,
        max_rows: int = 64,
        share_prefixes: bool = True,
        speculate: bool = True,
        draft_model: ModelRunner | None = None,
        clock: Callable[[], float] = time.perf_counter,
        in_disposable_process: bool = False,
    ) -> None:
        self.model = model
        self.vocabulary = vocabulary
        self.cache = KVCache(model.blocks, model.shape, share_prefixes=share_prefixes, copy_state=state_copier(model))
        self._cost = cost = StepCost(model.shape.change_fraction)
        drafting = None if draft_model is None else drafting_with(draft_model, model.vocab_size, sampler, cost, clock)
        self._speculation = Speculation(model.shape, cost, clock, drafting) if speculate else None
        self.scheduler = Scheduler(self.cache, max_rows, self._speculation.choose if self._speculation else None)
        self.constraints = Constraints(
            model.vocab_size, vocabulary, load_tokenizer, in_disposable_process=in_disposable_process
        )
        self.counters = Counters()
        self._sampler, self._clock = sampler, clock
        self._pacer = PrefillPacer(cost, model.shape)
        self._step_began = 0.0  # by `time.perf_counter`, for reports only
        self.undelivered: list[Event] = []
        """Events of the last step that were not delivered yet, also those of a step that failed half-way."""
        self.disk: DiskCache | None = None
        """Keeps prefixes on a disk. Closed with the engine."""
        self.adapters: AdapterLoader | None = None
        self._failures: dict[int, tuple[FailureKind, str]] = {}
        """Why requests fail in this step, by request."""
        self._not_finite: dict[int, Job] = {}
        """The jobs for which this step computed what is not finite, by id."""

    @property
    def idle(self) -> bool:
        """Whether no job is running or waiting."""
        return self.scheduler.idle

    def add(self, job: Job) -> None:
        """Queue a job, which must be valid and have an id that was not used before. Compiles its grammar unless
        `constraints` has it. Raises GrammarError."""
        self.scheduler.add(job, self.constraints.prepare(job) if job.grammar else None)

    def cancel(self, request: int) -> None:
        """Cancel a request's jobs. Later steps emit no events for them."""
        self.scheduler.cancel(request)

    def cancel_choice(self, job: int, choice: int) -> None:
        """Cancel a choice that has sampled tokens; no later step emits events of it."""
        self.scheduler.cancel_choice(job, choice)

    def step(self, before_compute: Hook = nothing) -> list[Event]:
        """Run one step and return its events, in order. Must not be called when idle.

        `before_compute` is called right before the model computes, when `undelivered` still contains the events of the
        step before: a thread that it wakes can run meanwhile. It may be called a second time.

        A request whose logits are not finite fails, and so does the largest one of a step for which the memory does not
        suffice; the others are not affected. Raises what else the model or the sampler raises; the engine is unusable
        then.
        """
        started, self._step_began = self._clock(), time.perf_counter()
        if self._speculation is not None:
            self._speculation.begin_step(before_compute)
        settled: list[Event] = []
        self._settle(settled)
        output = self.scheduler.schedule(prefill_budget(self.scheduler, self._pacer))
        if not output.scheduled:
            return self._idle_step(settled, before_compute)
        self._copy_blocks(output.copies)
        rows = [row for scheduled in output.scheduled for row in scheduled.rows()]
        self.constraints.start(output.scheduled)
        logits = self._evaluate(output.scheduled, rows, before_compute)
        before_compute()  # in case the runtime did not call it
        self.undelivered = settled
        if logits is not None:
            self._accept(output.scheduled, logits, self.undelivered)
        if self._failures:
            self._end_failed(self.undelivered)
        self._count(output.scheduled, len(rows), self._clock() - started)
        return self.undelivered

    def _settle(self, events: list[Event]) -> None:
        """End the choices that their grammars have completed, or cannot continue, as far as that is known by now."""
        for sequence in self.constraints.settle(self.scheduler.running):
            assert sequence.end is not None
            try:
                finish = sequence.end.settle()
            except GrammarError as error:
                self._failures[sequence.job.request] = "constraint", str(error)
                continue
            if finish:
                self._emit(sequence, [], finish, events)
        if self._failures:
            self._end_failed(events)

    def _idle_step(self, events: list[Event], before_compute: Hook) -> list[Event]:
        """Finish a step that computes nothing: all running sequences are held by their grammars, or have ended."""
        held = [each for each in self.scheduler.running if each.is_held]
        assert held or not self.scheduler.running, "jobs are waiting, but none can be admitted"
        before_compute()
        self.undelivered = events
        if held and not events:
            self.constraints.wait_for_any(held)
        return self.undelivered

    def load(self) -> EngineLoad:
        """Return a snapshot of what the engine is doing."""
        pool, scheduler, counters = self.cache.pool, self.scheduler, self.counters
        load = EngineLoad(
            num_running=len(scheduler.running),
            num_waiting=len(scheduler.admission),
            num_blocks=pool.num_blocks,
            num_used_blocks=pool.num_used,
            num_cached_blocks=pool.num_cached,
            num_preemptions=scheduler.reclaim.num_preemptions,
            num_steps=counters.num_steps,
            num_prefill_tokens=counters.num_prefill_tokens,
            num_decode_tokens=counters.num_decode_tokens,
            num_cached_tokens=counters.num_cached_tokens,
            drafts=counters.drafts,
            draft_seconds=0.0 if self._speculation is None else self._speculation.seconds,
        )
        return load if self.disk is None else self.disk.counted(load)

    def close(self) -> None:
        """Stop the sampler's threads, which use the model's memory, and close the model. No step follows."""
        try:
            self._sampler.close()
            self.constraints.close()
            if self.disk is not None:
                self.disk.close()
        finally:
            if self._speculation is not None:
                self._speculation.close()
            self.model.close()

    def check(self) -> None:
        """Raise AssertionError if a block or a row is lost. For tests, between steps."""
        self.cache.check(list(self.scheduler.sequences()))
        assert self.scheduler.rows.num_taken == len(self.scheduler.running), "a row is lost"

    def _evaluate(
        self, step: list[ScheduledSequence], rows: list[Row], before_compute: Hook
    ) -> NDArray[np.float32] | None:
        """Return the step's logits; None if the memory does not suffice, after which the next step tries the others."""
        try:
            return self.model.evaluate(rows, before_compute)
        except MemoryError:
            largest = max(step, key=lambda scheduled: (scheduled.num_outputs, scheduled.num_tokens)).sequence
            self._failures[largest.job.request] = "rejected", "the memory does not suffice to compute it"
            self.scheduler.reclaim.restart(each.sequence for each in step)
            return None

    def _end_failed(self, events: list[Event]) -> None:
        """End the requests that failed in this step: replace the step's events of their jobs. Where logits were not
        finite, nothing of the prompt is kept for reuse, because they may come from its keys and values."""
        failing = [each for each in self.scheduler.sequences() if each.job.request in self._failures]
        reasons = {each.job.id: self._failures[each.job.request] for each in failing}
        events[:] = [event for event in events if event.job not in reasons]
        for request in self._failures:
            self.scheduler.cancel(request)
        for job in self._not_finite.values():
            self.cache.discard(job.prompt, job.prefix_salt)
        events += [Failed(job_id, *reason) for job_id, reason in reasons.items()]
        self._failures, self._not_finite = {}, {}

    def _copy_blocks(self, copies: list[Copy]) -> None:
        for source, target in copies:
            copy_block(self.model, source, target)

    def _accept(self, step: list[ScheduledSequence], logits: NDArray[np.float32], events: list[Event]) -> None:
        """Count computed tokens, score prompts, sample tokens, and append the events.

        `logits`: float32 [sum of num_outputs, vocab_size], in the order of `step`.
        """
        pending: list[PendingDraw] = []
        late, row = self.constraints.late(step), 0
        for scheduled in step:
            sequence = scheduled.sequence
            self._score(scheduled, logits, row)
            first, row = row, row + scheduled.num_outputs
            sequence.began = sequence.began or self._step_began
            if sequence.id in late:
                sequence.computed = scheduled.end - 1  # of which it computes the last row again, with its masks
                continue
            self.scheduler.advance(scheduled)
            if sequence.is_prefilling:
                continue
            if scheduled.is_prefill:
                prefilled = self._prompt_computed(sequence, events)
                pending += [PendingDraw(each, row - 1, None) for each in prefilled]
            elif scheduled.num_outputs:
                pending.append(PendingDraw(sequence, first, scheduled.draft))
        if pending:
            self._sample(pending, logits, events)

    def _score(self, scheduled: ScheduledSequence, logits: NDArray[np.float32], first_row: int) -> None:
        """Score the prompt tokens that a chunk's logits predict. `logits`: as in `_accept`; the chunk's begin at
        `first_row`."""
        sequence = scheduled.sequence
        if not scheduled.num_outputs or not sequence.wants_scores:
            return
        scores, top = sequence.scores, sequence.job.score_top
        assert scores is not None and top is not None
        targets = sequence.job.prompt[len(scores) : scheduled.end + 1]
        if targets:
            scores += self._sampler.score(logits, first_row, targets, top, with_ranks=sequence.job.score_ranks)
            self._note_failures(sequence, scores[-len(targets) :])

    def _prompt_computed(self, sequence: Sequence, events: list[Event]) -> list[Sequence]:
        """Handle the end of a prefill: emit Prefilled (once per job) and fork the other choices.

        Returns the sequences whose first token is sampled from the prompt's last logits: those without any token.
        """
        if not sequence.prefill_reported:
            num_cached = sequence.num_cached_tokens or 0
            self.counters.num_cached_tokens += num_cached
            seconds = time.perf_counter() - sequence.began
            events.append(Prefilled(sequence.job.id, num_cached, sequence.scores, sequence.num_written_tokens, seconds))
            sequence.prefill_reported = True
            sequence.scores = None
        forked, copies = self.scheduler.fork(sequence)
        self._copy_blocks(copies)
        family = [sequence, *forked]
        if not sequence.job.max_tokens:
            for each in family:
                self._emit(each, [], "length", events)
            return []
        self._prepare(family)
        return [each for each in family if not each.num_generated]

    def _prepare(self, family: list[Sequence]) -> None:
        """Prepare the sequences of a prefilled job for decode: create their drafters and their ChoiceEnds, which are
        fed the tokens of a resumed sequence."""
        index = None
        for sequence in family:
            job = sequence.job
            if sequence.drafter is None and self._speculation is not None:
                if job.prediction:
                    self._speculation.wake()
                sequence.drafter = Drafter(sequence.tokens, sequence.prompt_length, job.prediction, index)
                index = sequence.drafter.index
            if sequence.end is None:
                sequence.constraint = sequence.grammar.begin() if sequence.grammar is not None else None
                sequence.end = ChoiceEnd(job, self.vocabulary, sequence.constraint)
                sequence.end.replay(sequence.tokens[sequence.prompt_length :])

    def _sample(self, pending: list[PendingDraw], logits: NDArray[np.float32], events: list[Event]) -> None:
        """Sample for all sequences at once, after each draft token as if it were accepted; keep what the drafts allow.

        `logits`: as in `_accept`.
        """
        rows: list[int] = []
        samplers: list[ChoiceSampler] = []
        banned: list[frozenset[int] | None] = []
        masks: list[Mask | None] = []
        for sequence, row, draft in pending:
            job, sampler = sequence.job, sequence.sampler
            rows.append(row)
            samplers.append(sampler)
            banned.append(job.end_tokens if sequence.num_generated < job.min_tokens else None)
            for ahead, token in enumerate(draft.tokens if draft else (), 1):
                sampler = sampler.after((token,))
                rows.append(row + ahead)
                samplers.append(sampler)
                banned.append(job.end_tokens if sequence.num_generated + ahead < job.min_tokens else None)
            own = self.constraints.masks_of(sequence, 1 + len(draft.tokens) if draft else 1)
            masks.extend([None] * (len(rows) - len(masks)) if own is None else own)
        constrained = any(mask is not None for mask in masks)
        sampled = iter(self._sampler.sample(logits, rows, samplers, banned, masks if constrained else ()))
        for sequence, _, draft in pending:
            tokens = [next(sampled)]
            if draft is not None:
                tokens += [next(sampled) for _ in draft.tokens]
            if self._note_failures(sequence, tokens):
                continue
            if draft is None:
                self._emit(sequence, tokens, self._take(sequence, tokens[0].token), events)
            else:
                self._take_accepted(sequence, draft, tokens, events)

    def _note_failures(self, sequence: Sequence, sampled: ReadOnly[Sampled | None]) -> bool:
        """Return whether no token could be sampled for one of them. Its request then fails at the end of the step."""
        failed = [one.token for one in sampled if one is not None and one.token < 0]
        if NOT_FINITE in failed:
            self._not_finite[sequence.job.id] = sequence.job
        if sequence.constraint is not None and (error := sequence.constraint.error):
            self._failures[sequence.job.request] = "constraint", error
            return True
        if failed:
            self._failures[sequence.job.request] = "rejected", FAILURES[failed[0]]
        return bool(failed)

    def _take_accepted(self, sequence: Sequence, draft: Draft, sampled: list[Sampled], events: list[Event]) -> None:
        """Take the sampled tokens up to the first that differs from the draft: those after it have a wrong context."""
        num_accepted = num_taken = 0
        finish: EngineFinishReason | None = None
        for one, drafted in zip(sampled, (*draft.tokens, None), strict=True):
            is_accepted = one.token == drafted
            num_accepted += is_accepted
            num_taken += 1
            finish = self._take(sequence, one.token)
            if finish or not is_accepted:
                break
            sequence.computed += 1
        num_rejected = len(draft.tokens) - num_accepted
        assert self._speculation is not None
        self._speculation.accepted(draft, num_accepted, num_rejected)
        if draft.source == "prediction":
            sequence.num_accepted += num_accepted
            sequence.num_rejected += num_rejected
        self.counters.count_draft(draft.source, num_accepted, num_rejected)
        self._emit(sequence, sampled[:num_taken], finish, events)

    def _take(self, sequence: Sequence, token: int) -> EngineFinishReason | None:
        """Append a sampled token to its sequence. Returns the finish reason, None if it continues."""
        sequence.tokens.append(token)
        sequence.sampler.accept(token)
        assert sequence.end is not None, "a sequence that samples has been prepared"
        return sequence.end.take(token)

    def _emit(
        self, sequence: Sequence, sampled: list[Sampled], finish: EngineFinishReason | None, events: list[Event]
    ) -> None:
        """Append a Decoded event. If it finishes the choice, release its row and blocks."""
        num_accepted, num_rejected = sequence.num_accepted, sequence.num_rejected
        mu = sequence.sampler.mu
        events.append(Decoded(sequence.job.id, sequence.choice, sampled, finish, num_accepted, num_rejected, mu))
        if finish:
            self.scheduler.release(sequence)

    def _count(self, step: list[ScheduledSequence], num_rows: int, seconds: float) -> None:
        """Update the counters and the cost model. The step had `num_rows` rows: one per prefill chunk, and one per
        token that was decoded, replayed or drafted. `seconds` include those of a draft model."""
        prompts = {each.sequence: each.num_tokens for each in step if each.is_prefill}
        num_prefill_tokens = sum(prompts.values())
        if self._speculation is not None:
            seconds = self._speculation.end_step(seconds, num_rows, prompts)
        self.counters.num_steps += 1
        self.counters.num_prefill_tokens += num_prefill_tokens
        self.counters.num_decode_tokens += sum(each.num_tokens for each in step if not each.is_prefill)
        self._cost.observe(num_prefill_tokens, num_rows - len(prompts), seconds)
