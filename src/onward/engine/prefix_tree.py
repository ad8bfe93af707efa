"""A radix tree over prompt prefixes: each node is one KV block that prefill computed.

Only those are shared: keys and values from decode steps differ from those of prefill in their last bits
(docs/explanation/determinism.md), and a cached prefix must equal a computed one. Each salt (`engine.job.Job.salt`) has
a root of its own: prompts of different salts share nothing.
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
    """One cached block, full or a tail. A tail is the partly filled block at the end of a prompt: it has no children,
    after its tokens come those that its sequence generated, and no sibling begins with its tokens.

    `scores` are the log-probabilities of the block's first tokens, as many as a request has scored. A root has no
    block, and the `salt` of all below it.
    """

    key: BlockKey
    block: int
    parent: Node | None
    is_full: bool = True
    children: dict[BlockKey, Node] = field(default_factory=dict)
    order: list[BlockKey] = field(default_factory=list)
    """The keys of `children`, sorted."""
    scores: PackedScores | None = None
    salt: str = ""


class PrefixTree:
    """Finds the longest cached prefix of a prompt. References to blocks are counted by the block pool, not here.
    Engine thread only."""

    def __init__(self, block_tokens: int) -> None:
        self._block_tokens = block_tokens
        self._roots: dict[str, Node] = {}
        """By salt: those below which there are blocks."""
        self._by_block: dict[int, Node] = {}

    def match(self, tokens: ReadOnly[int], limit: int, salt: str = "") -> list[Node]:
        """Return the nodes of the longest cached prefix of `tokens`, at most `limit` full blocks. Modifies nothing."""
        path: list[Node] = []
        node = self._root(salt)
        for key in self._keys(tokens, limit):
            child = node.children.get(key)
            if child is None:
                break
            path.append(child)
            node = child
        return path

    def nearest(self, path: ReadOnly[Node], tokens: BlockKey, salt: str = "") -> list[tuple[int, Node]]:
        """Return the one or two children of `path`'s last node that have the longest common prefix with `tokens`, each
        as (its length, node), the longest first. Modifies nothing."""
        node = path[-1] if path else self._root(salt)
        index = bisect_left(node.order, tokens)  # in sorted order, the key with the longest common prefix is adjacent
        near = [node.children[key] for key in node.order[max(0, index - 1) : index + 1]]
        return sorted(((_common_length(tokens, each.key), each) for each in near), key=lambda found: -found[0])

    def insert(self, tokens: ReadOnly[int], blocks: ReadOnly[int], salt: str = "") -> list[Node]:
        """Add `blocks`, which contain the full blocks of `tokens` from the first on. Returns the nodes of the path.

        Where the tree already has a block for the same prefix, it keeps that one.
        """
        path: list[Node] = []
        node = self._root(salt)
        for key, block in zip(self._keys(tokens, len(blocks)), blocks, strict=False):
            node = node.children.get(key) or self._add(node, key, block)
            path.append(node)
        return path

    def insert_tail(self, path: ReadOnly[Node], tokens: BlockKey, block: int, salt: str = "") -> Node:
        """Add the block of a prompt's last `tokens`, fewer than a full block's. Returns its node, or that of another
        block that begins with the same tokens; then nothing is added."""
        for common, node in self.nearest(path, tokens, salt):
            if common == len(tokens):
                return node
        return self._add(path[-1] if path else self._root(salt), tokens, block)

    def superseded(self, node: Node) -> Node | None:
        """Return the tail with which `node` begins, if there is one. After an insertion the caller must evict it."""
        assert node.parent is not None
        siblings = node.parent.order
        index = bisect_left(siblings, node.key)
        before = siblings[index - 1] if index else ()
        return node.parent.children[before] if before and node.key[: len(before)] == before else None

    def below(self, tokens: ReadOnly[int], salt: str = "") -> list[Node]:
        """Return the nodes of the first block of `tokens` and of all that continue it, those before their parents. With
        fewer tokens than a block, those that begin with them. Modifies nothing."""
        first = tuple(tokens[: self._block_tokens])
        root = self._root(salt)
        found = [root.children[key] for key in root.order if key[: len(first)] == first]
        for node in found:  # grows
            found += node.children.values()
        return found[::-1]

    def forget(self, block: int) -> None:
        """Remove the node of an evicted block. It has no children: the pool evicts the end of a prefix first."""
        node = self._by_block.pop(block)
        assert not node.children, "a block was evicted before those that continue it"
        assert node.parent is not None
        del node.parent.children[node.key]
        del node.parent.order[bisect_left(node.parent.order, node.key)]
        if node.parent.parent is None and not node.parent.children:
            del self._roots[node.parent.salt]

    @property
    def blocks(self) -> set[int]:
        """The ids of all cached blocks."""
        return set(self._by_block)

    def check(self) -> None:
        """Raise AssertionError if nodes, parents and the index of blocks are inconsistent. For tests."""
        seen: dict[int, Node] = {}
        stack = list(self._roots.values())
        assert all(root.children and root.salt == salt for salt, root in self._roots.items()), "a root without blocks"
        while stack:
            node = stack.pop()
            assert node.order == sorted(node.children), "sorted keys differ from the children"
            for before, key in zip(node.order, node.order[1:], strict=False):
                assert key[: len(before)] != before, "a sibling begins with a tail"
            for key, child in node.children.items():
                assert child.key == key and child.parent is node and (child.is_full or not child.children)
                assert child.block not in seen, "two nodes share a block"
                seen[child.block] = child
                stack.append(child)
        assert seen == self._by_block, "the block index differs from the tree"

    def _root(self, salt: str) -> Node:
        """Return the root of a salt: a new one, which `_add` keeps, if there is nothing below it."""
        return self._roots.get(salt) or Node((), -1, None, salt=salt)

    def _add(self, parent: Node, key: BlockKey, block: int) -> Node:
        if parent.parent is None:
            self._roots[parent.salt] = parent
        node = Node(key, block, parent, is_full=len(key) == self._block_tokens)
        parent.children[key] = node
        parent.order.insert(bisect_left(parent.order, key), key)
        self._by_block[block] = node
        return node

    def _keys(self, tokens: ReadOnly[int], limit: int) -> Iterator[BlockKey]:
        """Yield the keys of the first full blocks of `tokens`, at most `limit`."""
        size = self._block_tokens
        for index in range(min(limit, len(tokens) // size)):
            yield tuple(tokens[index * size : (index + 1) * size])


def _common_length(one: BlockKey, other: BlockKey) -> int:
    """Return the length of the common prefix."""
    for index, (mine, theirs) in enumerate(zip(one, other, strict=False)):
        if mine != theirs:
            return index
    return min(len(one), len(other))
