"""Admission: who joins the running batch, and when.

Short and long prompts wait in separate queues, so that long ones do not delay a short one. In both queues the clients
that hold fewer rows come first; of a client's requests those with the lowest priority number, and equal ones take
turns. Where another client holds many more rows or much more memory, some of it is taken back (`rows.Reclaim`). If the
request whose turn it is does not fit in memory even so, nothing is admitted before it, so that large requests do not
starve. A prompt whose prefix another sequence is computing waits for that prefix (law 3).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import count, islice
from operator import attrgetter
from typing import NamedTuple

from onward.engine.cache import Copy, KVCache
from onward.engine.prefix_tree import Node
from onward.engine.rows import Reclaim, ReturningSequences, RowLedger
from onward.engine.sequence import Sequence
from onward.engine.waiting import NEVER, WaitingQueue

SHORT_PROMPT_TOKENS = 1024
"""A prompt is short if at most this many of its tokens are not cached."""
MAX_PREFILLING = 4
"""How many short prompts, and how many long ones, may be prefilling; further ones are admitted only if a step's budget
is not used up, or if their client has none among those."""


class AdmittedSequence(NamedTuple):
    """A sequence that has joined the batch, and the block copy to make before it is evaluated, if any."""

    sequence: Sequence
    copy: Copy | None


class PrefillingBlocks:
    """Hashes of the prompt blocks that running sequences are computing. Engine thread only."""

    def __init__(self) -> None:
        self._counts: Counter[int] = Counter()

    def __contains__(self, block_hash: int | None) -> bool:
        return block_hash in self._counts

    def begin(self, sequence: Sequence, num_cached_blocks: int) -> None:
        """Note that the sequence computes all its blocks except the first `num_cached_blocks`."""
        sequence.prefilling_hashes = sequence.block_hashes[num_cached_blocks:]
        self._counts.update(sequence.prefilling_hashes)

    def finish(self, sequence: Sequence, num_blocks: int) -> None:
        """Note that the sequence no longer computes its first `num_blocks` blocks."""
        finished = max(0, num_blocks - (len(sequence.block_hashes) - len(sequence.prefilling_hashes)))
        for block_hash in sequence.prefilling_hashes[:finished]:
            self._counts[block_hash] -= 1
            if not self._counts[block_hash]:
                del self._counts[block_hash]
        sequence.prefilling_hashes = sequence.prefilling_hashes[finished:]

    def deepest(self, sequence: Sequence, num_cached_blocks: int) -> int | None:
        """Return the hash of the block that a sequence should wait for (law 3).

        That is the last of the consecutive blocks, right after the cached ones, that running sequences are computing.
        None if its first uncached block is not among them.
        """
        deepest = None
        for block_hash in islice(sequence.block_hashes, num_cached_blocks, None):
            if block_hash not in self._counts:
                break
            deepest = block_hash
        return deepest


class Admission:
    """The waiting sequences, and the decision which of them joins the batch next. Engine thread only.

    Admission takes a row of `rows` and blocks of `cache`. The methods that return None have taken neither. `returning`
    are the sequences that have run before; `reclaim` takes back rows and blocks.
    """

    def __init__(
        self,
        cache: KVCache,
        rows: RowLedger,
        prefilling: PrefillingBlocks,
        returning: ReturningSequences,
        reclaim: Reclaim,
    ) -> None:
        self._cache = cache
        self._rows = rows
        self._prefilling = prefilling
        self._returning = returning
        self._reclaim = reclaim
        turns = count()
        self._queues: list[WaitingQueue] = []
        self._queues += [WaitingQueue(turns, rows, self._queues, is_short=is_short) for is_short in (True, False)]
        self._only_interactive = False
        """Whether background jobs wait in this step."""
        self._out_of_memory = False
        """Whether the request whose turn it is did not fit in memory in this step: then nothing is admitted."""

    def __len__(self) -> int:
        return len(self._returning) + sum(map(len, self._queues))

    def __iter__(self) -> Iterator[Sequence]:
        """Yield all waiting sequences."""
        yield from self._returning
        for queue in self._queues:
            yield from queue

    def enqueue(self, sequence: Sequence) -> None:
        """Queue a sequence after the others of its request. Decides whether it is short by what is cached now."""
        length = sequence.prompt_length
        sequence.is_short = length <= SHORT_PROMPT_TOKENS or (
            length - len(self._cache.find(sequence)) * self._cache.block_tokens <= SHORT_PROMPT_TOKENS
        )
        next(queue for queue in self._queues if queue.is_short == sequence.is_short).add(sequence)

    def cancel(self, request: int) -> None:
        """Remove a request's waiting sequences."""
        for queue in self._queues:
            queue.cancel(request)
        self._returning.cancel(lambda sequence: sequence.job.request == request)

    def cancel_choice(self, job: int, choice: int) -> None:
        """Remove a waiting sequence that has run before."""
        self._returning.cancel(lambda sequence: (sequence.job.id, sequence.choice) == (job, choice))

    @property
    def has_interactive(self) -> bool:
        """Whether a sequence waits that is not a background job's and for which a row may be free."""
        return any(queue.has_interactive for queue in self._queues)

    def admit_alongside(
        self, prefilling: list[Sequence], *, only_interactive: bool
    ) -> tuple[list[AdmittedSequence], list[WaitingQueue]]:
        """Begin a step: admit one short and one long sequence, each unless MAX_PREFILLING of its kind are prefilling,
        of which one is of the client whose turn it is. With `only_interactive`, no background job is admitted in this
        step.

        `prefilling` are the running sequences that prefill. Returns the admitted sequences, and the queues from which
        more may be admitted while the step's budget lasts.
        """
        self._out_of_memory, self._only_interactive = False, only_interactive
        admitted: list[AdmittedSequence] = []
        open_queues: list[WaitingQueue] = []
        for queue in sorted(self._queues, key=_turn):
            now_prefilling = [*prefilling, *(each.sequence for each in admitted)]
            same_kind = [sequence.job.client for sequence in now_prefilling if sequence.is_short == queue.is_short]
            first = queue.first_job
            if len(same_kind) < MAX_PREFILLING or first is None or first.client not in same_kind:
                one = self.admit_next([queue])
                if one is None:
                    continue
                admitted.append(one)
            open_queues.append(queue)
        return admitted, open_queues

    def readmit(self, *, alongside_others: bool) -> list[Sequence]:
        """Return suspended sequences that run again, for which there are rows. They need no prefill.

        With `alongside_others` only those of clients that hold no more rows than any that waits; call it without this
        flag after the others had their turn, so that no row is left unused.
        """
        suspended, returned = self._returning.suspended, list[Sequence]()
        while (
            not self._rows.is_full
            and (sequence := self._returning.first(suspended, self._only_interactive)) is not None
        ):
            turn = sequence.job.is_background, self._rows.held_by(sequence.job.client)
            if alongside_others and turn > min(queue.turn for queue in self._queues)[:2]:
                break
            if self._cache.lacks_block(sequence):
                if not self._cache.can_grow():
                    self._reclaim.blocks_of_suspended()
                    continue
                self._cache.grow(sequence)
            suspended.remove(sequence)
            returned.append(sequence)
            self._rows.take(sequence.job)
        return returned

    def admit_next(self, queues: list[WaitingQueue]) -> AdmittedSequence | None:
        """Admit the next sequence if there are a row and enough blocks for it: a preempted one, unless a client that
        holds fewer rows waits in `queues`.

        A sequence that does not fit in memory blocks its queue, and if its queue's turn is the lowest, both queues: so
        it is admitted in the end, and delays other requests only in its own turn.
        """
        if self._out_of_memory:
            return None
        first = self._returning.first(self._returning.preempted, self._only_interactive)
        if first is not None:
            turn = first.job.is_background, self._rows.held_by(first.job.client)
            if turn <= min((queue.turn for queue in queues), default=NEVER)[:2]:
                if self._rows.is_full and not self._reclaim.row_for(first.job):
                    return None
                admitted = self._try_admit(first, self._cache.find(first))
                if admitted is not None:
                    self._returning.preempted.remove(first)
                return admitted
        for queue in sorted(queues, key=_turn):
            admitted = self._admit_from(queue)
            if admitted is not None or self._out_of_memory:
                return admitted
        return None

    def _admit_from(self, queue: WaitingQueue) -> AdmittedSequence | None:
        """Admit the first sequence of a queue that does not wait for a prefix. Sets `_out_of_memory` if it does not fit
        and it is this queue's turn."""
        first = queue.first_job
        if first is None or (self._rows.is_full and not self._reclaim.may_find_row(first)):
            return None
        for sequence in queue.candidates():
            if self._only_interactive and sequence.job.is_background:
                return None
            if sequence.waits_for in self._prefilling:
                continue
            nodes = self._cache.find(sequence)
            sequence.waits_for = self._prefilling.deepest(sequence, len(nodes))
            if sequence.waits_for is not None:
                continue
            if self._rows.is_full and not self._reclaim.row_for(sequence.job):
                return None
            admitted = self._try_admit(sequence, nodes)
            if admitted is not None:
                queue.take(sequence)
            else:
                self._out_of_memory = queue is min(self._queues, key=_turn)
            return admitted
        return None

    def _try_admit(self, sequence: Sequence, nodes: list[Node]) -> AdmittedSequence | None:
        """Take a free row and blocks for the sequence if there are enough, or can be taken back. `nodes` are its cached
        blocks."""
        reserve = self._rows.num_taken + len(self._returning.suspended)
        while not self._cache.can_admit(sequence, nodes, reserve):
            if not self._reclaim.blocks_for(sequence.job):
                return None
            reserve = self._rows.num_taken + len(self._returning.suspended)
        copy = self._cache.admit(sequence, nodes)
        self._rows.take(sequence.job)
        self._prefilling.begin(sequence, len(nodes))
        return AdmittedSequence(sequence, copy)


_turn = attrgetter("turn")
