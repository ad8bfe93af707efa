"""A radix tree over prompt prefixes: each node is one KV block that prefill made.

Only what prefill made is shared: keys and values that decode steps write differ from prefill's in their last
bits (docs/explanation/determinism.md), and what is cached must equal what is computed.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from collections.abc import Sequence as ReadOnly
from dataclasses import dataclass, field

from onward.engine.scores import PackedScores

BlockKey = tuple[int, ...]


@dataclass(slots=True, eq=False)
class Node:
    """One cached block. A full one holds a whole block of tokens. A tail holds fewer, the end of a prompt: nothing
    continues it, and behind its tokens stands what its owner generated. No tail is the beginning of a sibling.

    `scores` are the log-probabilities of the block's first tokens given all before them, as far as a request has
    scored them.
    """

    key: BlockKey
    block: int
    parent: Node | None
    is_full: bool = True
    children: dict[BlockKey, Node] = field(default_factory=dict)
    order: list[BlockKey] = field(default_factory=list)
    """The children's keys, sorted."""
    scores: PackedScores | None = None


class PrefixTree:
    """Finds the longest cached beginning of a prompt. Holds no references: the block pool counts them.
    Engine thread only."""

    def __init__(self, block_tokens: int) -> None:
        self._block_tokens = block_tokens
        self._root = Node((), -1, None)
        self._by_block: dict[int, Node] = {}

    def match(self, tokens: ReadOnly[int], limit: int) -> list[Node]:
        """The nodes of the longest cached prefix of `tokens`, at most `limit` blocks. Does not modify."""
        path: list[Node] = []
        node = self._root
        for key in self._keys(tokens, limit):
            child = node.children.get(key)
            if child is None:
                break
            path.append(child)
            node = child
        return path

    def nearest(self, path: ReadOnly[Node], tokens: BlockKey) -> list[tuple[int, Node]]:
        """Of the blocks that continue `path`, the two that begin most like `tokens`, the one that shares more first,
        each with how many tokens it shares. Does not modify."""
        node = path[-1] if path else self._root
        place = bisect_left(node.order, tokens)  # the most alike is a neighbour, in any sorted order of lists
        near = [node.children[key] for key in node.order[max(0, place - 1) : place + 1]]
        return sorted(((_common(tokens, each.key), each) for each in near), key=lambda found: -found[0])

    def insert(self, tokens: ReadOnly[int], blocks: ReadOnly[int]) -> list[Node]:
        """Add blocks[i], which hold the i-th block of `tokens`. Returns the nodes of the path.

        Where the tree already has a block for the same prefix it keeps its own. Modifies the tree.
        """
        path: list[Node] = []
        node = self._root
        for key, block in zip(self._keys(tokens, len(blocks)), blocks, strict=False):
            node = node.children.get(key) or self._add(node, key, block)
            path.append(node)
        return path

    def insert_tail(self, path: ReadOnly[Node], tokens: BlockKey, block: int) -> Node:
        """Add a block whose first tokens, fewer than a full block's, end a prompt. Returns the node that stands for
        them: another one where a known block begins with them. Modifies the tree."""
        for common, node in self.nearest(path, tokens):
            if common == len(tokens):
                return node
        return self._add(path[-1] if path else self._root, tokens, block)

    def superseded(self, node: Node) -> Node | None:
        """The tail with which `node` begins, if there is one: whoever inserted `node` drops it."""
        assert node.parent is not None
        siblings = node.parent.order
        place = bisect_left(siblings, node.key)
        before = siblings[place - 1] if place else ()
        return node.parent.children[before] if before and node.key[: len(before)] == before else None

    def forget(self, block: int) -> None:
        """Remove the node of an evicted block. It has no children: the pool evicts far ends first."""
        node = self._by_block.pop(block)
        assert not node.children, "a block was evicted before those that continue it"
        assert node.parent is not None
        del node.parent.children[node.key]
        del node.parent.order[bisect_left(node.parent.order, node.key)]

    @property
    def blocks(self) -> set[int]:
        return set(self._by_block)

    def check(self) -> None:
        """AssertionError if nodes, parents and the block index disagree."""
        seen: dict[int, Node] = {}
        stack = [self._root]
        while stack:
            node = stack.pop()
            assert node.order == sorted(node.children), "sorted keys differ from the children"
            for before, key in zip(node.order, node.order[1:], strict=False):
                assert key[: len(before)] != before, "a tail is the beginning of a sibling"
            for key, child in node.children.items():
                assert child.key == key and child.parent is node and (child.is_full or not child.children)
                assert child.block not in seen, "two nodes share a block"
                seen[child.block] = child
                stack.append(child)
        assert seen == self._by_block, "the block index differs from the tree"

    def _add(self, parent: Node, key: BlockKey, block: int) -> Node:
        node = Node(key, block, parent, is_full=len(key) == self._block_tokens)
        parent.children[key] = node
        parent.order.insert(bisect_left(parent.order, key), key)
        self._by_block[block] = node
        return node

    def _keys(self, tokens: ReadOnly[int], limit: int) -> Iterator[BlockKey]:
        size = self._block_tokens
        for index in range(min(limit, len(tokens) // size)):
            yield tuple(tokens[index * size : (index + 1) * size])


def _common(one: BlockKey, other: BlockKey) -> int:
    """How many tokens both begin with."""
    for index, (mine, theirs) in enumerate(zip(one, other, strict=False)):
        if mine != theirs:
            return index
    return min(len(one), len(other))
