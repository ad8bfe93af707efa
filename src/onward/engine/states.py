"""The states of a model whose sequences have one: which belongs to a sequence, and which is a snapshot of a prefix.

A sequence that runs owns a state, which each step advances. A snapshot is the state after a block of the prefix tree:
a prompt that begins with it continues from a copy, and computes again what follows the deepest one. Snapshots have the
states that no sequence needs, and in any case a share of all: without it, prompts with a shared prefix would each
be computed from their first token whenever more of them wait than there are states.

A snapshot is used once a second prompt begins with it. Of the used and the unused ones, the larger group gives
way, the least recently used or made first: prompts that nothing continues do not displace what many begin with.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable
from collections.abc import Sequence as ReadOnly

from onward.engine.prefix_tree import Node
from onward.engine.sequence import Sequence, shareable_tokens

NONE = -1
"""Of a sequence or node without a state."""
RESERVED_FRACTION = 1 / 8
"""Of all states, rounded: how many are never a sequence's."""
STRIDED_FRACTION = 1 / 4
"""Of all states: in how many one prompt leaves snapshots at a stride, at most."""
MIN_STRIDE_BLOCKS = 8
"""Between two snapshots of a prompt: each costs a step of its own, and a copy."""

CopyState = Callable[[int, int], None]
"""Copies a state to another one; see `model.RecurrentModel`."""
Displaced = Callable[[Node], None]
"""Called when a node is about to lose its snapshot, from which prompts have continued, to another one or a sequence."""


def max_sequences(num_states: int, *, has_snapshots: bool) -> int:
    """Return how many sequences have one of so many states at the same time."""
    return num_states - int(num_states * RESERVED_FRACTION + 0.5) if has_snapshots else num_states


class States:
    """Counts the states. Copies are made at once, between steps. Engine thread only."""

    def __init__(
        self,
        num_states: int,
        copy: CopyState,
        displaced: Displaced = lambda node: None,
        *,
        has_snapshots: bool = True,
    ) -> None:
        self.num_states = num_states
        self.max_sequences = max_sequences(num_states, has_snapshots=has_snapshots)
        self._copy, self._displaced, self._has_snapshots = copy, displaced, has_snapshots
        self._free = list(range(num_states - 1, -1, -1))
        self._unused: OrderedDict[int, Node] = OrderedDict()
        self._used: OrderedDict[int, Node] = OrderedDict()
        """Snapshots, those that give way first before others."""
        self._drafted: list[tuple[Sequence, int]] = []
        """The sequences that had drafts in the last step, and how many tokens their states had processed after it."""

    @property
    def num_available(self) -> int:
        """How many sequences may take a state now."""
        num_taken = self.num_states - len(self._free) - len(self._unused) - len(self._used)
        return self.max_sequences - num_taken

    def num_reusable(self, nodes: ReadOnly[Node], *, wants_scores: bool) -> int:
        """Return how many of a prompt's cached blocks need not be computed: up to the deepest snapshot. Of a prompt
        that is scored another cached block has to follow, with the score of its first token."""
        limit = max(0, len(nodes) - wants_scores)
        return max((number for number in range(1, limit + 1) if nodes[number - 1].state != NONE), default=0)

    def begin(self, sequence: Sequence, nodes: ReadOnly[Node], num_cached: int, block_tokens: int) -> None:
        """Give a sequence a state: that after `nodes`, its cached blocks that need not be computed. `num_cached`: all
        of its cached blocks. Decides where snapshots are made: after what the prompt has in common with others, after
        its last block, and at a stride."""
        source = nodes[-1].state if nodes else NONE
        if source != NONE:
            self._unused.pop(source, None)
            self._used[source] = nodes[-1]
            self._used.move_to_end(source)
        sequence.state = self._take()
        if source not in (NONE, sequence.state):
            self._copy(source, sequence.state)
        last = shareable_tokens(sequence.prompt_length) // block_tokens
        shared = num_cached - sequence.wants_scores
        sequence.shared_end = shared * block_tokens
        wanted = (
            {last - sequence.wants_scores, shared, *range(0, last, self._stride(last))} if self._has_snapshots else ()
        )
        sequence.snapshot_ends = sorted(each * block_tokens for each in wanted if each > len(nodes))

    def _stride(self, num_blocks: int) -> int:
        """Return how many blocks are between two snapshots of a prompt. Strides are multiples of each other: prompts of
        different lengths with a shared prefix have snapshots in the same places."""
        stride = MIN_STRIDE_BLOCKS
        while num_blocks // stride > max(1, int(self.num_states * STRIDED_FRACTION)):
            stride *= 2
        return stride

    def keep(self, sequence: Sequence, nodes: ReadOnly[Node]) -> None:
        """Make a snapshot of a sequence that has just computed the last of `nodes`, if one is wanted there. It is used
        already if that had been computed before, without a snapshot."""
        if sequence.computed not in sequence.snapshot_ends:
            return
        is_used = sequence.computed == sequence.shared_end
        state = self.place(nodes[-1], is_used=is_used)
        if state == NONE:
            return
        self._copy(sequence.state, state)
        if is_used:
            self._used.move_to_end(state, last=False)  # prompts may come from the others at this moment

    def place(self, node: Node, *, is_used: bool) -> int:
        """Return a state for a node's snapshot, which the caller writes. NONE if it has one, if there is no place, or
        only that of a used one for one that is not."""
        others = len(self._unused) + len(self._used)
        has_place = bool(self._free) or others > 1 or (others == 1 and (is_used or not self._used))
        if node.state != NONE or not has_place:
            return NONE
        node.state = self._take()
        (self._used if is_used else self._unused)[node.state] = node
        return node.state

    def is_used(self, node: Node) -> bool:
        """Whether a node has a snapshot from which prompts have continued, or would have."""
        return node.state in self._used

    def schedule(self, decoding: ReadOnly[Sequence], drafted: list[tuple[Sequence, int]]) -> None:
        """Note which sequences decode in the next step, and which with drafts: each with its end without them. Accepted
        drafts of the last step, which its state has not processed, are computed again where a sequence has no part in
        this one: what is needed to catch up is kept for one step."""
        ids = {sequence.id for sequence in decoding} if self._drafted else ()
        for sequence, num_processed in self._drafted:
            if sequence.id not in ids:
                sequence.computed = min(sequence.computed, num_processed)
        self._drafted = drafted

    def fork(self, leader: Sequence, choice: Sequence) -> None:
        """Give a choice a copy of its leader's state."""
        choice.state = self._take()
        self._copy(leader.state, choice.state)

    def release(self, sequence: Sequence) -> None:
        """Take a sequence's state back, if it has one."""
        if sequence.state != NONE:
            self._free.append(sequence.state)
            sequence.state = NONE

    def drop(self, node: Node) -> None:
        """Drop the snapshot of a node that leaves the tree, if it has one."""
        if node.state != NONE:
            (self._unused if node.state in self._unused else self._used).pop(node.state)
            self._free.append(node.state)
            node.state = NONE

    def check(self, sequences: Iterable[Sequence], nodes: Iterable[Node]) -> None:
        """Raise AssertionError if a state is lost, or belongs to two. For tests."""
        owned = [sequence.state for sequence in sequences if sequence.blocks]
        kept = {node.state: node for node in nodes if node.state != NONE}
        assert kept == {**self._unused, **self._used}, "the snapshots are not those of the prefix tree"
        assert sorted([*owned, *kept, *self._free]) == list(range(self.num_states)), "a state is lost"

    def _take(self) -> int:
        if self._free:
            return self._free.pop()
        snapshots = self._unused if len(self._unused) >= len(self._used) else self._used
        state, node = snapshots.popitem(last=False)
        if snapshots is self._used:
            self._displaced(node)
        node.state = NONE
        return state
