"""States of sequences and snapshots of prefixes: which is evicted, where snapshots are taken, and what is copied. Their
results are tested by law (tests/laws/test_states.py)."""

from __future__ import annotations

import pytest

from onward.engine.prefix_tree import Node
from onward.engine.sequence import Sequence
from onward.engine.states import NONE, States, max_sequences
from tests.engine.harness import make_job

BLOCK = 32


def sequence(blocks: int, **options: object) -> Sequence:
    """A sequence of a prompt of this many blocks and two more tokens, so that all of its blocks can be shared."""
    made = Sequence(make_job([7] * (BLOCK * blocks + 2), **options), 0, 0)  # type: ignore[arg-type]
    made.blocks = [0]
    return made


def path(blocks: int) -> list[Node]:
    return [Node((index,), index, None) for index in range(blocks)]


class Copies(list[tuple[int, int]]):
    def __call__(self, source: int, target: int) -> None:
        self.append((source, target))


def computed(states: States, one: Sequence, nodes: list[Node], blocks: int) -> None:
    """Advance a sequence to the end of its first blocks."""
    one.computed = blocks * BLOCK
    states.keep(one, nodes[:blocks])


def test_a_snapshot_is_a_copy_that_other_sequences_begin_with() -> None:
    states, nodes = States(4, copies := Copies()), path(3)
    first = sequence(3)
    states.begin(first, [], 0, BLOCK)
    assert first.snapshot_ends == [96] and not copies
    computed(states, first, nodes, 2)
    assert not copies, "no snapshot is wanted there"
    computed(states, first, nodes, 3)
    assert copies == [(first.state, nodes[2].state)]
    second = sequence(3)
    assert states.num_reusable(nodes, wants_scores=False) == 3
    assert states.num_reusable(nodes[:2], wants_scores=False) == 0
    states.begin(second, nodes, 3, BLOCK)
    assert copies[1:] == [(nodes[2].state, second.state)] and second.snapshot_ends == []
    states.check([first, second], nodes)
    assert states.num_available == 1, "one of the four is kept for snapshots"


def test_the_least_recently_used_snapshot_is_evicted() -> None:
    states = States(4, copies := Copies())
    paths = [path(1) for _ in range(3)]
    for nodes in paths:
        one = sequence(1)
        states.begin(one, [], 0, BLOCK)
        computed(states, one, nodes, 1)
        states.release(one)
    running = [sequence(1) for _ in range(2)]
    states.begin(running[0], paths[0], 1, BLOCK)  # the last free one; the first snapshot is now the newest
    states.begin(running[1], [], 0, BLOCK)
    assert [nodes[0].state != NONE for nodes in paths] == [True, False, True]
    states.check(running, [each for nodes in paths for each in nodes])
    computed(states, running[1], (own := path(1)), 1)
    assert [nodes[0].state != NONE for nodes in (*paths, own)] == [True, False, False, True]
    states.drop(own[0])
    assert own[0].state == NONE and states.num_available == 1, "one is kept for snapshots"
    assert len(copies) == 5


def test_one_state_in_eight_is_never_given_to_a_sequence() -> None:
    counts = [1, 2, 3, 4, 8, 11, 12, 18, 64, 128]
    assert [max_sequences(count, has_snapshots=True) for count in counts] == [1, 2, 3, 3, 7, 10, 10, 16, 56, 112]
    assert [max_sequences(count, has_snapshots=False) for count in counts] == counts


def left_by(states: States, one: Sequence) -> list[Node]:
    """The nodes of a finished prompt of one block."""
    nodes = path(1)
    states.begin(one, [], 0, BLOCK)
    computed(states, one, nodes, 1)
    states.release(one)
    return nodes


def test_snapshots_that_nothing_continues_do_not_displace_a_used_one() -> None:
    states = States(16, Copies())
    common = left_by(states, sequence(1))
    for _ in range(14):
        states.begin(sequence(1), common, 1, BLOCK)
    assert states.num_available == 0
    for _ in range(5):
        nodes = path(1)
        one = sequence(1)
        one.computed, one.snapshot_ends = BLOCK, [BLOCK]
        states.keep(one, nodes)
        assert nodes[0].state != NONE and common[0].state != NONE


def test_the_only_snapshot_is_kept_of_what_a_second_prompt_begins_with() -> None:
    states, prompts = States(4, Copies()), [path(2) for _ in range(3)]
    running = [sequence(2) for _ in range(3)]
    for one, nodes, num_cached in zip(running, prompts, (0, 1, 0), strict=True):
        states.begin(one, [], num_cached, BLOCK)
        computed(states, one, nodes, 1)
    kept = prompts[1][0]
    assert kept.state != NONE, "its block was cached, without a snapshot"
    for one, nodes in zip(running, prompts, strict=True):
        computed(states, one, nodes, 2)
        assert nodes[1].state == NONE and kept.state != NONE
    states.release(running[0])
    other = sequence(2)
    states.begin(other, [], 1, BLOCK)
    computed(states, other, prompts[0], 1)
    assert kept.state == NONE != prompts[0][0].state, "one that is used as well displaces it"


def test_the_only_snapshot_becomes_the_state_of_the_sequence_that_begins_with_it() -> None:
    states, nodes = States(1, copies := Copies()), path(1)
    first = sequence(1)
    states.begin(first, [], 0, BLOCK)
    computed(states, first, nodes, 1)
    assert nodes[0].state == NONE, "there is no other state"
    states.release(first)
    nodes[0].state = states._take()
    states._unused[nodes[0].state] = nodes[0]
    second = sequence(1)
    states.begin(second, nodes, 1, BLOCK)
    assert (second.state, nodes[0].state, copies) == (0, NONE, [])
    states.check([second], nodes)


@pytest.mark.parametrize(
    ("num_states", "blocks", "stride"), [(64, 20, 8), (16, 20, 8), (8, 20, 8), (8, 40, 16), (4, 40, 32), (2, 100, 64)]
)
def test_strides_depend_on_the_memory_and_are_multiples_of_each_other(
    num_states: int, blocks: int, stride: int
) -> None:
    states, one = States(num_states, Copies()), sequence(blocks)
    states.begin(one, [], 0, BLOCK)
    assert one.snapshot_ends == [*range(stride * BLOCK, blocks * BLOCK, stride * BLOCK), blocks * BLOCK]


def test_snapshots_are_made_where_prompts_part_and_a_block_earlier_for_scores() -> None:
    states = States(8, Copies())
    one, scored = sequence(7), sequence(7, score_top=1)
    states.begin(one, [], 4, BLOCK)
    assert one.snapshot_ends == [4 * BLOCK, 7 * BLOCK]
    states.begin(scored, [], 4, BLOCK)
    assert scored.snapshot_ends == [3 * BLOCK, 6 * BLOCK]
    nodes = path(4)
    nodes[3].state = 5
    assert [states.num_reusable(nodes, wants_scores=wants) for wants in (False, True)] == [4, 0]


def test_a_fork_has_a_copy() -> None:
    states, leader, choice = States(2, copies := Copies()), sequence(1), sequence(1)
    states.begin(leader, [], 0, BLOCK)
    states.fork(leader, choice)
    assert copies == [(leader.state, choice.state)] and states.num_available == 0
    for each in (leader, choice):
        states.release(each)
        states.release(each)
    assert states.num_available == 2


def test_accepted_drafts_are_computed_again_by_a_sequence_that_has_no_part_in_the_next_step() -> None:
    states = States(4, Copies())
    first, second, third = (sequence(1) for _ in range(3))
    for number, each in enumerate((first, second, third)):
        each.id, each.computed = number, 70
    states.schedule([first, second, third], [(first, 71), (second, 71)])
    first.computed, second.computed, third.computed = 75, 73, 71
    states.schedule([first, third], [(first, 76)])
    assert (first.computed, second.computed, third.computed) == (75, 71, 71)
    first.computed = 32  # it was preempted, and began anew
    states.schedule([], [])
    assert first.computed == 32
    second.computed = 90
    states.schedule([], [])
    assert second.computed == 90, "it had no drafts"


def test_displaced_snapshots_that_were_used_are_offered_to_whoever_keeps_them() -> None:
    displaced: list[tuple[Node, int]] = []
    states = States(3, Copies(), lambda node: displaced.append((node, node.state)))
    used, unused = left_by(states, sequence(1)), left_by(states, sequence(1))
    states.begin(first := sequence(1), used, 1, BLOCK)
    kept = used[0].state
    assert states.is_used(used[0]) and not states.is_used(unused[0]) and not displaced
    states.begin(second := sequence(1), [], 0, BLOCK)
    assert unused[0].state == NONE and not displaced, "nothing has continued from it"
    states.begin(third := sequence(1), used, 1, BLOCK)
    assert displaced == [(used[0], kept)] and third.state == kept and not states.is_used(used[0])
    states.check([first, second, third], [*used, *unused])


def test_a_snapshot_that_was_read_has_a_place_unless_all_states_are_sequences() -> None:
    states, (node, other) = States(2, Copies()), path(2)
    states.begin(one := sequence(1), [], 0, BLOCK)
    state = states.place(node, is_used=True)
    assert node.state == state != NONE and states.is_used(node)
    assert states.place(node, is_used=True) == NONE, "it has one"
    assert states.place(other, is_used=False) == NONE != states.place(other, is_used=True) == state
    assert node.state == NONE
    states.begin(two := sequence(1), [], 0, BLOCK)
    assert states.place(node, is_used=True) == NONE
    states.check([one, two], [node, other])
