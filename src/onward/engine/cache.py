"""The KV cache of all sequences: blocks with reference counts, prefix reuse, growth, forks, publication, release."""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Sequence as ReadOnly
from typing import Protocol

from onward.engine.block_pool import BlockPool
from onward.engine.model import StepShape
from onward.engine.prefix_tree import Node, PrefixTree, Scores, pack
from onward.engine.sequence import Sequence, shareable_tokens
from onward.engine.states import CopyState, States

Copy = tuple[int, int]
"""A block copy to make: source, target."""


class NextTier(Protocol):
    """Where cached blocks go when memory has no room for them."""

    def evicted(self, node: Node) -> None:
        """Called when the tree no longer has a node, whose block will be used for something else. Its keys and values,
        and its state, are still there, and its parents are still in the tree."""
        ...

    def displaced(self, node: Node) -> None:
        """Called when a node is about to lose its state, from which prompts have continued."""
        ...

    def discarded(self, prompt: ReadOnly[int], salt: str, nodes: ReadOnly[Node]) -> None:
        """Called when nodes are about to be removed because they may be damaged: all that hold the beginning of
        `prompt`, or continue it. Neither they nor other blocks after the prompt's first one may come back, from this
        call on."""
        ...


class KVCache:
    """Allocates the sequences' block tables from one pool, and finds cached prefixes in a tree. Engine thread only.

    Callers ask first (`can_admit`, `can_fork`, `can_grow`); what follows then does not fail.
    """

    def __init__(
        self, num_blocks: int, shape: StepShape, copy_state: CopyState | None = None, *, share_prefixes: bool = True
    ) -> None:
        """`copy_state`: of a model whose sequences have states."""
        self.shape = shape
        self.block_tokens = shape.block_tokens
        self.min_shared_tokens = shape.min_prefill_tokens
        """Fewest tokens in common with a cached block for which that block is copied instead of computed."""
        self.states: States | None = None
        if copy_state is not None:
            self.states = States(shape.states, copy_state, self._displaced, has_snapshots=share_prefixes)
            self.min_shared_tokens = shape.block_tokens + 1  # none: there are no states within a block
        self.tree = PrefixTree(shape.block_tokens)
        self.pool = BlockPool(num_blocks, self._evict)
        self.share_prefixes = share_prefixes
        self.next_tier: NextTier | None = None
        self.era = 0
        """Raised whenever blocks are discarded. What sequences of an earlier one compute is not published: it may come
        from such blocks, or has to be forgotten."""

    def find(self, sequence: Sequence) -> list[Node]:
        """Return the cached blocks of the longest reusable prefix of a sequence's prompt. Modifies nothing."""
        nodes = self._cached(sequence)
        if self.states is None:
            return nodes
        return nodes[: self.states.num_reusable(nodes, wants_scores=sequence.wants_scores)]

    def _cached(self, sequence: Sequence) -> list[Node]:
        """Return the cached blocks with which a sequence's prompt begins. One that scores its prompt can only use
        blocks whose scores are cached too."""
        if not self.share_prefixes:
            return []
        prompt = sequence.job.prompt
        nodes = self.tree.match(prompt, shareable_tokens(len(prompt)) // self.block_tokens, sequence.job.prefix_salt)
        for index, node in enumerate(nodes):
            if _num_usable_tokens(node, sequence) < self.block_tokens:
                return nodes[:index]
        return nodes

    def can_admit(self, sequence: Sequence, nodes: list[Node], reserve: int) -> bool:
        """Whether blocks for all tokens of the sequence and the next one are available, and `reserve` more.

        `nodes` are its cached blocks, as `find` returns them.
        """
        idle = sum(self.pool.is_idle(node.block) for node in nodes)
        wanted = self.shape.blocks_for(sequence.next_length) - len(nodes)
        has_state = self.states is None or self.states.num_available > 0
        return has_state and wanted + idle + reserve <= self.pool.num_available

    def admit(self, sequence: Sequence, nodes: list[Node]) -> Copy | None:
        """Set the sequence's block table (cached blocks first, then new ones), its `computed` and its `scores`.

        If the next tokens of the prompt are the first of a cached block, returns the block copy that reuses them. The
        caller must make it before the next step is evaluated, after the copies that were returned earlier: the source
        may have been evicted and allocated again by then, but nothing has been written to it.
        """
        blocks = [node.block for node in nodes]
        self.pool.share(blocks)
        common, part = self._partly_shared(sequence, nodes)
        sequence.computed = len(nodes) * self.block_tokens + common
        if self.states is not None:
            cached = self._cached(sequence)
            self.states.begin(sequence, nodes, len(cached), self.block_tokens)
            if sequence.wants_scores:
                sequence.scores = _cached_scores(sequence, cached) or [None]
        elif sequence.wants_scores:
            reused = nodes if part is None else [*nodes, part]
            sequence.scores = _cached_scores(sequence, reused)[: sequence.computed] or [None]
            # The logits of the last cached token score the token after it, so it is computed again, with the one before
            # it (a single token would go through the decode kernel). Both write the bits that are there already.
            sequence.computed = max(0, sequence.computed - 2)
        if sequence.num_cached_tokens is None:
            sequence.num_cached_tokens = sequence.computed
        sequence.blocks = blocks + self.pool.allocate(self.shape.blocks_for(sequence.next_length) - len(blocks))
        return (part.block, sequence.blocks[len(blocks)]) if part is not None else None

    def lacks_block(self, sequence: Sequence) -> bool:
        """Whether the next token needs another block."""
        return sequence.computed >= len(sequence.blocks) * self.block_tokens

    def can_grow(self) -> bool:
        return self.pool.num_available >= 1

    def grow(self, sequence: Sequence) -> None:
        """Append a block to a sequence that lacks one. Raises IndexError if none is available."""
        sequence.blocks += self.pool.allocate(1)

    def reserve(self, sequence: Sequence, num_tokens: int, spare: int) -> int:
        """Allocate blocks for the next `num_tokens` tokens of a decoding sequence, but leave `spare` blocks available.

        Returns for how many of them there is room now: at least for one.
        """
        wanted = self.shape.blocks_for(sequence.computed + num_tokens) - len(sequence.blocks)
        if wanted > 0:
            sequence.blocks += self.pool.allocate(min(wanted, max(0, self.pool.num_available - spare)))
        return min(num_tokens, len(sequence.blocks) * self.block_tokens - sequence.computed)

    def can_fork(self, leader: Sequence, choice: Sequence) -> bool:
        """Whether the blocks that `choice` does not share with its leader are available, and in any case one."""
        if self.states is not None and not self.states.num_available:
            return False
        return self.pool.num_available >= max(1, self._unshared_blocks(leader, choice))

    def fork(self, leader: Sequence, choice: Sequence) -> Copy | None:
        """Let `choice` start with the leader's computed prompt: full blocks are shared, a partly filled one is copied.
        Also allocates blocks for the tokens that it has to replay.

        Returns the block copy to make, if any.
        """
        full, partial = divmod(leader.prompt_length, self.block_tokens)
        shared = leader.blocks[:full]
        self.pool.share(shared)
        choice.computed = leader.prompt_length
        if self.states is not None:
            self.states.fork(leader, choice)
        choice.blocks = shared + self.pool.allocate(self._unshared_blocks(leader, choice))
        return (leader.blocks[full], choice.blocks[full]) if partial else None

    def _unshared_blocks(self, leader: Sequence, choice: Sequence) -> int:
        return self.shape.blocks_for(len(choice.tokens)) - leader.prompt_length // self.block_tokens

    def publish(self, sequence: Sequence) -> None:
        """Add the full prompt blocks that this sequence has computed to the prefix tree, with their scores; after the
        last chunk also the partly filled block at the prompt's end (a tail).

        Where the tree already has another block for the same prefix, the sequence takes that one and releases its own
        (both contain the same bits): so a sequence that uses a block uses all blocks before it. A tail stays the
        sequence's own block, to which decode appends.
        """
        if not self.share_prefixes or sequence.era != self.era:
            return
        full = min(sequence.computed, sequence.prompt_length) // self.block_tokens
        nodes = self.tree.insert(sequence.job.prompt, sequence.blocks[:full], sequence.job.prefix_salt)
        self._exchange(sequence.blocks, nodes)
        begin = full * self.block_tokens
        if not sequence.is_prefilling and sequence.prompt_length - begin >= self.min_shared_tokens:
            rest = sequence.job.prompt[begin:]
            nodes.append(self.tree.insert_tail(nodes, rest, sequence.blocks[full], sequence.job.prefix_salt))
        if self.states is not None and full:
            self.states.keep(sequence, nodes)
        if sequence.wants_scores:
            _keep_scores(sequence, nodes, self.block_tokens)
        for index, (node, own) in enumerate(zip(nodes, sequence.blocks, strict=False)):
            if node.block == own and self.pool.mark_cached(own):
                sequence.count_written(index * self.block_tokens, index * self.block_tokens + len(node.key))
                self._supersede(node)

    def adopt(self, prompt: ReadOnly[int], table: list[int], num_blocks: int, salt: str) -> list[Node]:
        """Add the first `num_blocks` blocks of a table, which contain those of a prompt, to the tree as `publish` does.
        Returns their nodes. Modifies `table`, which the caller releases."""
        nodes = self.tree.insert(prompt, table[:num_blocks], salt)
        self._exchange(table, nodes)
        for node in nodes:
            if self.pool.mark_cached(node.block):
                self._supersede(node)
        return nodes

    def release(self, sequence: Sequence) -> None:
        """Release the sequence's blocks. Published ones stay cached."""
        self.pool.release(sequence.blocks)
        if self.states is not None:
            self.states.release(sequence)
        sequence.blocks = []
        sequence.computed = 0

    def discard(self, prompt: ReadOnly[int], salt: str) -> None:
        """Remove all blocks from the cache that hold the beginning of `prompt` or continue it, because they may be
        damaged. Sequences that use one keep it."""
        self.era += 1
        nodes = self.tree.below(prompt, salt)
        if self.next_tier is not None:
            self.next_tier.discarded(prompt, salt, nodes)
        self._remove(nodes)

    def drop_all(self) -> None:
        """Remove all blocks from the cache. Sequences that use one keep it."""
        self.era += 1
        self._remove(self.tree.everything())

    def check(self, sequences: list[Sequence]) -> None:
        """Raise AssertionError if a block is lost, miscounted or shared by mistake."""
        self.tree.check()
        self.pool.check([sequence.blocks for sequence in sequences], self.tree.blocks)
        if self.states is not None:
            self.states.check(sequences, self.tree.everything())

    def _evict(self, block: int) -> None:
        """Remove a block from the tree whose memory is needed."""
        node = self.tree.forget(block)
        if self.next_tier is not None:
            self.next_tier.evicted(node)
        if self.states is not None:
            self.states.drop(node)

    def _displaced(self, node: Node) -> None:
        if self.next_tier is not None:
            self.next_tier.displaced(node)

    def _remove(self, nodes: Iterable[Node]) -> None:
        """Remove nodes, those before their parents."""
        for node in nodes:
            self.tree.forget(node.block)
            self.pool.remove(node.block)
            if self.states is not None:
                self.states.drop(node)

    def _exchange(self, table: list[int], nodes: ReadOnly[Node]) -> None:
        """Take the cached blocks in a block table instead of others with the same bits, which are released."""
        for index, node in enumerate(nodes):
            own = table[index]
            if node.block != own:
                self.pool.share([node.block])
                self.pool.release([own])
                table[index] = node.block

    def _partly_shared(self, sequence: Sequence, nodes: list[Node]) -> tuple[int, Node | None]:
        """Return how many tokens of the prompt after `nodes` another cached block begins with, and that block."""
        if not self.share_prefixes:
            return 0, None
        begin = len(nodes) * self.block_tokens
        end = min(begin + self.block_tokens, shareable_tokens(sequence.prompt_length))
        for common, node in self.tree.nearest(nodes, sequence.job.prompt[begin:end], sequence.job.prefix_salt):
            common = min(common, _num_usable_tokens(node, sequence))
            if common >= self.min_shared_tokens:
                self.pool.touch(node.block)
                return common, node
        return 0, None

    def _supersede(self, node: Node) -> None:
        """Evict the tail with which `node` begins, and keep its scores."""
        tail = self.tree.superseded(node)
        if tail is not None:
            node.scores = node.scores or tail.scores
            self._remove([tail])


def _num_usable_tokens(node: Node, sequence: Sequence) -> int:
    """Return how many of a block's first tokens the sequence can use: only those with scores if it wants scores."""
    if not sequence.wants_scores:
        return len(node.key)
    top, with_ranks = sequence.job.score_top, sequence.job.score_ranks
    assert top is not None
    return len(node.scores) if node.scores is not None and node.scores.has(top, with_ranks=with_ranks) else 0


def _cached_scores(sequence: Sequence, nodes: list[Node]) -> Scores:
    scores: Scores = []
    for node in nodes:
        assert node.scores is not None and sequence.job.score_top is not None
        scores += node.scores.unpack(sequence.job.score_top, with_ranks=sequence.job.score_ranks)
    return scores


def _keep_scores(sequence: Sequence, nodes: list[Node], block_tokens: int) -> None:
    """Store the sequence's scores with its blocks where they cover more tokens than those stored before, or as many
    with more alternatives or with ranks: a sequence that wants scores cannot use the blocks after one whose scores are
    incomplete."""
    scores, top, with_ranks = sequence.scores, sequence.job.score_top, sequence.job.score_ranks
    assert scores is not None and top is not None
    for index, node in enumerate(nodes):
        begin = index * block_tokens
        count = min(len(scores) - begin, len(node.key))
        known = node.scores
        if count > 0 and (known is None or (len(known), known.has(top, with_ranks=with_ranks)) < (count, True)):
            packed = pack(scores[begin : begin + count], top, with_ranks=with_ranks)
            node.scores = packed if known is None else packed.joined(known)
