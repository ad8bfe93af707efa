"""Sampler threads: each samples a part of a large step, in parallel with the engine's thread and on another CPU.

The threads of a runtime keep spinning for a while after a step. Linux then considers their CPUs busy and starts a
sampler thread on the CPU of the engine's thread, so that the parts run one after the other. To prevent this, the
caller's CPU is removed from the affinity of the sampler threads before they get work. On other systems, and where
only one CPU is allowed, affinity stays as it is.
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
    """Threads that work in parallel with the caller, started on first use. All methods must be called from one thread.

    The threads end when this object is closed or garbage-collected.
    """

    def __init__(self, max_threads: int) -> None:
        """Create a pool of at most `max_threads` threads; of one where that is 0, because no pool can have none."""
        self._affinity = _CpuAffinity()  # the threads refer to this; a reference to the pool would keep it alive
        self._pool = ThreadPoolExecutor(
            max(1, max_threads), "onward-sampling", initializer=self._affinity.add_current_thread
        )

    def run(self, calls: Sequence[Callable[[], T]]) -> list[T]:
        """Run `calls`, the first on the caller's thread and the others on these; return their results in order.

        Runs them one after the other on the caller's thread when the pool is closed, when the interpreter is exiting,
        and from the moment when the system refuses to start a thread. Raises what a call raises.
        """
        if len(calls) > 1:
            self._affinity.exclude(_current_cpu())
        try:
            others = [self._pool.submit(call) for call in calls[1:]]
        except RuntimeError:
            self.close()  # a call that a thread has already taken must not run twice at the same time
            return [call() for call in calls]
        return [calls[0](), *(other.result() for other in others)]

    def close(self) -> None:
        """End the threads. May be called more than once."""
        self._pool.shutdown()


class _CpuAffinity:
    """On which CPUs the sampler threads may run."""

    def __init__(self) -> None:
        self._thread_ids: list[int] = []
        self._allowed = _allowed_cpus()
        self._excluded: int | None = None

    def add_current_thread(self) -> None:
        """Register a new sampler thread, on that thread. It inherits the affinity of the engine's thread until the
        next `exclude`."""
        self._thread_ids.append(threading.get_native_id())
        self._excluded = None

    def exclude(self, cpu: int | None) -> None:
        """Keep all sampler threads off `cpu`, if that leaves at least one CPU. None: leave them where they are."""
        if cpu is None or cpu == self._excluded:
            return
        others = self._allowed - {cpu}
        if not others:
            return
        self._excluded = cpu
        for thread_id in list(self._thread_ids):
            with suppress(OSError):  # the thread has ended, or the CPUs allowed to the process have changed
                os.sched_setaffinity(thread_id, others)


def _allowed_cpus() -> set[int]:
    """Return the CPUs that the calling thread may run on; empty on systems that do not report them."""
    return os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set()


def _find_sched_getcpu() -> Callable[[], int] | None:
    """Return the C library's sched_getcpu, called without releasing the GIL; None where it does not exist."""
    try:
        found: Callable[[], int] = ctypes.PyDLL(None).sched_getcpu
    except (AttributeError, OSError, TypeError):
        return None
    return found


_sched_getcpu = _find_sched_getcpu()


def _current_cpu() -> int | None:
    """Return the CPU that the calling thread runs on; None on systems that do not report it."""
    cpu = _sched_getcpu() if _sched_getcpu else -1
    return cpu if cpu >= 0 else None
