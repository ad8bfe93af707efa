"""Long work runs on a thread, and ends when nobody waits for it any more."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable

import pytest

from onward.fair_pool import FairPool
from onward.offload import (
    MAX_INLINE_SIZE,
    MIN_QUEUED_SIZE,
    Abandoned,
    Threads,
    breathe,
    inline_or_on_thread,
    on_thread,
    owner,
)
from tests.waiting import PATIENCE_SECONDS, until


def endless(started: threading.Event, ended: threading.Event) -> Callable[[], None]:
    """Work that ends only because `breathe` raises."""

    def work() -> None:
        started.set()
        try:
            while True:
                breathe()
        except Abandoned:
            ended.set()
            raise

    return work


@pytest.mark.parametrize("size", [MAX_INLINE_SIZE + 1, MIN_QUEUED_SIZE])
def test_work_ends_when_its_caller_is_cancelled(size: int) -> None:
    started, ended = threading.Event(), threading.Event()

    async def run() -> None:
        task = asyncio.create_task(inline_or_on_thread(size, endless(started, ended)))
        await until(started.is_set)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await until(ended.is_set)

    asyncio.run(run())


def test_large_work_is_done_one_at_a_time_and_dropped_if_it_has_not_begun() -> None:
    started, ended, second_started = threading.Event(), threading.Event(), threading.Event()

    async def run() -> None:
        first = asyncio.create_task(inline_or_on_thread(MIN_QUEUED_SIZE, endless(started, ended)))
        await until(started.is_set)
        second = asyncio.create_task(inline_or_on_thread(MIN_QUEUED_SIZE, second_started.set))
        assert await inline_or_on_thread(MIN_QUEUED_SIZE - 1, lambda: "medium") == "medium"
        second.cancel()
        await asyncio.wait([second])
        first.cancel()
        await asyncio.wait([first])
        assert await inline_or_on_thread(MIN_QUEUED_SIZE, lambda: "third") == "third"

    asyncio.run(run())
    assert ended.is_set()
    assert not second_started.is_set()


def test_small_work_runs_on_the_event_loop_and_errors_are_raised_from_threads() -> None:
    async def run() -> None:
        assert await inline_or_on_thread(MAX_INLINE_SIZE, threading.current_thread) is threading.main_thread()
        assert await inline_or_on_thread(MAX_INLINE_SIZE + 1, threading.current_thread) is not threading.main_thread()
        with pytest.raises(ZeroDivisionError):
            await inline_or_on_thread(MAX_INLINE_SIZE + 1, lambda: 1 / 0)

    asyncio.run(run())


def test_breathe_has_no_effect_elsewhere() -> None:
    breathe()


@pytest.mark.parametrize("size", [MAX_INLINE_SIZE + 1, MIN_QUEUED_SIZE])
def test_work_of_one_owner_does_not_hold_that_of_another(size: int) -> None:
    release, done = threading.Event(), threading.Event()
    order: list[str] = []

    def modest_work() -> None:
        order.append("modest")
        done.set()

    async def one(name: str, work: Callable[[], object]) -> None:
        owner.set(name)
        await inline_or_on_thread(size, work)

    async def run() -> None:
        held = [asyncio.create_task(one("greedy", lambda: release.wait(PATIENCE_SECONDS))) for _ in range(64)]
        await asyncio.sleep(0)
        later = [asyncio.create_task(one("greedy", lambda: order.append("greedy"))) for _ in range(8)]
        modest = asyncio.create_task(one("modest", modest_work))
        await asyncio.sleep(0)  # all are submitted
        if size < MIN_QUEUED_SIZE:
            await until(done.is_set)  # while the other's are held
        release.set()
        await asyncio.gather(*held, *later, modest)

    asyncio.run(run())
    assert order[0] == "modest"


def test_work_of_one_kind_does_not_hold_another_though_all_clients_have_much_of_it() -> None:
    release, done = threading.Event(), threading.Event()

    async def hold(name: str, threads: Threads) -> None:
        owner.set(name)
        await on_thread(lambda: release.wait(PATIENCE_SECONDS), threads)

    async def run() -> None:
        held = [asyncio.create_task(hold(str(number % 32), "onward-reads")) for number in range(128)]
        held += [asyncio.create_task(hold("", "onward-batches"))]
        await asyncio.sleep(0)
        await on_thread(done.set)
        assert not any(task.done() for task in held)
        release.set()
        await asyncio.gather(*held)

    asyncio.run(run())
    assert done.is_set()


def test_cancelled_work_is_not_begun_and_errors_are_of_their_work() -> None:
    pool, started, release = FairPool("test", 1, 1), threading.Event(), threading.Event()

    def first_work() -> bool:
        started.set()
        return release.wait(PATIENCE_SECONDS)

    first = pool.submit("a", first_work)
    assert started.wait(PATIENCE_SECONDS)
    cancelled, failed = pool.submit("a", started.clear), pool.submit("b", lambda: 1 / 0)
    assert cancelled.cancel()
    release.set()
    assert isinstance(failed.exception(PATIENCE_SECONDS), ZeroDivisionError)
    assert first.result(PATIENCE_SECONDS) and started.is_set()
