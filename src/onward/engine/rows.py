"""The rows of the batch: how many each client and each request holds, which are taken back for another client, and the
sequences that lost theirs.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator

from onward.engine.cache import KVCache
from onward.engine.job import Job
from onward.engine.sequence import Sequence


class ReturningSequences:
    """Preempted sequences, which have no blocks, and suspended ones, which have theirs. None has a row. The first of
    each returns first. `release_blocks` releases those of a sequence. Engine thread only.
    """

    def __init__(self, release_blocks: Callable[[Sequence], None]) -> None:
        self.preempted: deque[Sequence] = deque()
        self.suspended: deque[Sequence] = deque()
        self._release_blocks = release_blocks

    def __len__(self) -> int:
        return len(self.preempted) + len(self.suspended)

    def __iter__(self) -> Iterator[Sequence]:
        yield from self.preempted
        yield from self.suspended

    def drop_last(self) -> bool:
        """Release the blocks of the suspended sequence that would return last, of background jobs first: it is
        preempted now. Returns whether there was one."""
        if not self.suspended:
            return False
        background = (each for each in reversed(self.suspended) if each.job.is_background)
        sequence = next(background, self.suspended[-1])
        self.suspended.remove(sequence)
        self._release_blocks(sequence)
        self.preempted.append(sequence)
        return True

    def first(self, sequences: deque[Sequence], only_interactive: bool) -> Sequence | None:
        """Return which of the preempted or the suspended ones returns first: those of background jobs last, or not at
        all with `only_interactive`."""
        interactive = (sequence for sequence in sequences if not sequence.job.is_background)
        background = None if only_interactive or not sequences else sequences[0]
        return next(interactive, background)

    def cancel(self, matches: Callable[[Sequence], bool]) -> None:
        """Remove the sequences that match, and release their blocks."""
        for sequences in (self.preempted, self.suspended):
            for sequence in [each for each in sequences if matches(each)]:
                sequences.remove(sequence)
                self._release_blocks(sequence)


class RowLedger:
    """Counts the rows that each client and each request holds. A request holds at most three quarters of all, so that
    it does not shut out others of its client. Engine thread only."""

    def __init__(self, max_rows: int) -> None:
        self.max_rows = max_rows
        self.max_rows_per_request = max(1, max_rows * 3 // 4)
        self.num_taken = 0
        self._by_request: Counter[int] = Counter()
        self._by_client: Counter[int] = Counter()
        self._weights: dict[int, int] = {}
        """Of clients that hold rows, as their last job has it."""

    @property
    def is_full(self) -> bool:
        return self.num_taken >= self.max_rows

    def has_room(self, request: int) -> bool:
        """Whether the request may hold another row."""
        return self._by_request[request] < self.max_rows_per_request

    def held_by(self, client: int) -> float:
        """How many rows the client holds, by its weight: twice the rows of a client of twice the weight are as many."""
        return self.weighted(self._by_client[client], client)

    def weighted(self, num_rows: int, client: int) -> float:
        """A number of rows of a client that holds some, by its weight."""
        return num_rows / self._weights.get(client, 1)

    def held_with(self, job: Job) -> float:
        """How many rows the job's client would hold with one more for the job, by its weight."""
        return (self._by_client[job.client] + 1) / job.weight

    def largest_holder(self) -> int | None:
        """The client that holds most rows, by weight; None if all are free."""
        return max(self._by_client, key=self.held_by, default=None)

    def take(self, job: Job) -> None:
        """Take a row for a choice of the job."""
        self.num_taken += 1
        self._by_request[job.request] += 1
        self._by_client[job.client] += 1
        self._weights[job.client] = job.weight

    def release(self, job: Job) -> None:
        """Release a row that was taken for the job."""
        self.num_taken -= 1
        for counts, key in ((self._by_request, job.request), (self._by_client, job.client)):
            counts[key] -= 1
            if not counts[key]:
                del counts[key]
        if job.client not in self._by_client:
            self._weights.pop(job.client, None)


class Reclaim:
    """Takes rows and memory from background jobs for any other job; else from the client that holds most rows by its
    weight, for one that holds fewer with one more: so a small request does not wait until a large one of another client
    ends. A background job takes nothing from others. Modifies `running`. Engine thread only.

    Decoding sequences lose their rows: the newest first, because the oldest are closest to their end. They are
    suspended: they keep their blocks, so that nothing has to be computed again. If memory is short, or no state is
    left for the job, suspended ones lose their blocks, then others are preempted, as are prompts of background jobs
    where no other row is left to take. `release` removes a sequence from `running` and releases row and blocks.
    """

    def __init__(
        self,
        running: list[Sequence],
        rows: RowLedger,
        cache: KVCache,
        returning: ReturningSequences,
        release: Callable[[Sequence], None],
    ) -> None:
        self._running = running
        self._rows = rows
        self._cache = cache
        self._returning = returning
        self._release = release
        self.num_preemptions = 0
        self.busy: set[int] = set()
        """Ids of the sequences whose prompts this step prefills: they keep their rows."""

    def row_for(self, job: Job) -> bool:
        """Suspend a sequence that gives way to a job. Returns whether a row is free now."""
        victim = self._victim(job)
        if victim is None:
            return False
        if victim.is_prefilling:
            self.preempt(victim)
            return True
        self._running.remove(victim)
        self._rows.release(victim.job)
        self._returning.suspended.appendleft(victim)
        if self._cache.states is not None and not self._cache.states.num_available:
            self.blocks_of_suspended()  # they keep their states, of which the job needs one
        return True

    def blocks_for(self, job: Job) -> bool:
        """Release the blocks of one sequence that gives way to a job. Returns whether there was one."""
        if (self._holder(job) is not None or self._has_background(job)) and self.blocks_of_suspended():
            return True
        victim = self._victim(job)
        if victim is None:
            return False
        self.preempt(victim)
        return True

    def blocks_of_suspended(self) -> bool:
        """Release the blocks of the suspended sequence that would return last. Returns whether there was one."""
        dropped = self._returning.drop_last()
        self.num_preemptions += dropped
        return dropped

    def preempt(self, sequence: Sequence) -> None:
        """Release a running sequence's row and blocks; it returns later and computes its tokens again."""
        self._release(sequence)
        self._returning.preempted.appendleft(sequence)
        self.num_preemptions += 1

    def restart(self, sequences: Iterable[Sequence]) -> None:
        """Have sequences of a step computed again that failed half-way. States may have taken in some of it: then
        their sequences are preempted."""
        for sequence in sequences if self._cache.states is not None else ():
            self.preempt(sequence)

    def newest_of_largest_holder(self) -> Sequence:
        """The running sequence to preempt when memory runs out: one of a background job if there is one."""
        holder = self._rows.largest_holder()
        newest = list(reversed(self._running))
        background = (each for each in newest if each.job.is_background)
        return next(background, None) or next(each for each in newest if each.job.client == holder)

    def may_find_row(self, job: Job) -> bool:
        """Whether there are sequences that give way to a job. `row_for` says whether one of them can now."""
        return self._holder(job) is not None or self._has_background(job)

    def _victim(self, job: Job) -> Sequence | None:
        """The sequence that gives way to a job first: of a background job the newest decoding one, or else a prompt; of
        the client that holds too many rows the newest decoding one."""
        newest = list(reversed(self._running))
        if not job.is_background:
            background = [each for each in newest if each.job.is_background and each.id not in self.busy]
            if background:
                return next((each for each in background if not each.is_prefilling), background[0])
        holder = self._holder(job)
        return next((each for each in newest if each.job.client == holder and not each.is_prefilling), None)

    def _has_background(self, job: Job) -> bool:
        """Whether sequences of background jobs, running or suspended, give way to a job."""
        there = (*self._running, *self._returning.suspended)
        return not job.is_background and any(each.job.is_background for each in there)

    def _holder(self, job: Job) -> int | None:
        """The client that holds so many more rows than that of a job that it gives way to it; to a background job only
        that of another one."""
        if not job.is_background:
            holder = self._rows.largest_holder()
        else:
            held = Counter(each.job.client for each in self._running if each.job.is_background)
            holder = max(held, key=lambda client: self._rows.weighted(held[client], client), default=None)
        if holder is None or self._rows.held_by(holder) <= self._rows.held_with(job):
            return None
        return holder
