"""Admission: who joins the running batch, and when.

Short and long prompts wait in separate queues, so that long ones do not delay a short one; in both queues, requests
take turns. If the request whose turn it is does not fit in memory, nothing is admitted before it, so that large
requests do not starve. A prompt whose prefix another sequence is computing waits for that prefix (law 3).
"""

from __future__ import annotations

import math
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Iterator
from itertools import count, islice
from operator import attrgetter
from typing import NamedTuple

from onward.engine.cache import Copy, KVCache
from onward.engine.prefix_tree import Node
from onward.engine.sequence import Sequence

SHORT_PROMPT_TOKENS = 1024
"""A prompt is short if at most this many of its tokens are not cached."""
MAX_PREFILLING = 4
"""How many short prompts, and how many long ones, may be prefilling; further ones are admitted only if a step's budget
is not used up."""
MAX_CANDIDATES_PER_REQUEST = 8
"""Waiting sequences of a request that are considered for admission, when the first ones wait for a shared prefix."""


class Admitted(NamedTuple):
    """A sequence that has joined the batch, and the block copy to make before it is evaluated, if any."""

    sequence: Sequence
    copy: Copy | None


class WaitingQueue:
    """Waiting sequences of one kind, short or long, grouped by request. Engine thread only.

    `turns` numbers the turns of requests, across all queues that share it.
    """

    def __init__(self, turns: count[int], *, is_short: bool) -> None:
        self.is_short = is_short
        self._turns = turns
        self._requests: OrderedDict[int, tuple[int, deque[Sequence]]] = OrderedDict()
        """The turn and the sequences of each request, in the order of turns."""
        self._num_waiting = 0

    def __len__(self) -> int:
        return self._num_waiting

    def __iter__(self) -> Iterator[Sequence]:
        """Yield all sequences, in no particular order."""
        for _, sequences in self._requests.values():
            yield from sequences

    @property
    def turn(self) -> float:
        """The turn of the first request, infinity if there is none. The queue with the lowest turn is served first."""
        return next((turn for turn, _ in self._requests.values()), math.inf)

    def add(self, sequence: Sequence) -> None:
        """Append a sequence to those of its request."""
        request = sequence.job.request
        if request not in self._requests:
            self._requests[request] = next(self._turns), deque()
        self._requests[request][1].append(sequence)
        self._num_waiting += 1

    def cancel(self, request: int) -> None:
        """Remove a request's sequences."""
        _, dropped = self._requests.pop(request, (0, ()))
        self._num_waiting -= len(dropped)

    def candidates(self, has_free_row: Callable[[int], bool]) -> Iterator[Sequence]:
        """Yield the first few sequences of each request that may take another row, in the order of turns."""
        for request, (_, sequences) in self._requests.items():
            if has_free_row(request):
                yield from islice(sequences, MAX_CANDIDATES_PER_REQUEST)

    def take(self, sequence: Sequence) -> None:
        """Remove a sequence and move its request to the end of the queue. Invalidates iterators of `candidates`."""
        request = sequence.job.request
        _, sequences = self._requests.pop(request)
        sequences.remove(sequence)
        self._num_waiting -= 1
        if sequences:
            self._requests[request] = next(self._turns), sequences


class RowLedger:
    """Counts the rows of the batch that each request holds: at most three quarters of all, so that a large request
    does not shut out the others. Engine thread only."""

    def __init__(self, max_rows: int) -> None:
        self.max_rows = max_rows
        self.max_rows_per_request = max(1, max_rows * 3 // 4)
        self.num_taken = 0
        self._by_request: Counter[int] = Counter()

    def has_free_row(self, request: int) -> bool:
        return self.num_taken < self.max_rows and self._by_request[request] < self.max_rows_per_request

    def take(self, request: int) -> None:
        self.num_taken += 1
        self._by_request[request] += 1

    def release(self, request: int) -> None:
        self.num_taken -= 1
        self._by_request[request] -= 1
        if not self._by_request[request]:
            del self._by_request[request]


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

    Admission takes a row of `rows` and blocks of `cache`. The methods that return None have taken neither.
    """

    def __init__(self, cache: KVCache, rows: RowLedger, prefilling: PrefillingBlocks) -> None:
        self._cache = cache
        self._rows = rows
        self._prefilling = prefilling
        self._preempted: deque[Sequence] = deque()
        turns = count()
        self._queues = tuple(WaitingQueue(turns, is_short=is_short) for is_short in (True, False))
        self._out_of_memory = False
        """Whether the request whose turn it is did not fit in memory in this step: then nothing is admitted."""

    def __len__(self) -> int:
        return len(self._preempted) + sum(map(len, self._queues))

    def __iter__(self) -> Iterator[Sequence]:
        """Yield all waiting sequences."""
        yield from self._preempted
        for queue in self._queues:
            yield from queue

    def enqueue(self, sequence: Sequence) -> None:
        """Queue a sequence after the others of its request. Decides whether it is short by what is cached now."""
        length = sequence.prompt_length
        sequence.is_short = length <= SHORT_PROMPT_TOKENS or (
            length - len(self._cache.find(sequence)) * self._cache.block_tokens <= SHORT_PROMPT_TOKENS
        )
        next(queue for queue in self._queues if queue.is_short == sequence.is_short).add(sequence)

    def requeue(self, preempted: Sequence) -> None:
        """Queue a preempted sequence before all others. It must have released its row and blocks."""
        self._preempted.appendleft(preempted)

    def cancel(self, request: int) -> None:
        """Remove a request's waiting sequences."""
        for queue in self._queues:
            queue.cancel(request)
        for sequence in [preempted for preempted in self._preempted if preempted.job.request == request]:
            self._preempted.remove(sequence)

    def cancel_choice(self, job: int, choice: int) -> None:
        """Remove a waiting sequence that has run before; it is preempted."""
        for sequence in [each for each in self._preempted if (each.job.id, each.choice) == (job, choice)]:
            self._preempted.remove(sequence)

    def admit_beside(self, prefilling: list[Sequence]) -> tuple[list[Admitted], list[WaitingQueue]]:
        """Begin a step: admit one sequence, short or long, of each kind of which fewer than MAX_PREFILLING prefill.

        `prefilling` are the running sequences that prefill. Returns the admitted sequences, and the queues from which
        more may be admitted while the step's budget lasts.
        """
        self._out_of_memory = False
        admitted: list[Admitted] = []
        open_queues: list[WaitingQueue] = []
        for queue in sorted(self._queues, key=_turn):
            now_prefilling = [*prefilling, *(each.sequence for each in admitted)]
            if sum(sequence.is_short == queue.is_short for sequence in now_prefilling) < MAX_PREFILLING:
                one = self.admit_next([queue])
                if one is None:
                    continue
                admitted.append(one)
            open_queues.append(queue)
        return admitted, open_queues

    def admit_next(self, queues: list[WaitingQueue]) -> Admitted | None:
        """Admit the next sequence, a preempted one before those of `queues`, if a row and enough blocks are free.

        A sequence that does not fit in memory blocks its queue, and if its queue's turn is the lowest, both queues: so
        it is admitted in the end, and delays other requests only in its own turn.
        """
        if self._out_of_memory or self._rows.num_taken >= self._rows.max_rows:
            return None
        if self._preempted:
            admitted = self._try_admit(self._preempted[0], self._cache.find(self._preempted[0]))
            if admitted is not None:
                self._preempted.popleft()
            return admitted
        for queue in sorted(queues, key=_turn):
            admitted = self._admit_from(queue)
            if admitted is not None or self._out_of_memory:
                return admitted
        return None

    def _admit_from(self, queue: WaitingQueue) -> Admitted | None:
        """Admit the first sequence of a queue that does not wait for a prefix. Sets `_out_of_memory` if it does not fit
        and it is this queue's turn."""
        for sequence in queue.candidates(self._rows.has_free_row):
            if sequence.waits_for in self._prefilling:
                continue
            nodes = self._cache.find(sequence)
            sequence.waits_for = self._prefilling.deepest(sequence, len(nodes))
            if sequence.waits_for is not None:
                continue
            admitted = self._try_admit(sequence, nodes)
            if admitted is not None:
                queue.take(sequence)
            else:
                self._out_of_memory = queue is min(self._queues, key=_turn)
            return admitted
        return None

    def _try_admit(self, sequence: Sequence, nodes: list[Node]) -> Admitted | None:
        """Take a row and blocks for the sequence if enough are free. `nodes` are its cached blocks."""
        if not self._cache.can_admit(sequence, nodes, reserve=self._rows.num_taken):
            return None
        copy = self._cache.admit(sequence, nodes)
        self._rows.take(sequence.job.request)
        self._prefilling.begin(sequence, len(nodes))
        return Admitted(sequence, copy)


_turn = attrgetter("turn")
