import pytest

from onward.engine.model import BLOCK_TOKENS
from onward.engine.prefix import PrefixTree


def prompt(*letters: str) -> list[int]:
    return [ord(letter) for letter in letters for _ in range(BLOCK_TOKENS)]


def test_the_longest_common_beginning_is_found_in_whole_blocks() -> None:
    tree = PrefixTree()
    tree.insert(prompt("a", "b"), [0, 1])
    assert [node.block for node in tree.match(prompt("a", "b", "c"), 3)] == [0, 1]
    assert [node.block for node in tree.match(prompt("a", "c"), 2)] == [0]
    assert [node.block for node in tree.match(prompt("a", "b")[:-1], 2)] == [0], "half a block is no match"
    assert tree.match(prompt("b"), 1) == []


def test_a_limit_is_kept() -> None:
    tree = PrefixTree()
    tree.insert(prompt("a", "b"), [0, 1])
    assert len(tree.match(prompt("a", "b"), 1)) == 1


def test_the_first_block_for_a_prefix_stays() -> None:
    tree = PrefixTree()
    tree.insert(prompt("a"), [0])
    assert [node.block for node in tree.insert(prompt("a", "b"), [5, 6])] == [0, 6]
    tree.check()
    assert tree.blocks == {0, 6}


def test_a_forgotten_block_is_not_found_again() -> None:
    tree = PrefixTree()
    tree.insert(prompt("a", "b"), [0, 1])
    tree.forget(1)
    tree.check()
    assert [node.block for node in tree.match(prompt("a", "b"), 2)] == [0]


def test_what_leads_to_other_blocks_cannot_be_forgotten() -> None:
    tree = PrefixTree()
    tree.insert(prompt("a", "b"), [0, 1])
    with pytest.raises(AssertionError):
        tree.forget(0)
