import pytest

from onward.engine.blocks import BlockPool


def make_pool(count: int = 4) -> tuple[BlockPool, list[int]]:
    forgotten: list[int] = []
    return BlockPool(count, forgotten.append), forgotten


def test_blocks_come_back_when_the_last_holder_leaves() -> None:
    pool, _ = make_pool()
    table = pool.allocate(3)
    pool.share(table[:1])
    pool.release(table)
    assert pool.available == 3
    pool.release(table[:1])
    assert pool.available == 4
    pool.check([], set())


def test_more_than_there_is_cannot_be_taken_and_nothing_is_taken() -> None:
    pool, _ = make_pool()
    with pytest.raises(IndexError):
        pool.allocate(5)
    assert pool.available == 4


def test_known_blocks_stay_until_they_are_needed_and_the_far_end_goes_first() -> None:
    pool, forgotten = make_pool()
    table = pool.allocate(3)
    for block in table[:2]:
        pool.remember(block)
    pool.release(table)
    assert pool.available == 4
    pool.check([], set(table[:2]))
    pool.allocate(3)
    assert forgotten == [table[1]], "of a chain, what continues it is given up first"


def test_an_idle_block_that_is_shared_again_is_not_given_up() -> None:
    pool, forgotten = make_pool(2)
    (block,) = pool.allocate(1)
    pool.remember(block)
    pool.release([block])
    pool.share([block])
    pool.allocate(1)
    assert forgotten == []
    assert pool.available == 0


def test_the_check_finds_a_lost_block() -> None:
    pool, _ = make_pool()
    pool.allocate(1)
    with pytest.raises(AssertionError):
        pool.check([], set())
