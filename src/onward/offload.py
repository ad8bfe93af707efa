"""Keeps long work off the event loop: what is large runs on a thread, and stops when nobody waits for it any more.

Whoever the work is for (`owner`) takes turns with others, and leaves threads free for them.
"""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable
from concurrent.futures import Future
from contextvars import ContextVar
from functools import cache
from typing import Any, Generic, TypeVar

T = TypeVar("T")

MAX_INLINE_SIZE = 16_384
"""Characters or token ids that are processed on the event loop: tokenizing a megabyte takes a second."""
MIN_QUEUED_SIZE = 1_000_000
"""Work of this size waits for its turn on one thread: a few such texts at once would take gigabytes, and every thread
that medium work needs."""
WORK_SECONDS = 0.002
REST_SECONDS = 0.0002
"""After each WORK_SECONDS, work on a thread sleeps this long, so that the event loop need not wait for the interpreter
lock until it is taken away from the thread: 5 ms, each time the loop has released it."""

owner: ContextVar[str] = ContextVar("owner", default="")
"""Who sent the request that this task serves."""

_running = threading.local()


class Abandoned(Exception):
    """Nobody waits for the result of this work any more."""


class _Work(Generic[T]):
    """Work on a thread. `is_abandoned` is set by the event loop and read by the thread."""

    def __init__(self, function: Callable[[], T]) -> None:
        self._function = function
        self.is_abandoned = False
        self.resumed = 0.0

    def __call__(self) -> T:
        _running.work = self
        self.resumed = time.perf_counter()
        try:
            return self._function()
        finally:
            _running.work = None


async def inline_or_on_thread(size: int, work: Callable[[], T]) -> T:
    """Return the result of `work`, which runs on a thread where `size` exceeds MAX_INLINE_SIZE. Raises what it does.

    If the caller is cancelled, work that has not started is dropped, and work that has ends at its next `breathe`.
    """
    if size <= MAX_INLINE_SIZE:
        return work()
    return await _on(_large() if size >= MIN_QUEUED_SIZE else _medium(), work)


async def on_thread(work: Callable[[], T]) -> T:
    """As `inline_or_on_thread`, for work that takes long but not very long."""
    return await _on(_medium(), work)


async def _on(pool: FairPool, work: Callable[[], T]) -> T:
    threaded = _Work(work)
    try:
        return await asyncio.wrap_future(pool.submit(owner.get(), threaded))
    finally:
        threaded.is_abandoned = True


def breathe() -> None:
    """Call it between the steps of long work: lets other threads run. Raises Abandoned if nobody waits for the work.

    Has no effect where the work is not on a thread of `inline_or_on_thread`.
    """
    work: _Work[object] | None = getattr(_running, "work", None)
    if work is None:
        return
    if work.is_abandoned:
        raise Abandoned
    if time.perf_counter() - work.resumed > WORK_SECONDS:
        time.sleep(REST_SECONDS)
        work.resumed = time.perf_counter()


class FairPool:
    """Threads for the work of many owners, who take turns; each has at most `max_per_owner` of them. Any thread.

    Threads start when they are needed, and end with the process.
    """

    def __init__(self, name: str, max_threads: int, max_per_owner: int) -> None:
        self._name = name
        self._max_threads = max_threads
        self._max_per_owner = max_per_owner
        self._changed = threading.Condition()
        """Guards what follows; held for microseconds."""
        self._queues: OrderedDict[str, deque[tuple[Future[Any], Callable[[], Any]]]] = OrderedDict()
        self._num_running: dict[str, int] = {}
        self._num_threads = 0

    def submit(self, owner: str, work: Callable[[], T]) -> Future[T]:
        """Return the future result of `work`; cancelled before it begins, it is not done."""
        future: Future[T] = Future()
        with self._changed:
            self._queues.setdefault(owner, deque()).append((future, work))
            if self._num_threads < min(self._max_threads, self._num_startable()):
                self._start_thread(owner)
            self._changed.notify()
        return future

    def _num_startable(self) -> int:
        """Return how much work may run at the same time."""
        owners = self._queues.keys() | self._num_running.keys()
        counts = (len(self._queues.get(owner, ())) + self._num_running.get(owner, 0) for owner in owners)
        return sum(min(count, self._max_per_owner) for count in counts)

    def _start_thread(self, owner: str) -> None:
        """Start one more, if the system has it. Without any, drop the owner's last work and raise RuntimeError."""
        try:
            threading.Thread(target=self._run, name=self._name, daemon=True).start()
            self._num_threads += 1
        except RuntimeError:
            if not self._num_threads:
                self._queues[owner].pop()
                raise

    def _run(self) -> None:
        while True:
            owner, future, work = self._next()
            try:
                if future.set_running_or_notify_cancel():
                    self._do(future, work)
            finally:
                with self._changed:
                    self._num_running[owner] -= 1
                    if not self._num_running[owner]:
                        del self._num_running[owner]
                    self._changed.notify()

    @staticmethod
    def _do(future: Future[Any], work: Callable[[], Any]) -> None:
        try:
            result = work()
        except BaseException as error:  # a panic in a Rust library is not an Exception
            future.set_exception(error)
        else:
            future.set_result(result)

    def _next(self) -> tuple[str, Future[Any], Callable[[], Any]]:
        with self._changed:
            while True:
                for owner, queue in self._queues.items():
                    if queue and self._num_running.get(owner, 0) < self._max_per_owner:
                        future, work = queue.popleft()
                        self._queues.move_to_end(owner)
                        if not queue:
                            del self._queues[owner]
                        self._num_running[owner] = self._num_running.get(owner, 0) + 1
                        return owner, future, work
                self._changed.wait()


@cache
def _medium() -> FairPool:
    num_threads = min(32, (os.cpu_count() or 1) + 4)
    return FairPool("onward-work", num_threads, num_threads // 2)


@cache
def _large() -> FairPool:
    return FairPool("onward-large", 1, 1)
