"""The prefix tree: matches, tails, and what is forgotten when a block is evicted."""

from itertools import takewhile

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onward.engine.prefix_tree import PrefixTree
from onward.runtimes.toy.model import STEP_SHAPE

BLOCK_TOKENS = STEP_SHAPE.block_tokens


def prompt(*letters: str) -> list[int]:
    return [ord(letter) for letter in letters for _ in range(BLOCK_TOKENS)]


def test_the_longest_common_prefix_is_found_in_whole_blocks() -> None:
    tree = PrefixTree(BLOCK_TOKENS)
    tree.insert(prompt("a", "b"), [0, 1])
    assert [node.block for node in tree.match(prompt("a", "b", "c"), 3)] == [0, 1]
    assert [node.block for node in tree.match(prompt("a", "c"), 2)] == [0]
    assert [node.block for node in tree.match(prompt("a", "b")[:-1], 2)] == [0], "a partial block does not match"
    assert tree.match(prompt("b"), 1) == []


def test_at_most_limit_blocks_are_matched() -> None:
    tree = PrefixTree(BLOCK_TOKENS)
    tree.insert(prompt("a", "b"), [0, 1])
    assert len(tree.match(prompt("a", "b"), 1)) == 1


def test_the_first_block_inserted_for_a_prefix_is_kept() -> None:
    tree = PrefixTree(BLOCK_TOKENS)
    tree.insert(prompt("a"), [0])
    assert [node.block for node in tree.insert(prompt("a", "b"), [5, 6])] == [0, 6]
    tree.check()
    assert tree.blocks == {0, 6}


def test_a_forgotten_block_is_not_matched() -> None:
    tree = PrefixTree(BLOCK_TOKENS)
    tree.insert(prompt("a", "b"), [0, 1])
    tree.forget(1)
    tree.check()
    assert [node.block for node in tree.match(prompt("a", "b"), 2)] == [0]


def test_a_block_that_others_continue_cannot_be_forgotten() -> None:
    tree = PrefixTree(BLOCK_TOKENS)
    tree.insert(prompt("a", "b"), [0, 1])
    with pytest.raises(AssertionError):
        tree.forget(0)


def test_a_tail_is_found_by_its_common_tokens_and_not_matched_as_a_block() -> None:
    tree = PrefixTree(BLOCK_TOKENS)
    (first,) = tree.insert(prompt("a"), [0])
    tail = tree.insert_tail([first], (1, 2, 3), 1)
    tree.check()
    assert [node.block for node in tree.match([*prompt("a"), 1, 2, 3], 2)] == [0]
    assert tree.nearest([first], (1, 2, 9))[0] == (2, tail)
    assert tree.nearest([], (1, 2, 3))[0] == (0, first)


def test_a_tail_with_which_a_known_block_begins_is_not_inserted() -> None:
    tree = PrefixTree(BLOCK_TOKENS)
    (first,) = tree.insert(prompt("a"), [0])
    assert tree.insert_tail([], (ord("a"),) * 9, 5) is first
    assert tree.blocks == {0}


def test_a_block_that_begins_with_a_tail_supersedes_it() -> None:
    tree = PrefixTree(BLOCK_TOKENS)
    tail = tree.insert_tail([], (ord("a"),) * 9, 5)
    tree.insert_tail([], (ord("b"),) * 9, 6)
    assert tree.superseded(tail) is None
    (full,) = tree.insert(prompt("a"), [7])
    assert tree.superseded(full) is tail
    tree.forget(5)
    tree.check()
    assert tree.blocks == {6, 7}


TAILS = st.lists(st.sampled_from([1, 2]), min_size=1, max_size=BLOCK_TOKENS).map(tuple)


@given(st.lists(TAILS, max_size=30), TAILS)
def test_the_block_with_the_longest_common_prefix_is_found(
    tails: list[tuple[int, ...]], wanted: tuple[int, ...]
) -> None:
    tree = PrefixTree(BLOCK_TOKENS)
    for block, tail in enumerate(tails):
        node = tree.insert_tail([], tail, block) if len(tail) < BLOCK_TOKENS else tree.insert(tail, [block])[0]
        superseded = tree.superseded(node)
        if superseded is not None:
            tree.forget(superseded.block)
        tree.check()
    num_common = [
        len(list(takewhile(lambda pair: pair[0] == pair[1], zip(wanted, tail, strict=False)))) for tail in tails
    ]
    found = tree.nearest([], wanted)
    assert (found[0][0] if found else 0) == max(num_common, default=0)
