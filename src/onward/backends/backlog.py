"""What waits for an engine: counted and bounded by client, so that no client can keep others out."""

from __future__ import annotations

import math
import threading
import time
from collections import Counter, deque
from collections.abc import Callable
from collections.abc import Sequence as ReadOnly

from onward.engine.job import Job
from onward.errors import Overloaded

JOB_BYTES = 2_000
TOKEN_BYTES = 64
"""What a waiting job and each of its token ids hold in memory, roughly: ids, their bytes, the text, its journal."""
MAX_RETRY_SECONDS = 600
UNKNOWN_RETRY_SECONDS = 1
"""Assumed until two choices have started one after the other."""
MAX_INTERVALS = 64


class Backlog:
    """The waiting jobs of one engine. Thread-safe.

    A choice waits from `enter` until its first event. A client whose waiting choices exceed the free rows by
    `max_waiting` is refused; what it sent before keeps waiting, and counts against nobody else. All waiting choices
    hold at most `max_waiting_bytes`, and those of one client no more than is left for the others. `clock` returns
    seconds.
    """

    def __init__(
        self,
        max_waiting: int = 1024,
        max_waiting_bytes: int = 256_000_000,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._max_waiting = max_waiting
        self._max_bytes = max_waiting_bytes
        self._clock = clock
        self._lock = threading.RLock()  # the garbage collector may end a ticket at any moment (`Answer.abandon`)
        self._choices: Counter[str] = Counter()
        self._bytes: Counter[str] = Counter()
        self._intervals: deque[float] = deque(maxlen=MAX_INTERVALS)
        """Seconds between the last starts of choices while others waited: idle time does not count."""
        self._last_start: float | None = None
        """When a choice was started, if others have waited ever since."""

    @property
    def num_waiting(self) -> int:
        """Choices that wait, of all clients."""
        return self._choices.total()

    @property
    def num_bytes(self) -> int:
        """What all waiting jobs hold, in bytes."""
        return self._bytes.total()

    def check(self, client: str, num_free_rows: int) -> None:
        """Raise Overloaded if nothing more of the client may wait. Called before any work is done for a request."""
        if self._choices[client] - num_free_rows >= self._max_waiting:
            raise Overloaded(retry_after=self.retry_after(client))

    def enter(self, client: str, jobs: ReadOnly[Job], num_free_rows: int) -> BacklogTicket:
        """Add the jobs of one request. Raises Overloaded."""
        waiting = {job.id: set(range(job.num_choices)) for job in jobs}
        added = sum(map(_num_bytes, jobs))
        with self._lock:
            held, total = self._bytes[client], self._bytes.total()
            self.check(client, num_free_rows)
            if total and held + added > self._max_bytes - total:
                raise Overloaded(retry_after=self.retry_after(client))
            self._choices[client] += sum(map(len, waiting.values()))
            self._bytes[client] += added
        return BacklogTicket(self, client, waiting, added)

    def retry_after(self, client: str) -> int:
        """Return an estimate of the seconds until all waiting choices of the client have started, from the rate of
        recent starts and the number of clients that share it; at least 1."""
        with self._lock:
            if not self._intervals:
                return UNKNOWN_RETRY_SECONDS
            mean = sum(self._intervals) / len(self._intervals)
            seconds = self._choices[client] * len(self._choices) * mean
        return max(1, min(MAX_RETRY_SECONDS, math.ceil(seconds)))

    def remove(self, client: str, num_choices: int, num_bytes: int, *, started: bool) -> None:
        """Remove choices that have started or ended, and the memory that is no longer held for them."""
        with self._lock:
            for counts, number in ((self._choices, num_choices), (self._bytes, num_bytes)):
                counts[client] -= number
                if counts[client] <= 0:
                    del counts[client]
            if started:
                now = self._clock()
                if self._last_start is not None:
                    self._intervals.append(now - self._last_start)
                self._last_start = now
            if not self._choices:
                self._last_start = None


class BacklogTicket:
    """The waiting choices of one request. What its jobs hold counts until the first choice of the last job starts."""

    def __init__(self, backlog: Backlog, client: str, waiting: dict[int, set[int]], num_bytes: int) -> None:
        self._backlog = backlog
        self._client = client
        self._waiting = waiting
        """The choices of each job that have not started."""
        self._num_bytes = num_bytes
        self._jobs_to_start = set(waiting)
        self._num_jobs = len(waiting)

    @property
    def waiting(self) -> bool:
        """Whether a choice waits."""
        return bool(self._waiting)

    @property
    def has_started(self) -> bool:
        """Whether a job has started, or the request has ended."""
        return len(self._jobs_to_start) < self._num_jobs

    @property
    def retry_after(self) -> int:
        """See `Backlog.retry_after`."""
        return self._backlog.retry_after(self._client)

    def start(self, job: int, choice: int = 0) -> None:
        """The engine has begun with a choice: the first one of a job when its prompt is prefilled, the others with
        their first token. Ignored for one that does not wait."""
        choices = self._waiting.get(job)
        if choices is None or choice not in choices:
            return
        choices.remove(choice)
        if not choices:
            del self._waiting[job]
        self._jobs_to_start.discard(job)
        freed = 0 if self._jobs_to_start else self._num_bytes
        self._num_bytes -= freed
        self._backlog.remove(self._client, 1, freed, started=True)

    def leave(self) -> None:
        """The request has ended."""
        left = sum(map(len, self._waiting.values()))
        freed, self._num_bytes = self._num_bytes, 0
        self._waiting.clear()
        self._jobs_to_start.clear()
        if left or freed:
            self._backlog.remove(self._client, left, freed, started=False)


def _num_bytes(job: Job) -> int:
    return JOB_BYTES + TOKEN_BYTES * (len(job.prompt) + len(job.prediction) + 2 * len(job.sampling.logit_bias))
