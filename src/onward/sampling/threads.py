"""Threads that draw a part of a large step, on other processors than the engine's thread, which draws another part.

A runtime's own threads stay awake for a while when a step is done. Linux takes their processors for busy then and
starts a helper where the engine's thread runs: the parts are drawn one after the other. So the caller's processor is
taken from the helpers before they get work; on other systems, and where there is no other processor, nothing is done.
"""

from __future__ import annotations

import ctypes
import os
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import TypeVar

T = TypeVar("T")


class SamplerThreads:
    """Threads that begin with the first work for them. All methods are for one thread, which works along.

    The threads end when this is closed, or when nobody has it any more.
    """

    def __init__(self, count: int) -> None:
        """At most `count` threads, and at least one: a pool cannot have none."""
        self._place = _CpuAffinity()  # what a thread refers to; a reference to the pool would keep it for ever
        self._pool = ThreadPoolExecutor(max(1, count), "onward-sampling", initializer=self._place.add_caller)

    def run(self, work: Sequence[Callable[[], T]]) -> list[T]:
        """All of `work`, the first on the caller's thread and the rest beside it; results in order.

        One after another when closed or when the interpreter ends: no thread takes work any more.
        """
        if len(work) > 1:
            self._place.avoid(_here())
        try:
            others = [self._pool.submit(each) for each in work[1:]]
        except RuntimeError:
            return [each() for each in work]
        return [work[0](), *(other.result() for other in others)]

    def close(self) -> None:
        """End the threads. May be called more than once."""
        self._pool.shutdown()


class _CpuAffinity:
    """Where the helpers may run."""

    def __init__(self) -> None:
        self._threads: list[int] = []
        self._processors = _allowed()
        self._avoided: int | None = None

    def add_caller(self) -> None:
        """On a new helper: it inherits where the engine's thread may run, and is moved before its next work."""
        self._threads.append(threading.get_native_id())
        self._avoided = None

    def avoid(self, processor: int | None) -> None:
        """Let no helper run on `processor`, as long as that leaves one."""
        if processor is None or processor == self._avoided:
            return
        others = self._processors - {processor}
        if not others:
            return
        self._avoided = processor
        for thread in list(self._threads):
            with suppress(OSError):  # the thread has ended, or whoever runs the process now allows none of these
                os.sched_setaffinity(thread, others)


def _allowed() -> set[int]:
    """Processors that the calling thread may run on; empty where the system does not tell."""
    return os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set()


def _processor_of_caller() -> Callable[[], int] | None:
    """The C library's sched_getcpu, called without giving up the interpreter; None where there is none."""
    try:
        found: Callable[[], int] = ctypes.PyDLL(None).sched_getcpu
    except (AttributeError, OSError, TypeError):
        return None
    return found


_sched_getcpu = _processor_of_caller()


def _here() -> int | None:
    processor = _sched_getcpu() if _sched_getcpu else -1
    return processor if processor >= 0 else None
