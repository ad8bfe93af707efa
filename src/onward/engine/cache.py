"""The KV cache as sequences see it: reuse a prefix, take blocks, grow, fork, publish, release."""

from __future__ import annotations

from onward.engine.blocks import BlockPool
from onward.engine.model import BLOCK_TOKENS
from onward.engine.prefix import Node, PrefixTree
from onward.engine.scores import Scores, pack
from onward.engine.sequence import Sequence, blocks_for, shareable_blocks


class KVCache:
    """Block tables over one pool, with a prefix tree. Ask (`can_…`), then act. Engine thread only."""

    def __init__(self, blocks: int, *, share_prefixes: bool = True) -> None:
        self.tree = PrefixTree()
        self.pool = BlockPool(blocks, self.tree.forget)
        self.share_prefixes = share_prefixes

    def find(self, sequence: Sequence) -> list[Node]:
        """The cached blocks that this sequence's prompt can begin with. Does not modify.

        One that scores its prompt can use only blocks whose scores are kept.
        """
        job = sequence.job
        if not self.share_prefixes:
            return []
        nodes = self.tree.match(job.prompt, shareable_blocks(len(job.prompt)))
        if not sequence.wants_scores:
            return nodes
        assert job.score_top is not None
        for index, node in enumerate(nodes):
            if node.scores is None or node.scores.top < job.score_top:
                return nodes[:index]
        return nodes

    def can_admit(self, sequence: Sequence, nodes: list[Node], reserve: int) -> bool:
        """Whether blocks for all tokens of the sequence and the next one can be had, `reserve` left over."""
        idle = sum(self.pool.is_idle(node.block) for node in nodes)
        wanted = blocks_for(sequence.next_length) - len(nodes)
        return wanted + idle + reserve <= self.pool.available

    def admit(self, sequence: Sequence, nodes: list[Node]) -> None:
        """Give the sequence its block table: reused blocks first, then fresh ones. Sets `computed`, `scores`."""
        blocks = [node.block for node in nodes]
        self.pool.share(blocks)
        fresh = blocks_for(sequence.next_length) - len(blocks)
        sequence.blocks = blocks + self.pool.allocate(fresh)
        sequence.computed = len(nodes) * BLOCK_TOKENS
        if sequence.wants_scores:
            sequence.scores = _known_scores(sequence, nodes) if nodes else [None]
            # The logits at the end of what is cached score the token after it: two tokens are computed again, and
            # write the bits that stand there (one would go through the decode kernel).
            sequence.computed = max(0, sequence.computed - 2)
        if sequence.reused is None:
            sequence.reused = sequence.computed

    def can_grow(self, sequence: Sequence) -> bool:
        return sequence.blocks_short <= self.pool.available

    def grow(self, sequence: Sequence) -> None:
        """Make room for the next token."""
        sequence.blocks += self.pool.allocate(sequence.blocks_short)

    def reserve(self, sequence: Sequence, tokens: int, spare: int) -> int:
        """Take blocks for `tokens` more tokens of a writer as long as `spare` blocks stay available; for how many of
        them there is room then (the next one always has it)."""
        wanted = blocks_for(sequence.computed + tokens) - len(sequence.blocks)
        if wanted > 0:
            sequence.blocks += self.pool.allocate(min(wanted, max(0, self.pool.available - spare)))
        return min(tokens, len(sequence.blocks) * BLOCK_TOKENS - sequence.computed)

    def can_fork(self) -> bool:
        return self.pool.available >= 1

    def fork(self, leader: Sequence, choice: Sequence) -> tuple[int, int] | None:
        """Give `choice` the leader's prompt: full blocks shared, a partly filled one copied.

        Returns the copy to make (source block, target block), if any. The leader has just read its prompt.
        """
        full, partial = divmod(leader.prompt_length, BLOCK_TOKENS)
        shared = leader.blocks[:full]
        self.pool.share(shared)
        choice.computed = leader.prompt_length
        choice.blocks = list(shared)
        if not partial:
            return None
        choice.blocks += self.pool.allocate(1)
        return leader.blocks[full], choice.blocks[full]

    def publish(self, sequence: Sequence) -> None:
        """Let others find the full prompt blocks that this sequence has computed, with their scores.

        Where the tree knows the same prefix by another block, the sequence takes that one and gives its own
        back (both hold the same bits): so whoever holds a block holds all that lead to it.
        """
        if not self.share_prefixes:
            return
        full = min(sequence.computed, sequence.prompt_length) // BLOCK_TOKENS
        nodes = self.tree.insert(sequence.job.prompt, sequence.blocks[:full])
        for index, node in enumerate(nodes):
            own = sequence.blocks[index]
            if node.block == own:
                self.pool.remember(own)
            else:
                self.pool.share([node.block])
                self.pool.release([own])
                sequence.blocks[index] = node.block
        if sequence.wants_scores:
            _keep_scores(sequence, nodes)

    def release(self, sequence: Sequence) -> None:
        """Take the sequence's blocks back; what is published stays findable."""
        self.pool.release(sequence.blocks)
        sequence.blocks = []
        sequence.computed = 0

    def check(self, sequences: list[Sequence]) -> None:
        """AssertionError if any block is lost, counted wrongly or shared by mistake."""
        self.tree.check()
        self.pool.check([sequence.blocks for sequence in sequences], self.tree.blocks)


def _known_scores(sequence: Sequence, nodes: list[Node]) -> Scores:
    scores: Scores = []
    for node in nodes:
        assert node.scores is not None and sequence.job.score_top is not None
        scores += node.scores.unpack(sequence.job.score_top)
    return scores


def _keep_scores(sequence: Sequence, nodes: list[Node]) -> None:
    scores, top = sequence.scores, sequence.job.score_top
    assert scores is not None and top is not None
    for index, node in enumerate(nodes[: len(scores) // BLOCK_TOKENS]):
        if node.scores is None or node.scores.top < top:
            node.scores = pack(scores[index * BLOCK_TOKENS : (index + 1) * BLOCK_TOKENS], top)
