"""States of sequences and snapshots of prefixes: which gives way, where snapshots are wanted, and what is copied. What
they are for is tested by law (tests/laws/test_states.py)."""

from __future__ import annotations

import pytest

from onward.engine.prefix_tree import Node
from onward.engine.sequence import Sequence
from onward.engine.states import NONE, States
from tests.engine.harness import make_job

BLOCK = 32


def sequence(blocks: int, **options: object) -> Sequence:
    """Of a prompt of so many blocks, and two tokens more: all of its blocks can be shared."""
    made = Sequence(make_job([7] * (BLOCK * blocks + 2), **options), 0, 0)  # type: ignore[arg-type]
    made.blocks = [0]
    return made


def path(blocks: int) -> list[Node]:
    return [Node((index,), index, None) for index in range(blocks)]


class Copies(list[tuple[int, int]]):
    def __call__(self, source: int, target: int) -> None:
        self.append((source, target))


def computed(states: States, one: Sequence, nodes: list[Node], blocks: int) -> None:
    """Have a sequence come to the end of its first blocks."""
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
    assert states.num_reusable(second, nodes) == 3 and states.num_reusable(second, nodes[:2]) == 0
    states.begin(second, nodes, 3, BLOCK)
    assert copies[1:] == [(nodes[2].state, second.state)] and second.snapshot_ends == []
    states.check([first, second], nodes)
    assert states.num_available == 2


def test_the_snapshot_that_was_used_least_recently_gives_way() -> None:
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
    assert own[0].state == NONE and states.num_available == 2
    assert len(copies) == 5


def test_the_only_snapshot_becomes_the_state_of_who_begins_with_it() -> None:
    states, nodes = States(1, copies := Copies()), path(1)
    first = sequence(1)
    states.begin(first, [], 0, BLOCK)
    computed(states, first, nodes, 1)
    assert nodes[0].state == NONE, "there is no other state"
    states.release(first)
    nodes[0].state = states._take()
    states._snapshots[nodes[0].state] = nodes[0]
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
    assert (states.num_reusable(one, nodes), states.num_reusable(scored, nodes)) == (4, 0)


def test_a_fork_has_a_copy() -> None:
    states, leader, choice = States(2, copies := Copies()), sequence(1), sequence(1)
    states.begin(leader, [], 0, BLOCK)
    states.fork(leader, choice)
    assert copies == [(leader.state, choice.state)] and states.num_available == 0
    for each in (leader, choice):
        states.release(each)
        states.release(each)
    assert states.num_available == 2
