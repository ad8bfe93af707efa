"""Slots of an address: they go round among clients, and follow priorities among the choices of one."""

from __future__ import annotations

import asyncio

from hypothesis import given
from hypothesis import strategies as st

from onward.engines.upstreams.slots import Slots


def order(
    number: int,
    waiting: list[tuple[int, int]],
    leaves: frozenset[int] = frozenset(),
    background: frozenset[int] = frozenset(),
    weights: tuple[int, ...] = (1, 1, 1),
) -> list[int]:
    """The order in which choices, as (client, priority), get a slot; those in `leaves` leave while they wait, those in
    `background` are of batches; clients have `weights`."""
    found: list[int] = []

    async def run() -> None:
        slots, most = Slots(number), 0

        async def one(index: int, client: int, priority: int) -> None:
            nonlocal most
            async with slots.slot(client, (index in background, priority), weight=weights[client]):
                found.append(index)
                most = max(most, slots._taken.total())
                await asyncio.sleep(0)

        tasks = [asyncio.create_task(one(index, *each)) for index, each in enumerate(waiting)]
        await asyncio.sleep(0)
        for index in leaves:
            tasks[index].cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        assert most <= number and not slots._taken and not slots._waiting

    asyncio.run(run())
    return found


def test_choices_of_one_client_have_a_slot_by_priority_then_by_arrival() -> None:
    assert order(1, [(0, 5), (0, 5), (0, 0), (0, 5), (0, -1)]) == [0, 4, 2, 1, 3]


def test_a_client_with_many_choices_does_not_hold_the_others() -> None:
    assert order(2, [(0, 0), (0, 0), (0, 0), (0, 0), (1, 9), (2, 9)])[:5] == [0, 1, 4, 2, 5]


def test_what_is_computed_in_the_background_waits_for_all_others() -> None:
    """Whatever its client and priority."""
    waiting = [(0, 0), (0, -9), (1, -9), (0, 0), (2, 0), (2, 0)]
    assert order(1, waiting, background=frozenset({0, 1, 2})) == [0, 3, 4, 5, 1, 2]


def test_clients_have_slots_by_their_weights() -> None:
    waiting = [*[(2, 0)] * 4, *[(0, 0)] * 4, *[(1, 0)] * 4]

    def first_four(*weights: int) -> list[int]:
        return sorted(waiting[index][0] for index in order(4, waiting, weights=weights)[4:8])

    assert first_four(1, 1, 1) == [0, 0, 1, 1] and first_four(1, 3, 1) == [0, 1, 1, 1]


def test_a_choice_that_is_sent_away_has_no_slot() -> None:
    """The next one is the same as without it."""

    async def run() -> list[tuple[str, bool]]:
        slots, found = Slots(1), list[tuple[str, bool]]()

        async def one(job: str, client: int) -> None:
            async with slots.slot(client, (False, 0), job) as has_slot:
                found.append((job, has_slot))
                await asyncio.sleep(0)

        tasks = [asyncio.create_task(one(job, client)) for job, client in (("a", 0), ("b", 0), ("c", 1), ("d", 1))]
        await asyncio.sleep(0)
        assert [slots.first_of(lambda job, may=may: job in may) for may in ("abcd", "b", "d", "")] == [  # type: ignore[misc]
            "c", "b", "d", None,
        ]  # fmt: skip
        slots.send_away("c")
        assert slots.first_of(lambda job: True) == "d"
        await asyncio.gather(*tasks)
        assert not slots._taken and not slots._waiting
        return found

    assert asyncio.run(run()) == [("a", True), ("c", False), ("b", True), ("d", True)]


CHOICES = st.lists(st.tuples(st.integers(0, 2), st.integers(-1, 1)), max_size=12)


@given(CHOICES, st.integers(1, 4), st.sets(st.integers(0, 11)))
def test_every_choice_that_stays_has_a_slot_once(waiting: list[tuple[int, int]], number: int, leaves: set[int]) -> None:
    leaving = frozenset(index for index in leaves if number <= index < len(waiting))
    found = order(number, waiting, leaving)
    assert len(found) == len(set(found)) and set(range(len(waiting))) - leaving <= set(found)
