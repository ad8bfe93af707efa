"""Who computes what in the next step. Decides only: no clock, no logits, no I/O.

Running sequences that write go first, a token and perhaps a draft each; the rest of a step reads prompts, in chunks
within a budget, so that a long prompt stalls nobody. Brief and long prompts wait in lines of their own, so that no
number of long ones stalls a brief one; requests of both take turns to have a sequence admitted. Whoever does not fit
into memory when its turn has come holds back all others, so that none starves. When a running sequence needs a block
and none is left, the one admitted last gives all its blocks back and is read and replayed later.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterator
from collections.abc import Sequence as ReadOnly
from dataclasses import dataclass
from itertools import count, islice
from operator import attrgetter

from onward.engine.cache import Copy, KVCache
from onward.engine.drafts import Draft
from onward.engine.job import Job
from onward.engine.model import BLOCK_TOKENS, CHUNK_TOKENS, Row
from onward.engine.pacing import BRIEF
from onward.engine.prefix import Node
from onward.engine.sequence import Sequence, chain_of
from onward.engine.waiting import WaitingLine

READERS = 4
"""How many brief prompts, and how many long ones, are read side by side before newcomers of their kind must wait for
the budget's rest."""

REPLAYED = 32
"""Tokens that a preempted sequence replays in a step."""


@dataclass(slots=True)
class Work:
    """One sequence's share of a step: its next `count` tokens, then those of a draft; logits for the last `outputs`.

    Tokens of a prompt (`reads`) go into one row, all others into rows of one token: the kernels that make the bits of
    a decode step, however many are evaluated at once.
    """

    sequence: Sequence
    count: int
    outputs: int
    reads: bool
    draft: Draft | None = None

    @property
    def end(self) -> int:
        return self.sequence.computed + self.count

    def rows(self) -> list[Row]:
        sequence = self.sequence
        start, blocks = sequence.computed, sequence.blocks
        tokens = sequence.tokens[start : self.end]
        if self.draft is not None:
            tokens += self.draft.tokens
        if self.reads:
            return [Row(sequence.id, tokens, start, blocks, self.outputs)]
        repeatable = sequence.job.repeatable
        if len(tokens) == 1:
            return [Row(sequence.id, tokens, start, blocks, self.outputs, repeatable)]
        first_output = len(tokens) - self.outputs
        return [
            Row(sequence.id, (token,), start + index, blocks, int(index >= first_output), repeatable)
            for index, token in enumerate(tokens)
        ]


class Scheduler:
    """Waiting and running sequences. `rows` is the most that run together; one request holds at most three
    quarters of them, so that a large one cannot shut out the others. Engine thread only."""

    def __init__(
        self, cache: KVCache, rows: int, choose_drafts: Callable[[ReadOnly[Sequence]], dict[int, Draft]] | None = None
    ) -> None:
        """`choose_drafts`: of the sequences that write, the drafts that are worth evaluating, by sequence id."""
        self.cache = cache
        self.rows = rows
        self._choose_drafts = choose_drafts
        self.rows_per_request = max(1, rows * 3 // 4)
        self.running: list[Sequence] = []
        self.preemptions = 0
        self.copies: list[Copy] = []
        """Block copies to make, in order, before what the last `schedule` gave is evaluated."""
        self._resumed: deque[Sequence] = deque()
        turns = count()
        self._lines = tuple(WaitingLine(turns, brief=brief) for brief in (True, False))
        self._held = False
        """Whether in this step memory was too small for the request whose turn it was: then nobody is admitted."""
        self._rows_held: Counter[int] = Counter()
        self._being_read: Counter[int] = Counter()
        self._next_id = 0
        self._turn = 0

    # --- what is there -------------------------------------------------------------------------------------

    @property
    def idle(self) -> bool:
        return not self.running and not self._resumed and not any(self._lines)

    @property
    def waiting(self) -> int:
        return len(self._resumed) + sum(map(len, self._lines))

    def sequences(self) -> Iterator[Sequence]:
        """All sequences, running and waiting."""
        yield from self.running
        yield from self._resumed
        for line in self._lines:
            yield from line

    # --- coming and going ----------------------------------------------------------------------------------

    def add(self, job: Job) -> None:
        """Queue a job: one sequence reads its prompt, the other choices are forked from it."""
        leader = self._new_sequence(job, 0, chain_of(job.prompt) if self.cache.share_prefixes else ())
        leader.unforked = job.choices - 1
        self._enqueue(leader)

    def cancel(self, request: int) -> None:
        """Drop all work of a request."""
        for sequence in [running for running in self.running if running.job.request == request]:
            self.release(sequence)
        for line in self._lines:
            line.cancel(request)
        for sequence in [resumed for resumed in self._resumed if resumed.job.request == request]:
            self._resumed.remove(sequence)

    def release(self, sequence: Sequence) -> None:
        """Take a running sequence's row and blocks back."""
        self.running.remove(sequence)
        request = sequence.job.request
        self._rows_held[request] -= 1
        if not self._rows_held[request]:
            del self._rows_held[request]
        self._mark_read(sequence, len(sequence.chain))
        self.cache.release(sequence)

    # --- one step ------------------------------------------------------------------------------------------

    def schedule(self, prompt_budget: int) -> list[Work]:
        """Decide the next step: at most `prompt_budget` prompt tokens, but a chunk at least where nobody writes; a
        token and a draft for each writer. Sets `copies`."""
        self.copies = []
        self._make_room()
        writers = [sequence for sequence in self.running if not sequence.reading]
        reads = self._read_some(prompt_budget if writers else max(prompt_budget, CHUNK_TOKENS))
        return self._write_all(writers) + reads

    def advance(self, work: Work) -> None:
        """The work was evaluated: count its tokens as computed, publish what others may share."""
        sequence = work.sequence
        was_reading = sequence.reading
        sequence.computed = work.end
        if was_reading:
            self.cache.publish(sequence)
            self._mark_read(sequence, sequence.computed // BLOCK_TOKENS)

    def fork(self, leader: Sequence) -> tuple[list[Sequence], list[Copy]]:
        """The leader has read its prompt: make the job's other choices.

        Gives those that can draw their first token now, and the block copies to make first (source, target).
        Choices for which no row or block is free wait, and read the (mostly cached) prompt themselves.
        """
        forked: list[Sequence] = []
        copies: list[Copy] = []
        job = leader.job
        for choice in range(1, leader.unforked + 1):
            sequence = self._new_sequence(job, choice, leader.chain)
            if not self._row_free(job.request) or not self.cache.can_fork():
                self._enqueue(sequence)
                continue
            copy = self.cache.fork(leader, sequence)
            if copy is not None:
                copies.append(copy)
            self._start_running(sequence)
            forked.append(sequence)
        leader.unforked = 0
        return forked, copies

    # --- parts ---------------------------------------------------------------------------------------------

    def _new_sequence(self, job: Job, choice: int, chain: tuple[int, ...]) -> Sequence:
        self._next_id += 1
        return Sequence(job, choice, self._next_id, chain)

    def _enqueue(self, sequence: Sequence) -> None:
        sequence.brief = self._is_brief(sequence)
        next(line for line in self._lines if line.brief == sequence.brief).add(sequence)

    def _is_brief(self, sequence: Sequence) -> bool:
        """Whether little of the prompt is to be read, as far as the cache tells now."""
        length = sequence.prompt_length
        return length <= BRIEF or length - len(self.cache.find(sequence)) * BLOCK_TOKENS <= BRIEF

    def _in_turn(self, readers: list[Sequence]) -> list[Sequence]:
        """Those with the least left to read first: that gives first tokens soonest. Every fourth time the one that
        came first begins, so that a long prompt is read however many short ones come."""
        self._turn += 1
        ordered = sorted(readers, key=lambda sequence: sequence.prompt_length - sequence.computed)
        if readers and self._turn % 4 == 0:
            ordered.remove(readers[0])
            ordered.insert(0, readers[0])
        return ordered

    def _make_room(self) -> None:
        """Give every writer room for its next token, preempting the latest comers where blocks run out."""
        for sequence in list(self.running):
            if sequence.reading or not sequence.blocks_short:
                continue
            while sequence.blocks and not self.cache.can_grow(sequence):
                self._preempt(self.running[-1])
            if sequence.blocks:
                self.cache.grow(sequence)

    def _preempt(self, sequence: Sequence) -> None:
        self.release(sequence)
        self._resumed.appendleft(sequence)
        self.preemptions += 1

    def _read_some(self, budget: int) -> list[Work]:
        """Admit newcomers, and read chunks of at most `budget` tokens together."""
        readers = [sequence for sequence in self.running if sequence.reading]
        lines = self._admit_readers(readers)
        works: list[Work] = []
        for sequence in self._in_turn(readers):
            if budget < CHUNK_TOKENS:
                break
            works.append(self._read(sequence, budget))
            budget -= works[-1].count
        while budget >= CHUNK_TOKENS and (newcomer := self._admit_next(lines)):
            works.append(self._read(newcomer, budget))
            budget -= works[-1].count
        return works

    def _write_all(self, writers: list[Sequence]) -> list[Work]:
        """A token for each writer, and drafts where nobody else runs: so not before newcomers have been admitted."""
        undisturbed = len(writers) == len(self.running)
        drafts = self._choose_drafts(writers) if self._choose_drafts and writers and undisturbed else {}
        return [self._write(sequence, drafts.get(sequence.id)) for sequence in writers]

    def _write(self, sequence: Sequence, draft: Draft | None) -> Work:
        if sequence.replaying:
            left = len(sequence.tokens) - sequence.computed
            return Work(sequence, min(left, REPLAYED), int(left <= REPLAYED), reads=False)
        if draft is not None:
            draft = self._with_room(sequence, draft)
        return Work(sequence, 1, 1 if draft is None else 1 + len(draft.tokens), reads=False, draft=draft)

    def _with_room(self, sequence: Sequence, draft: Draft) -> Draft | None:
        """The draft, cut to the blocks there are: a guess takes none that others need for their next token."""
        room = self.cache.reserve(sequence, len(draft.tokens) + 1, spare=len(self.running)) - 1
        if room >= len(draft.tokens):
            return draft
        return Draft(draft.tokens[:room], draft.source) if room else None

    def _read(self, sequence: Sequence, budget: int) -> Work:
        """The next chunk of a prompt: as much as the budget allows, and no single token left for the last chunk (it
        would go through the decode kernel)."""
        left = sequence.prompt_length - sequence.computed
        count = min(left, budget)
        if left - count == 1:
            count -= 1
        return Work(sequence, count, _outputs_wanted(sequence, count, left), reads=True)

    def _admit_readers(self, readers: list[Sequence]) -> list[WaitingLine]:
        """Admit one sequence of each line of which few are being read, and add it to `readers`; give the lines that may
        have more."""
        self._held = False
        lines: list[WaitingLine] = []
        for line in sorted(self._lines, key=_turn_of_line):
            if sum(reader.brief == line.brief for reader in readers) < READERS:
                newcomer = self._admit_next([line])
                if newcomer is None:
                    continue
                readers.append(newcomer)
            lines.append(line)
        return lines

    def _admit_next(self, lines: list[WaitingLine]) -> Sequence | None:
        """Admit one waiting sequence of these lines, if a row and memory allow.

        Who does not fit into memory holds back those behind it in its line, and everybody when its line's turn is
        the next of all: so it comes in at last, and no sooner than its request's turn keeps others waiting.
        """
        if self._held or len(self.running) >= self.rows:
            return None
        if self._resumed:
            return self._resumed.popleft() if self._try_admit(self._resumed[0]) else None
        for line in sorted(lines, key=_turn_of_line):
            newcomer = self._admit_from(line)
            if newcomer is not None or self._held:
                return newcomer
        return None

    def _admit_from(self, line: WaitingLine) -> Sequence | None:
        """Admit the first of a line that need not wait for a prefix; sets `_held` where only memory is missing."""
        for sequence in line.in_turn(self._row_free):
            if sequence.awaited in self._being_read:
                continue
            nodes = self.cache.find(sequence)
            sequence.awaited = self._deepest_being_read(sequence, nodes)
            if sequence.awaited is not None:
                continue
            if self._try_admit(sequence, nodes):
                line.take(sequence)
                return sequence
            self._held = line is min(self._lines, key=_turn_of_line)
            return None
        return None

    def _try_admit(self, sequence: Sequence, nodes: list[Node] | None = None) -> bool:
        if nodes is None:
            nodes = self.cache.find(sequence)
        if not self.cache.can_admit(sequence, nodes, reserve=len(self.running)):
            return False
        copy = self.cache.admit(sequence, nodes)
        if copy is not None:
            self.copies.append(copy)
        self._start_running(sequence)
        sequence.unread = sequence.chain[len(nodes) :]
        self._being_read.update(sequence.unread)
        return True

    def _deepest_being_read(self, sequence: Sequence, nodes: list[Node]) -> int | None:
        """Of the blocks behind `nodes` that running sequences are computing, one behind the other, the last: once that
        is read, this one need not compute any of them (law 3). None where nobody computes its very next block."""
        deepest = None
        for block in islice(sequence.chain, len(nodes), None):
            if block not in self._being_read:
                break
            deepest = block
        return deepest

    def _row_free(self, request: int) -> bool:
        return len(self.running) < self.rows and self._rows_held[request] < self.rows_per_request

    def _start_running(self, sequence: Sequence) -> None:
        self.running.append(sequence)
        self._rows_held[sequence.job.request] += 1

    def _mark_read(self, sequence: Sequence, end: int) -> None:
        """The first `end` blocks of its chain are not being read by this sequence any more."""
        count = max(0, end - (len(sequence.chain) - len(sequence.unread)))
        for block in sequence.unread[:count]:
            self._being_read[block] -= 1
            if not self._being_read[block]:
                del self._being_read[block]
        sequence.unread = sequence.unread[count:]


_turn_of_line = attrgetter("turn")


def _outputs_wanted(sequence: Sequence, count: int, left: int) -> int:
    """For how many of the chunk's last tokens logits are read: those that score a token, and the prompt's end.

    The logits at position p score token p + 1, so a chunk that ends at `end` needs them from position
    `len(scores) - 1` on.
    """
    if not sequence.wants_scores:
        return 1 if count == left and not sequence.generated else 0
    assert sequence.scores is not None
    end = sequence.computed + count
    first = max(sequence.computed, len(sequence.scores) - 1)
    return end - first
