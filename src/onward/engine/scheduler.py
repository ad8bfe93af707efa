"""Decides what the next step computes. No clock, no logits, no I/O.

Every decoding sequence gets a token and perhaps a draft; the rest of a step prefills prompts, in chunks within a
budget, so that a long prompt does not delay the others. Background jobs are not computed in a step in which the prompt
of another job is prefilled or waits: its first token comes as soon as on an idle engine. If a decoding sequence needs a
block and none is available, another one is preempted: it releases its blocks, and later prefills its prompt again and
replays its tokens. Where a client waits that holds fewer rows, a sequence of another client is suspended: it leaves the
batch for some steps.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from collections.abc import Sequence as ReadOnly
from dataclasses import dataclass, field
from itertools import count, zip_longest

from onward.constraints.choice import Compiled
from onward.engine.admission import SHORT_PROMPT_TOKENS, Admission, AdmittedSequence, PrefillingBlocks
from onward.engine.cache import Copy, KVCache
from onward.engine.drafter import Draft
from onward.engine.job import Job
from onward.engine.model import Row, StepShape
from onward.engine.pacing import PrefillPacer
from onward.engine.rows import Reclaim, ReturningSequences, RowLedger
from onward.engine.sequence import Sequence, hash_blocks
from onward.engine.waiting import WaitingQueue

MAX_REPLAY_TOKENS = 32
"""Tokens that a preempted or resumed sequence replays per step."""
OLDEST_FIRST_INTERVAL_STEPS = 4
"""Once in this many steps, the prompt that was admitted first is prefilled first, however short the others are."""
SHARED_STRETCH = 2.0
SHARED_STRETCH_BESIDE_LONG = 1.3
"""Tokens of a step in which prompts of several clients prefill, as a multiple of those that the first one has left, or
of a tile. Those of a long prompt take longer, because they attend to more. `python -m benchmarks.fairness` shows what
follows for the first token of a small request."""

MIN_SHARED_TOKENS = 64
"""The same if that is more than a tile: where the end of each small prompt made a step of its own, prompts of the other
clients would hardly be computed."""

ChooseDrafts = Callable[[ReadOnly[Sequence]], dict[int, Draft]]
"""Returns the drafts worth evaluating for these decoding sequences, by sequence id."""


@dataclass(slots=True)
class ScheduledSequence:
    """One sequence's part of a step: its next `num_tokens` tokens, then those of a draft. Logits are computed for the
    last `num_outputs` of them.

    A prefill chunk is one row. All other tokens are rows of one token, which use the decode kernel and yield the bits
    of a decode step, however many are evaluated at once.
    """

    sequence: Sequence
    num_tokens: int
    num_outputs: int
    is_prefill: bool
    draft: Draft | None = None

    @property
    def end(self) -> int:
        """The sequence's computed tokens after this step, without drafts."""
        return self.sequence.computed + self.num_tokens

    def rows(self) -> list[Row]:
        """Return the rows to evaluate."""
        sequence = self.sequence
        start, blocks, adapter = sequence.computed, sequence.blocks, sequence.job.adapter
        tokens = sequence.tokens[start : self.end]
        if self.draft is not None:
            tokens += self.draft.tokens
        if self.is_prefill or len(tokens) == 1:
            return [Row(sequence.id, tokens, start, blocks, self.num_outputs, adapter, sequence.state)]
        first_output = len(tokens) - self.num_outputs
        return [
            Row(
                sequence.id, (token,), start + index, blocks, int(index >= first_output), adapter, sequence.state,
                is_draft=index >= self.num_tokens,
            )
            for index, token in enumerate(tokens)
        ]  # fmt: skip


@dataclass(slots=True)
class SchedulerOutput:
    """What one step computes, after the block copies `copies` were made in order."""

    scheduled: list[ScheduledSequence]
    copies: list[Copy] = field(default_factory=list)


class Scheduler:
    """The running sequences, at most `max_rows`, and no more than have a state; through `admission` the waiting ones.
    Engine thread only."""

    def __init__(self, cache: KVCache, max_rows: int, choose_drafts: ChooseDrafts | None = None) -> None:
        self.cache = cache
        self.rows = RowLedger(max_rows if cache.states is None else min(max_rows, cache.states.max_sequences))
        self.running: list[Sequence] = []
        self._prefilling = PrefillingBlocks()
        self.returning = ReturningSequences(cache.release)
        self.reclaim = Reclaim(self.running, self.rows, cache, self.returning, self.release)
        self.admission = Admission(cache, self.rows, self._prefilling, self.returning, self.reclaim)
        self._choose_drafts = choose_drafts
        self._ids = count(1)
        self._num_steps = 0

    @property
    def idle(self) -> bool:
        return not self.running and not self.admission

    def sequences(self) -> Iterator[Sequence]:
        """Yield all sequences, running and waiting."""
        yield from self.running
        yield from self.admission

    def add(self, job: Job, grammar: Compiled | None = None) -> None:
        """Queue a job, with its compiled grammar if it has one. One sequence computes its prompt; the other choices are
        forked from it."""
        hashes = hash_blocks(job.prompt, self.cache.block_tokens, job.prefix_salt) if self.cache.share_prefixes else ()
        first, *others = job.unfinished_choices
        leader = Sequence(job, first, next(self._ids), hashes)
        leader.forks_pending = others
        leader.grammar = grammar
        leader.era = self.cache.era
        self.admission.enqueue(leader)

    def cancel(self, request: int) -> None:
        """Release and remove all sequences of a request."""
        for sequence in [running for running in self.running if running.job.request == request]:
            self.release(sequence)
        self.admission.cancel(request)

    def cancel_choice(self, job: int, choice: int) -> None:
        """Cancel a choice that has sampled tokens, running or to return."""
        for sequence in self.running:
            if (sequence.job.id, sequence.choice) == (job, choice):
                self.release(sequence)
                return
        self.admission.cancel_choice(job, choice)

    def release(self, sequence: Sequence) -> None:
        """Remove a running sequence and release its row and blocks."""
        self.running.remove(sequence)
        self.rows.release(sequence.job)
        self._prefilling.finish(sequence, len(sequence.block_hashes))
        self.cache.release(sequence)

    def schedule(self, prefill_budget: int) -> SchedulerOutput:
        """Decide the next step: one token and perhaps a draft per decoding sequence, and at most `prefill_budget`
        prompt tokens, but at least a block of them if nothing decodes. Admits and preempts sequences. Nothing is
        scheduled where all of them are held by their grammars, and no prompt waits."""
        self._make_room()
        prefills = self._schedule_prefills(prefill_budget)
        decoding = [each for each in self.running if not each.is_prefilling]  # after some were suspended
        # Drafts are evaluated only in decode-only steps, so this comes after admission.
        is_decode_only = len(decoding) == len(self.running)
        decoding = [each for each in decoding if not each.is_held]
        if _is_urgent(self):
            interactive = [each for each in decoding if not each.job.is_background]
            if interactive or prefills.scheduled:
                decoding = interactive
        drafts = self._choose_drafts(decoding) if self._choose_drafts and decoding and is_decode_only else {}
        spare = len(self.running)
        decodes = [_decode(self.cache, sequence, drafts.get(sequence.id), spare) for sequence in decoding]
        if self.cache.states is not None:
            drafted = [(each.sequence, each.end) for each in decodes if each.draft is not None]
            self.cache.states.schedule([each.sequence for each in decodes], drafted)
        return SchedulerOutput(decodes + prefills.scheduled, prefills.copies)

    def advance(self, scheduled: ScheduledSequence) -> None:
        """Count the tokens of an evaluated sequence as computed, and publish its prompt blocks for reuse."""
        sequence = scheduled.sequence
        was_prefilling = sequence.is_prefilling
        sequence.computed = scheduled.end
        if was_prefilling:
            self.cache.publish(sequence)
            self._prefilling.finish(sequence, sequence.computed // self.cache.block_tokens)

    def fork(self, leader: Sequence) -> tuple[list[Sequence], list[Copy]]:
        """Create the other choices of a job whose leader has computed the prompt.

        Returns the sequences that run now, and the block copies to make first. Choices for which no row or block is
        free are queued, and prefill the prompt (mostly from the cache) themselves.
        """
        forked: list[Sequence] = []
        copies: list[Copy] = []
        job = leader.job
        for choice in leader.forks_pending:
            sequence = Sequence(job, choice, next(self._ids), leader.block_hashes)
            sequence.prefill_reported = True
            sequence.grammar = leader.grammar
            sequence.era = leader.era
            if self.rows.is_full or not self.rows.has_room(job.request) or not self.cache.can_fork(leader, sequence):
                self.admission.enqueue(sequence)
                continue
            copy = self.cache.fork(leader, sequence)
            if copy is not None:
                copies.append(copy)
            self.rows.take(job)
            self.running.append(sequence)
            forked.append(sequence)
        leader.forks_pending = []
        return forked, copies

    def _make_room(self) -> None:
        """Give every decoding sequence a block for its next token. Where blocks run out, take those of suspended
        sequences, then preempt the newest ones of the client with most rows."""
        for sequence in list(self.running):
            if sequence.is_prefilling or not self.cache.lacks_block(sequence):
                continue
            while sequence.blocks and not self.cache.can_grow():
                if not self.reclaim.blocks_of_suspended():
                    self.reclaim.preempt(self.reclaim.newest_of_largest_holder())
            if sequence.blocks:
                self.cache.grow(sequence)

    def _schedule_prefills(self, budget: int) -> SchedulerOutput:
        """Admit sequences, and schedule prefill chunks of at most `budget` tokens in total; of more where no sequence
        decodes, because all that do were suspended for those admitted, or are held."""
        output = SchedulerOutput([])
        self._num_steps += 1
        self.reclaim.busy.clear()
        if _only_decodes(self):
            return output
        self.running += self.admission.readmit(alongside_others=True)
        prefilling = [sequence for sequence in self.running if sequence.is_prefilling]
        admitted, queues = self.admission.admit_alongside(prefilling, only_interactive=_is_urgent(self))
        for each in admitted:
            _start(each, self.running, output)
        prefilling = [sequence for sequence in self.running if sequence.is_prefilling]  # some may have given way
        if _prefills_interactive(self):
            prefilling = [sequence for sequence in prefilling if not sequence.job.is_background]
        if all(sequence.is_prefilling or sequence.is_held for sequence in self.running):
            budget = max(budget, self.cache.shape.block_tokens)
        min_tokens = self.cache.shape.min_prefill_tokens
        oldest_first = self._num_steps % OLDEST_FIRST_INTERVAL_STEPS == 0
        ordered = _prefill_order(prefilling, self.rows, oldest_first=oldest_first)
        budget = _share(budget, ordered, queues, self.cache.shape, len(self.running) - len(ordered))
        for sequence in ordered:
            if budget < min_tokens:
                break
            output.scheduled.append(_prefill_chunk(sequence, budget))
            self.reclaim.busy.add(sequence.id)
            budget -= output.scheduled[-1].num_tokens
        while budget >= min_tokens and (one_more := self.admission.admit_next(queues)):
            output.scheduled.append(_prefill_chunk(_start(one_more, self.running, output), budget))
            self.reclaim.busy.add(one_more.sequence.id)
            budget -= output.scheduled[-1].num_tokens
        self.running += self.admission.readmit(alongside_others=False)
        return output


def prefill_budget(scheduler: Scheduler, pacer: PrefillPacer) -> int:
    """Return how many prompt tokens the next step may compute. If others run or wait, background jobs are not computed
    in the same step as their prompts, and the number of waiting background jobs makes no step longer."""
    if _only_decodes(scheduler):
        return 0
    running = scheduler.running
    num_waiting = len(scheduler.admission) - len(scheduler.returning.suspended)
    urgent = _is_urgent(scheduler)
    if urgent:
        running = [each for each in running if not each.job.is_background]
    if urgent or not all(each.job.is_background for each in running):
        num_waiting = sum(not each.job.is_background for each in scheduler.admission)
    left = [each.prompt_length - (each.num_cached_tokens or 0) for each in running if each.is_prefilling]
    num_decoding = len(running) - len(left)
    num_prefilling = min(len(left) + num_waiting, scheduler.rows.max_rows - num_decoding)
    return pacer.budget(num_decoding, num_prefilling, is_short=min(left, default=0) <= SHORT_PROMPT_TOKENS)


def _only_decodes(scheduler: Scheduler) -> bool:
    """Whether no sequence prefills, and none waits: the usual step, which has nothing to decide."""
    return not scheduler.admission and not any(each.is_prefilling for each in scheduler.running)


def _is_urgent(scheduler: Scheduler) -> bool:
    """Whether somebody waits for the first token of a job that is not a background job's: background jobs wait."""
    return _prefills_interactive(scheduler) or scheduler.admission.has_interactive


def _prefills_interactive(scheduler: Scheduler) -> bool:
    return any(each.is_prefilling and not each.job.is_background for each in scheduler.running)


def _share(
    budget: int, ordered: list[Sequence], queues: list[WaitingQueue], shape: StepShape, num_decoding: int
) -> int:
    """Return how many prompt tokens a step computes, instead of `budget`, where prompts of several clients prefill, or
    may be admitted from `queues`. `ordered`: see `_prefill_order`.

    The step contains the first prompt, or a tile of it, and takes at most about twice the time that this prompt would
    take alone: so a small request waits hardly longer than on an idle engine.
    """
    clients = {sequence.job.client for sequence in ordered}.union(*(queue.clients for queue in queues))
    if not budget or not ordered or len(clients) < 2:
        return budget
    stretch = SHARED_STRETCH if all(sequence.is_short for sequence in ordered) else SHARED_STRETCH_BESIDE_LONG
    left = _num_left(ordered[0])
    least = max(shape.tile_tokens, MIN_SHARED_TOKENS)
    max_tokens = int(stretch * max(left, least)) - num_decoding
    return max(min(budget, max_tokens), min(left, least), shape.min_prefill_tokens)


def _start(admitted: AdmittedSequence, running: list[Sequence], output: SchedulerOutput) -> Sequence:
    """Add an admitted sequence to those that run, and its block copy to the output. Modifies both."""
    if admitted.copy is not None:
        output.copies.append(admitted.copy)
    running.append(admitted.sequence)
    return admitted.sequence


def _decode(cache: KVCache, sequence: Sequence, draft: Draft | None, spare: int) -> ScheduledSequence:
    """Schedule the next tokens of a decoding sequence: several if it replays, else one and as much of the draft as
    leaves `spare` blocks available."""
    if sequence.is_replaying:
        left = len(sequence.tokens) - sequence.computed
        num_outputs = int(left <= MAX_REPLAY_TOKENS)
        return ScheduledSequence(sequence, min(left, MAX_REPLAY_TOKENS), num_outputs, is_prefill=False)
    if draft is not None:
        draft = _cut_to_room(cache, sequence, draft, spare)
    num_outputs = 1 if draft is None else 1 + len(draft.tokens)
    return ScheduledSequence(sequence, 1, num_outputs, is_prefill=False, draft=draft)


def _cut_to_room(cache: KVCache, sequence: Sequence, draft: Draft, spare: int) -> Draft | None:
    """Return the draft, cut to the available blocks; `spare` of them are left for the next tokens of others."""
    room = cache.reserve(sequence, len(draft.tokens) + 1, spare) - 1
    if room >= len(draft.tokens):
        return draft
    return Draft(draft.tokens[:room], draft.source) if room else None


def _prefill_order(prefilling: list[Sequence], rows: RowLedger, *, oldest_first: bool) -> list[Sequence]:
    """Return the sequences with the least left to compute first, which minimizes the mean time to the first token.
    Clients take turns; those that hold few rows are preferred.

    With `oldest_first`, the one of each client that was admitted first is before all others of that client, and the
    oldest of all in the first or second place, so that a stream of short prompts does not starve a long one.
    """
    by_client: dict[int, list[Sequence]] = {}
    for sequence in prefilling:
        by_client.setdefault(sequence.job.client, []).append(sequence)
    for own in by_client.values():
        oldest = own[0]
        own.sort(key=_num_left)
        if oldest_first:
            own.remove(oldest)
            own.insert(0, oldest)
    clients = sorted(by_client.values(), key=lambda own: _num_left(own[0]) * rows.held_by(own[0].job.client))
    if oldest_first and prefilling and (first := by_client[prefilling[0].job.client]) not in clients[:2]:
        clients.remove(first)
        clients.insert(1, first)
    return [sequence for turn in zip_longest(*clients) for sequence in turn if sequence is not None]


def _num_left(sequence: Sequence) -> int:
    """Return how many prompt tokens have not been computed."""
    return sequence.prompt_length - sequence.computed


def _prefill_chunk(sequence: Sequence, budget: int) -> ScheduledSequence:
    """Schedule the next chunk of a prompt: as much as the budget allows, but never so that a single token is left, of
    the prompt or before a snapshot: it would go through the decode kernel. The last two are computed together, even
    with a budget of one."""
    left, whole = _num_left(sequence), sequence.num_to_prefill
    num_tokens = min(whole, budget)
    if whole - num_tokens == 1:
        num_tokens += 1 if num_tokens == 1 else -1
    return ScheduledSequence(sequence, num_tokens, _num_outputs(sequence, num_tokens, left), is_prefill=True)


def _num_outputs(sequence: Sequence, num_tokens: int, left: int) -> int:
    """Return for how many of a chunk's last tokens logits are needed: to score prompt tokens, and at the prompt's end.

    The logits at position p score token p + 1, so they are needed from position `len(scores) - 1` on.
    """
    if not sequence.wants_scores:
        return int(num_tokens == left and sequence.wants_first_token)
    assert sequence.scores is not None
    end = sequence.computed + num_tokens
    first = max(sequence.computed, len(sequence.scores) - 1)
    return max(0, end - first)
