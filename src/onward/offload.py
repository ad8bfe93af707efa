"""Keeps long work off the event loop: what is large runs on a thread, and stops when nobody waits for it any more.

Owners of the work (`owner`) take turns, and each leaves threads free for the others. What waits for a disk or a
database, and the lines of batch files, have threads of their own: they never hold what requests wait for.
"""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Callable
from contextvars import ContextVar
from functools import cache
from typing import Generic, Literal, TypeVar

from onward.fair_pool import FairPool

T = TypeVar("T")
Threads = Literal["onward-work", "onward-large", "onward-reads", "onward-batches"]
"""Which threads do some work: those of one name never wait for those of another."""

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
"""Who sent the request that this task, or the work on this thread, serves."""

_running = threading.local()


class Abandoned(Exception):
    """Nobody waits for the result of this work any more."""


def _contained(work: Callable[[], T]) -> T:
    """Return the result of `work`. What is not an Exception, such as a panic in a Rust library, is raised as a
    RuntimeError: only the request may fail, not what waits for errors that end a process."""
    try:
        return work()
    except (Exception, KeyboardInterrupt):
        raise
    except BaseException as error:
        raise RuntimeError(f"a library failed: {type(error).__name__}") from error


class _Work(Generic[T]):
    """Work on a thread. `is_abandoned` is set by the event loop and read by the thread."""

    def __init__(self, function: Callable[[], T]) -> None:
        self._function = function
        self._owner = owner.get()
        self.is_abandoned = False
        self.resumed = 0.0

    def __call__(self) -> T:
        _running.work = self
        owner.set(self._owner)
        self.resumed = time.perf_counter()
        try:
            return _contained(self._function)
        finally:
            _running.work = None


async def inline_or_on_thread(size: int, work: Callable[[], T]) -> T:
    """Return the result of `work`, which runs on a thread where `size` exceeds MAX_INLINE_SIZE. Raises what it does; a
    panic in a library as a RuntimeError.

    If the caller is cancelled, work that has not started is dropped, and work that has ends at its next `breathe`.
    """
    if size <= MAX_INLINE_SIZE:
        return _contained(work)
    return await on_thread(work, "onward-large" if size >= MIN_QUEUED_SIZE else "onward-work")


async def on_thread(work: Callable[[], T], threads: Threads = "onward-work") -> T:
    """As `inline_or_on_thread`, always on a thread."""
    threaded = _Work(work)
    try:
        return await asyncio.wrap_future(_pool(threads).submit(owner.get(), threaded))
    finally:
        threaded.is_abandoned = True


def breathe() -> None:
    """Let other threads run; call it between the steps of long work. Raises Abandoned if nobody waits for the work.

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


@cache
def _pool(threads: Threads) -> FairPool:
    num_threads = min(32, (os.cpu_count() or 1) + 4)
    sizes = {"onward-work": num_threads, "onward-large": 1, "onward-reads": 4, "onward-batches": 1}
    return FairPool(threads, sizes[threads], max(1, sizes[threads] // 2))
