"""Of two ways to compute a step the faster one is used, also after it has become the other one."""

from __future__ import annotations

from collections.abc import Callable

from onward.runtimes.openvino.contest import AGAIN, RUN, Contest


def ways(contest: Contest, steps: int, seconds: Callable[[int, int], float]) -> list[int]:
    """The ways that so many steps go, each of which takes seconds(way, its number)."""
    taken = []
    for number in range(steps):
        taken.append(contest.way)
        contest.took(seconds(contest.way, number))
    return taken


def test_the_faster_way_is_found_soon_whichever_it_is() -> None:
    for faster in (0, 1):
        taken = ways(Contest(), 10 * RUN, lambda way, number, faster=faster: 1.0 if way == faster else 2.0)
        assert set(taken[5 * RUN :]) == {faster}


def test_the_other_way_is_tried_seldom() -> None:
    taken = ways(Contest(), 10 * AGAIN, lambda way, number: 1.0 + way)
    assert sum(taken) < 0.03 * len(taken)


def test_a_change_of_the_machine_is_noticed() -> None:
    contest = Contest()
    ways(contest, 2 * AGAIN, lambda way, number: 1.0 + way)
    taken = ways(contest, 2 * AGAIN, lambda way, number: 2.0 - way)
    assert set(taken[-AGAIN // 2 :]) == {1}


def test_the_first_steps_of_a_trial_and_single_late_ones_do_not_count() -> None:
    contest = Contest()
    number_of_way = [0, 0]

    def seconds(way: int, number: int) -> float:
        number_of_way[way] += 1
        waking = way == 1 and number_of_way[1] % (2 * RUN) in range(1, RUN)
        return 30.0 if waking or number % 7 == 0 else 2.0 - way

    assert set(ways(contest, 20 * RUN, seconds)[-5 * RUN :]) == {1}


def test_equal_ways_change_nothing() -> None:
    assert ways(Contest(), 4 * AGAIN, lambda way, number: 1.0)[-RUN:] == [0] * RUN
