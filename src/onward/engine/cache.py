"""The KV cache as sequences see it: reuse a prefix, take blocks, grow, fork, publish, release."""

from __future__ import annotations

from onward.engine.blocks import BlockPool
from onward.engine.model import StepShape
from onward.engine.prefix_tree import Node, PrefixTree
from onward.engine.scores import Scores, pack
from onward.engine.sequence import Sequence, shareable_tokens

Copy = tuple[int, int]
"""A block copy to make: source, target."""


class KVCache:
    """Block tables over one pool, with a prefix tree. Ask (`can_…`), then act. Engine thread only."""

    def __init__(self, num_blocks: int, shape: StepShape, *, share_prefixes: bool = True) -> None:
        self.shape = shape
        self.block_tokens = shape.block_tokens
        self.min_shared_tokens = shape.min_prefill_tokens
        """Tokens of a block that must be shared for the block to be copied rather than computed."""
        self.tree = PrefixTree(shape.block_tokens)
        self.pool = BlockPool(num_blocks, self.tree.forget)
        self.share_prefixes = share_prefixes

    def find(self, sequence: Sequence) -> list[Node]:
        """The cached blocks that this sequence's prompt can begin with. Does not modify.

        A sequence that scores its prompt can use only blocks whose scores are kept.
        """
        if not self.share_prefixes:
            return []
        prompt = sequence.job.prompt
        nodes = self.tree.match(prompt, shareable_tokens(len(prompt)) // self.block_tokens)
        for index, node in enumerate(nodes):
            if _usable(node, sequence) < self.block_tokens:
                return nodes[:index]
        return nodes

    def can_admit(self, sequence: Sequence, nodes: list[Node], reserve: int) -> bool:
        """Whether blocks for all tokens of the sequence and the next one are available, `reserve` left over."""
        idle = sum(self.pool.is_idle(node.block) for node in nodes)
        wanted = self.shape.blocks_for(sequence.next_length) - len(nodes)
        return wanted + idle + reserve <= self.pool.available

    def admit(self, sequence: Sequence, nodes: list[Node]) -> Copy | None:
        """Set the sequence's block table: reused blocks first, then fresh ones. Sets `computed` and `scores` too.

        Where the prompt goes on as a cached block begins, the first fresh block is to be a copy of that one; returns
        that copy. It must be made before anything is evaluated, and after the copies that were returned before: the
        cached block may have another owner by then, who has not written to it.
        """
        blocks = [node.block for node in nodes]
        self.pool.share(blocks)
        common, part = self._partly_shared(sequence, nodes)
        sequence.computed = len(nodes) * self.block_tokens + common
        if sequence.wants_scores:
            reused = nodes if part is None else [*nodes, part]
            sequence.scores = _known_scores(sequence, reused)[: sequence.computed] or [None]
            # The logits at the end of what is cached score the token after it: two tokens are computed again, and
            # write the bits that stand there (one would go through the decode kernel).
            sequence.computed = max(0, sequence.computed - 2)
        if sequence.num_cached_tokens is None:
            sequence.num_cached_tokens = sequence.computed
        sequence.blocks = blocks + self.pool.allocate(self.shape.blocks_for(sequence.next_length) - len(blocks))
        return (part.block, sequence.blocks[len(blocks)]) if part is not None else None

    def lacks_block(self, sequence: Sequence) -> bool:
        """Whether the next token needs one more block."""
        return sequence.computed >= len(sequence.blocks) * self.block_tokens

    def can_grow(self) -> bool:
        return self.pool.available >= 1

    def grow(self, sequence: Sequence) -> None:
        """Make room for the next token of a sequence that lacks a block."""
        sequence.blocks += self.pool.allocate(1)

    def reserve(self, sequence: Sequence, num_tokens: int, spare: int) -> int:
        """Take blocks for `num_tokens` more tokens of a decoding sequence as long as `spare` blocks stay available.

        Returns for how many of them there is room then; there always is for the next one.
        """
        wanted = self.shape.blocks_for(sequence.computed + num_tokens) - len(sequence.blocks)
        if wanted > 0:
            sequence.blocks += self.pool.allocate(min(wanted, max(0, self.pool.available - spare)))
        return min(num_tokens, len(sequence.blocks) * self.block_tokens - sequence.computed)

    def can_fork(self, leader: Sequence, choice: Sequence) -> bool:
        """Whether the blocks that `choice` does not share with its leader are available, and one to spare."""
        return self.pool.available >= max(1, self._unshared_blocks(leader, choice))

    def fork(self, leader: Sequence, choice: Sequence) -> Copy | None:
        """Give `choice` the leader's computed prompt: full blocks shared, a partly filled one copied; and blocks for
        the tokens that it has to replay.

        Returns the block copy to make, if any.
        """
        full, partial = divmod(leader.prompt_length, self.block_tokens)
        shared = leader.blocks[:full]
        self.pool.share(shared)
        choice.computed = leader.prompt_length
        choice.blocks = shared + self.pool.allocate(self._unshared_blocks(leader, choice))
        return (leader.blocks[full], choice.blocks[full]) if partial else None

    def _unshared_blocks(self, leader: Sequence, choice: Sequence) -> int:
        return self.shape.blocks_for(len(choice.tokens)) - leader.prompt_length // self.block_tokens

    def publish(self, sequence: Sequence) -> None:
        """Let others find the full prompt blocks that this sequence has computed, with their scores, and at the end
        of the prompt the rest of it (a tail).

        Where the tree knows the same prefix by another block, the sequence takes that one and releases its own
        (both hold the same bits): so whoever holds a block holds all that lead to it. The rest of the prompt stays in
        the sequence's own block, to which it goes on appending.
        """
        if not self.share_prefixes:
            return
        full = min(sequence.computed, sequence.prompt_length) // self.block_tokens
        nodes = self.tree.insert(sequence.job.prompt, sequence.blocks[:full])
        for index, node in enumerate(nodes):
            own = sequence.blocks[index]
            if node.block != own:
                self.pool.share([node.block])
                self.pool.release([own])
                sequence.blocks[index] = node.block
        begin = full * self.block_tokens
        if not sequence.is_prefilling and sequence.prompt_length - begin >= self.min_shared_tokens:
            rest = sequence.job.prompt[begin:]
            nodes.append(self.tree.insert_tail(nodes, rest, sequence.blocks[full]))
        if sequence.wants_scores:
            _keep_scores(sequence, nodes, self.block_tokens)
        for node, own in zip(nodes, sequence.blocks, strict=False):
            if node.block == own and self.pool.remember(own):
                self._supersede(node)

    def release(self, sequence: Sequence) -> None:
        """Take the sequence's blocks back; what is published can still be found."""
        self.pool.release(sequence.blocks)
        sequence.blocks = []
        sequence.computed = 0

    def check(self, sequences: list[Sequence]) -> None:
        """AssertionError if any block is lost, counted wrongly or shared by mistake."""
        self.tree.check()
        self.pool.check([sequence.blocks for sequence in sequences], self.tree.blocks)

    def _partly_shared(self, sequence: Sequence, nodes: list[Node]) -> tuple[int, Node | None]:
        """The block that begins as the prompt goes on behind `nodes`, and how many of its tokens can be used."""
        if not self.share_prefixes:
            return 0, None
        begin = len(nodes) * self.block_tokens
        end = min(begin + self.block_tokens, shareable_tokens(sequence.prompt_length))
        for common, node in self.tree.nearest(nodes, sequence.job.prompt[begin:end]):
            common = min(common, _usable(node, sequence))
            if common >= self.min_shared_tokens:
                self.pool.touch(node.block)
                return common, node
        return 0, None

    def _supersede(self, node: Node) -> None:
        """Drop the tail that `node` contains, and keep its scores."""
        tail = self.tree.superseded(node)
        if tail is not None:
            node.scores = node.scores or tail.scores
            self.pool.drop(tail.block)


def _usable(node: Node, sequence: Sequence) -> int:
    """How many of a block's first tokens the sequence can use: those with scores, if it wants scores."""
    if not sequence.wants_scores:
        return len(node.key)
    assert sequence.job.score_top is not None
    return len(node.scores) if node.scores is not None and node.scores.top >= sequence.job.score_top else 0


def _known_scores(sequence: Sequence, nodes: list[Node]) -> Scores:
    scores: Scores = []
    for node in nodes:
        assert node.scores is not None and sequence.job.score_top is not None
        scores += node.scores.unpack(sequence.job.score_top)
    return scores


def _keep_scores(sequence: Sequence, nodes: list[Node], block_tokens: int) -> None:
    """Keep on the blocks what the sequence has scored of them, where that is more tokens than is known, or as many
    with more alternatives: a block without all its scores cuts off those behind it."""
    scores, top = sequence.scores, sequence.job.score_top
    assert scores is not None and top is not None
    for index, node in enumerate(nodes):
        begin = index * block_tokens
        count = min(len(scores) - begin, len(node.key))
        if count > 0 and (node.scores is None or (len(node.scores), node.scores.top) < (count, top)):
            node.scores = pack(scores[begin : begin + count], top)
