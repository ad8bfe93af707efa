"""Long work runs on a thread, and ends when nobody waits for it any more."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable

import pytest

from onward.offload import MAX_INLINE_SIZE, MIN_QUEUED_SIZE, Abandoned, breathe, inline_or_on_thread

PATIENCE_SECONDS = 10


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


async def wait_for(event: threading.Event) -> None:
    assert await asyncio.to_thread(event.wait, PATIENCE_SECONDS)


@pytest.mark.parametrize("size", [MAX_INLINE_SIZE + 1, MIN_QUEUED_SIZE])
def test_work_ends_when_its_caller_is_cancelled(size: int) -> None:
    started, ended = threading.Event(), threading.Event()

    async def run() -> None:
        task = asyncio.create_task(inline_or_on_thread(size, endless(started, ended)))
        await wait_for(started)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await wait_for(ended)

    asyncio.run(run())


def test_large_work_is_done_one_at_a_time_and_dropped_if_it_has_not_begun() -> None:
    started, ended, second_started = threading.Event(), threading.Event(), threading.Event()

    async def run() -> None:
        first = asyncio.create_task(inline_or_on_thread(MIN_QUEUED_SIZE, endless(started, ended)))
        await wait_for(started)
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
