"""Full garbage collections come between requests; a completion leaves no cyclic garbage for them."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Iterator

import pytest

from onward.server import process
from onward.server.process import MAX_YOUNG_COLLECTIONS, MIN_YOUNG_COLLECTIONS, collect_when_idle
from tests.toy_backend import complete, make_backend


@pytest.fixture(autouse=True)
def thresholds() -> Iterator[None]:
    before = gc.get_threshold()
    yield
    gc.set_threshold(*before)


def test_only_full_collections_are_delayed() -> None:
    youngest, middle, _ = gc.get_threshold()
    process.delay_full_collections()
    assert gc.get_threshold() == (youngest, middle, MAX_YOUNG_COLLECTIONS)


@pytest.mark.parametrize(
    ("num_running", "num_young", "expected"),
    [(0, MIN_YOUNG_COLLECTIONS, 1), (1, MIN_YOUNG_COLLECTIONS, 0), (0, MIN_YOUNG_COLLECTIONS - 1, 0)],
)
def test_it_collects_when_that_is_due_and_no_request_runs(
    num_running: int, num_young: int, expected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    collected: list[int] = []
    polls = 0

    async def sleep(seconds: float) -> None:
        nonlocal polls
        polls += 1
        if polls == 2:
            raise asyncio.CancelledError

    monkeypatch.setattr("asyncio.sleep", sleep)
    monkeypatch.setattr("gc.get_count", lambda: (0, 0, num_young))
    monkeypatch.setattr("gc.collect", lambda: collected.append(1))
    with pytest.raises(asyncio.CancelledError):
        asyncio.run(collect_when_idle(lambda: num_running))
    assert sum(collected) == expected


def test_a_completion_leaves_no_cycles() -> None:
    """Else they would pile up on a server that is never idle."""

    async def run() -> int:
        backend = make_backend()
        for fields in ({}, {"n": 2, "logprobs": 3}, {"stop": ["q"], "best_of": 2}):
            await complete(backend, max_tokens=5, **fields)
        gc.collect()
        gc.disable()
        try:
            for _ in range(20):
                for fields in ({}, {"n": 2, "logprobs": 3}, {"stop": ["q"], "best_of": 2}):
                    await complete(backend, max_tokens=5, **fields)
            return gc.collect()
        finally:
            gc.enable()
            await backend.aclose()

    assert asyncio.run(run()) < 60, "fewer than one object per completion"
