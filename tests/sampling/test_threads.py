"""Threads that sample parts of a large step, in parallel with the caller and never on its CPU."""

from __future__ import annotations

import gc
import os
import threading
import time

import pytest

from onward.sampling import threads
from onward.sampling.threads import SamplerThreads

linux = pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="no such system call here")


def test_results_are_in_order_and_the_first_call_runs_on_the_callers_thread() -> None:
    pool = SamplerThreads(3)
    idents = pool.run([threading.get_ident] * 4)
    assert idents[0] == threading.get_ident()
    assert threading.get_ident() not in idents[1:]
    assert pool.run([lambda i=i: i for i in range(9)]) == list(range(9))  # type: ignore[misc]


@linux
def test_sampler_threads_may_run_on_every_cpu_except_the_callers(monkeypatch: pytest.MonkeyPatch) -> None:
    changes: list[tuple[int, set[int]]] = []
    monkeypatch.setattr(os, "sched_setaffinity", lambda thread, cpus: changes.append((thread, set(cpus))))
    monkeypatch.setattr(threads, "_allowed_cpus", lambda: {3, 5, 8})
    pool, here = SamplerThreads(1), [5]
    monkeypatch.setattr(threads, "_current_cpu", lambda: here[0])
    _, thread = pool.run([threading.get_native_id] * 2)
    assert changes == [], "no thread to move yet"
    for cpu, expected in ((5, [{3, 8}]), (5, []), (8, [{3, 5}])):
        here[0] = cpu
        changes.clear()
        pool.run([threading.get_native_id] * 2)
        assert changes == [(thread, each) for each in expected]
    changes.clear()
    here[0] = 3
    pool.run([threading.get_native_id])
    assert changes == [], "no work for another thread"


@linux
def test_the_system_applies_the_affinity() -> None:
    if len(os.sched_getaffinity(0)) < 2 or threads._current_cpu() is None:
        pytest.skip("one CPU, or a system that does not report the current one")
    pool = SamplerThreads(1)
    for _ in range(2):
        _, allowed = pool.run([lambda: set(), lambda: os.sched_getaffinity(0)])
    assert len(allowed) == len(os.sched_getaffinity(0)) - 1


@linux
@pytest.mark.parametrize("here", [None, 7])
def test_affinity_is_unchanged_with_one_cpu_or_an_unknown_cpu(
    monkeypatch: pytest.MonkeyPatch, here: int | None
) -> None:
    monkeypatch.setattr(os, "sched_setaffinity", lambda *_: pytest.fail("affinity was changed"))
    monkeypatch.setattr(threads, "_allowed_cpus", lambda: {7})
    monkeypatch.setattr(threads, "_current_cpu", lambda: here)
    pool = SamplerThreads(1)
    for _ in range(2):
        assert pool.run([lambda: 1, lambda: 2]) == [1, 2]


@linux
def test_a_system_that_refuses_an_affinity_is_not_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(22, "Invalid argument")

    monkeypatch.setattr(os, "sched_setaffinity", refuse)
    pool = SamplerThreads(1)
    for _ in range(2):
        assert pool.run([lambda: 1, lambda: 2]) == [1, 2]


def test_threads_end_when_their_pool_is_garbage_collected() -> None:
    pool = SamplerThreads(2)
    pool.run([threading.get_ident] * 3)
    alive = set(pool._pool._threads)
    del pool
    gc.collect()
    for thread in alive:
        thread.join(60)
        assert not thread.is_alive()


def test_a_closed_pool_runs_everything_on_the_callers_thread() -> None:
    pool = SamplerThreads(2)
    pool.run([threading.get_ident] * 3)
    pool.close()
    pool.close()
    assert pool.run([threading.get_ident] * 3) == [threading.get_ident()] * 3


def test_when_no_thread_can_be_started_no_call_runs_twice_at_the_same_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """The executor queues a call before it starts a thread for it, and another of its threads may take that call."""
    pool, started = SamplerThreads(2), threading.Event()
    start = threading.Thread.start
    running, overlaps = [0], []

    def start_one_only(thread: threading.Thread) -> None:
        if started.is_set():
            raise RuntimeError("can't start new thread")
        started.set()
        start(thread)

    def call() -> int:
        overlaps.append(running[0])
        running[0] += 1
        time.sleep(0.02)
        running[0] -= 1
        return 7

    monkeypatch.setattr(threading.Thread, "start", start_one_only)
    assert pool.run([lambda: 1, call, call]) == [1, 7, 7]
    monkeypatch.undo()
    assert len(overlaps) >= 2 and not any(overlaps)
