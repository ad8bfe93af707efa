"""A radix tree over prompt prefixes: each node is one full KV block that prefill made.

Only prefill-made blocks are shared: keys and values that decode steps write differ from prefill's in their last
bits (docs/explanation/determinism.md), and what is cached must equal what is computed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from onward.engine.model import BLOCK_TOKENS
from onward.engine.scores import PackedScores

BlockKey = tuple[int, ...]


@dataclass(slots=True, eq=False)
class Node:
    """One cached block. `scores` are the log-probabilities of the block's own tokens given all before them, if
    a request has scored them."""

    key: BlockKey
    block: int
    parent: Node | None
    children: dict[BlockKey, Node] = field(default_factory=dict)
    scores: PackedScores | None = None


class PrefixTree:
    """Finds the longest cached beginning of a prompt. Holds no references: the block pool does the counting.
    Engine thread only."""

    def __init__(self) -> None:
        self._root = Node((), -1, None)
        self._by_block: dict[int, Node] = {}

    def match(self, tokens: Sequence[int], limit: int) -> list[Node]:
        """The nodes of the longest cached prefix of `tokens`, at most `limit` blocks. Does not modify."""
        path: list[Node] = []
        node = self._root
        for key in _keys(tokens, limit):
            child = node.children.get(key)
            if child is None:
                break
            path.append(child)
            node = child
        return path

    def insert(self, tokens: Sequence[int], blocks: Sequence[int]) -> list[Node]:
        """Make blocks[i], which hold tokens[32·i : 32·(i+1)], findable. Gives the path's nodes.

        Where the tree already has a block for the same prefix it keeps its own. Modifies the tree.
        """
        path: list[Node] = []
        node = self._root
        for key, block in zip(_keys(tokens, len(blocks)), blocks, strict=False):
            child = node.children.get(key)
            if child is None:
                child = Node(key, block, node)
                node.children[key] = child
                self._by_block[block] = child
            path.append(child)
            node = child
        return path

    def forget(self, block: int) -> None:
        """Remove the node of a block that is given up. It has no children: the pool gives up far ends first."""
        node = self._by_block.pop(block)
        assert not node.children, "a block was given up before those that continue it"
        assert node.parent is not None
        del node.parent.children[node.key]

    @property
    def blocks(self) -> set[int]:
        return set(self._by_block)

    def check(self) -> None:
        """AssertionError if nodes, parents and the block index disagree."""
        seen: dict[int, Node] = {}
        stack = [self._root]
        while stack:
            node = stack.pop()
            for key, child in node.children.items():
                assert child.key == key and child.parent is node and len(key) == BLOCK_TOKENS
                assert child.block not in seen, "two nodes share a block"
                seen[child.block] = child
                stack.append(child)
        assert seen == self._by_block, "the block index differs from the tree"


def _keys(tokens: Sequence[int], limit: int) -> Iterator[BlockKey]:
    for index in range(min(limit, len(tokens) // BLOCK_TOKENS)):
        yield tuple(tokens[index * BLOCK_TOKENS : (index + 1) * BLOCK_TOKENS])
