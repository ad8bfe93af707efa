"""Threads that draw parts of a large step: beside the caller, never on its processor."""

from __future__ import annotations

import gc
import os
import threading

import pytest

from onward.sampling import threads
from onward.sampling.threads import SamplerThreads

linux = pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="no such system call here")


def test_results_come_in_order_and_the_first_is_the_callers_own() -> None:
    pool = SamplerThreads(3)
    idents = pool.run([threading.get_ident] * 4)
    assert idents[0] == threading.get_ident()
    assert threading.get_ident() not in idents[1:]
    assert pool.run([lambda i=i: i for i in range(9)]) == list(range(9))  # type: ignore[misc]


@linux
def test_a_helper_runs_on_every_processor_but_the_callers(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[int, set[int]]] = []
    monkeypatch.setattr(os, "sched_setaffinity", lambda thread, processors: asked.append((thread, set(processors))))
    monkeypatch.setattr(threads, "_allowed", lambda: {3, 5, 8})
    pool, here = SamplerThreads(1), [5]
    monkeypatch.setattr(threads, "_here", lambda: here[0])
    _, thread = pool.run([threading.get_native_id] * 2)
    assert asked == [], "nobody to move yet"
    for processor, expected in ((5, [{3, 8}]), (5, []), (8, [{3, 5}])):
        here[0] = processor
        asked.clear()
        pool.run([threading.get_native_id] * 2)
        assert asked == [(thread, each) for each in expected]
    asked.clear()
    here[0] = 3
    pool.run([threading.get_native_id])
    assert asked == [], "no work for a helper"


@linux
def test_the_system_takes_what_is_asked_of_it() -> None:
    if len(os.sched_getaffinity(0)) < 2 or threads._here() is None:
        pytest.skip("one processor, or a system that does not tell which")
    pool = SamplerThreads(1)
    for _ in range(2):
        _, allowed = pool.run([lambda: set(), lambda: os.sched_getaffinity(0)])
    assert len(allowed) == len(os.sched_getaffinity(0)) - 1


@linux
@pytest.mark.parametrize("here", [None, 7])
def test_where_there_is_no_other_processor_or_none_is_told_nothing_is_moved(
    monkeypatch: pytest.MonkeyPatch, here: int | None
) -> None:
    monkeypatch.setattr(os, "sched_setaffinity", lambda *_: pytest.fail("moved"))
    monkeypatch.setattr(threads, "_allowed", lambda: {7})
    monkeypatch.setattr(threads, "_here", lambda: here)
    pool = SamplerThreads(1)
    for _ in range(2):
        assert pool.run([lambda: 1, lambda: 2]) == [1, 2]


@linux
def test_a_system_that_refuses_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(22, "Invalid argument")

    monkeypatch.setattr(os, "sched_setaffinity", refuse)
    pool = SamplerThreads(1)
    for _ in range(2):
        assert pool.run([lambda: 1, lambda: 2]) == [1, 2]


def test_threads_of_helpers_that_nobody_has_any_more_end() -> None:
    pool = SamplerThreads(2)
    pool.run([threading.get_ident] * 3)
    alive = set(pool._pool._threads)
    del pool
    gc.collect()
    for thread in alive:
        thread.join(10)
        assert not thread.is_alive()


def test_closed_helpers_leave_all_work_to_the_caller() -> None:
    pool = SamplerThreads(2)
    pool.run([threading.get_ident] * 3)
    pool.close()
    pool.close()
    assert pool.run([threading.get_ident] * 3) == [threading.get_ident()] * 3
