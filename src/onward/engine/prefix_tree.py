"""A radix tree over prompt prefixes: each node is one KV block that prefill computed, with the scores of its tokens.

Only those are shared: keys and values from decode steps differ from those of prefill in their last bits
(docs/explanation/determinism.md), and a cached prefix must equal a computed one. Each salt (`Job.prefix_salt`) has
a root of its own: prompts of different salts share nothing.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from collections.abc import Sequence as ReadOnly
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from onward.sampling.outputs import Sampled

Scores = list[Sampled | None]
"""An entry per prompt token; None for a prompt's first token, which has no log-probability."""

BlockKey = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class PackedScores:
    """Scores of n tokens with `top` alternatives each: 8 bytes per token, 4 per rank and 8 per alternative."""

    tokens: NDArray[np.int32]
    """int32 [n]; -1 for an entry that is None."""
    logprobs: NDArray[np.float32]
    """float32 [n]"""
    top_tokens: NDArray[np.int32]
    """int32 [n, top]"""
    top_logprobs: NDArray[np.float32]
    """float32 [n, top]"""
    ranks: NDArray[np.int32] | None = None
    """int32 [n]; None if they were not counted."""

    def __len__(self) -> int:
        return len(self.tokens)

    @property
    def top(self) -> int:
        """Alternatives per token."""
        return int(self.top_tokens.shape[1])

    def has(self, top: int, *, with_ranks: bool) -> bool:
        """Whether the scores can be unpacked with `top` alternatives, and with ranks if they are wanted."""
        return self.top >= top and (self.ranks is not None or not with_ranks)

    def joined(self, other: PackedScores) -> PackedScores:
        """Return all that is known of a block's first tokens: the scores of more tokens, or, where both have as many,
        those with more alternatives, and the ranks of either."""
        if len(self) != len(other):
            return max(self, other, key=len)
        widest, narrow = (self, other) if self.top >= other.top else (other, self)
        return replace(widest, ranks=narrow.ranks if widest.ranks is None else widest.ranks)

    def unpack(self, top: int, *, with_ranks: bool = False) -> Scores:
        """Return the scores with the `top` best alternatives each, as `has` says that they are there."""
        ranks = self.ranks.tolist() if with_ranks and self.ranks is not None else [0] * len(self)
        rows = zip(
            self.tokens.tolist(),
            self.logprobs.tolist(),
            self.top_tokens[:, :top].tolist(),
            self.top_logprobs[:, :top].tolist(),
            ranks,
            strict=True,
        )
        return [
            Sampled(token, logprob, tuple(zip(ids, values, strict=True)), rank) if token >= 0 else None
            for token, logprob, ids, values, rank in rows
        ]


def pack(scores: ReadOnly[Sampled | None], top: int, *, with_ranks: bool = False) -> PackedScores:
    """Pack scores with `top` alternatives each, or fewer if some score has fewer (in a tiny vocabulary)."""
    width = min((len(score.top) for score in scores if score is not None), default=0)
    width = min(width, top)
    count = len(scores)
    packed = PackedScores(
        np.full(count, -1, np.int32),
        np.zeros(count, np.float32),
        np.zeros((count, width), np.int32),
        np.zeros((count, width), np.float32),
        np.array([0 if score is None else score.rank for score in scores], np.int32) if with_ranks else None,
    )
    for index, score in enumerate(scores):
        if score is None:
            continue
        packed.tokens[index] = score.token
        packed.logprobs[index] = score.logprob
        for rank, (token, logprob) in enumerate(score.top[:width]):
            packed.top_tokens[index, rank] = token
            packed.top_logprobs[index, rank] = logprob
    return packed


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
    state: int = -1
    """The one after the block, of models whose sequences have states (`states.States`); -1: none."""
    salt: str = ""
    disk_key: bytes = b""
    """The key of its file (`disk_cache`), once it is known."""


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

    def everything(self) -> list[Node]:
        """Return all nodes, those before their parents. Modifies nothing."""
        found = [node for root in self._roots.values() for node in root.children.values()]
        for node in found:  # grows
            found += node.children.values()
        return found[::-1]

    def node(self, block: int) -> Node:
        """Return the node of a cached block."""
        return self._by_block[block]

    def forget(self, block: int) -> Node:
        """Remove the node of an evicted block, and return it. It has no children: the pool evicts the end of a prefix
        first."""
        node = self._by_block.pop(block)
        assert not node.children, "a block was evicted before those that continue it"
        assert node.parent is not None
        del node.parent.children[node.key]
        del node.parent.order[bisect_left(node.parent.order, node.key)]
        if node.parent.parent is None and not node.parent.children:
            del self._roots[node.parent.salt]
        return node

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
