"""The block pool: references, idle blocks and what is evicted first."""

from __future__ import annotations

import pytest

from onward.engine.block_pool import BlockPool


def make_pool(count: int = 4) -> tuple[BlockPool, list[int]]:
    evicted: list[int] = []
    return BlockPool(count, evicted.append), evicted


def test_a_block_is_free_again_when_its_last_reference_is_released() -> None:
    pool, _ = make_pool()
    table = pool.allocate(3)
    pool.share(table[:1])
    pool.release(table)
    assert pool.num_available == 3
    pool.release(table[:1])
    assert pool.num_available == 4
    pool.check([], set())


def test_allocating_more_than_is_available_raises_and_takes_nothing() -> None:
    pool, _ = make_pool()
    with pytest.raises(IndexError):
        pool.allocate(5)
    assert pool.num_available == 4


def test_cached_blocks_stay_until_they_are_needed_and_the_end_of_a_prefix_is_evicted_first() -> None:
    pool, evicted = make_pool()
    table = pool.allocate(3)
    for block in table[:2]:
        pool.mark_cached(block)
    pool.release(table)
    assert pool.num_available == 4
    pool.check([], set(table[:2]))
    pool.allocate(3)
    assert evicted == [table[1]], "a block is evicted after those that continue it"


def test_an_idle_block_that_is_shared_again_is_not_evicted() -> None:
    pool, evicted = make_pool(2)
    (block,) = pool.allocate(1)
    pool.mark_cached(block)
    pool.release([block])
    pool.share([block])
    pool.allocate(1)
    assert evicted == []
    assert pool.num_available == 0


def test_the_check_finds_a_lost_block() -> None:
    pool, _ = make_pool()
    pool.allocate(1)
    with pytest.raises(AssertionError):
        pool.check([], set())
