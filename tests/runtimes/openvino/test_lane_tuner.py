"""The faster one of two lanes is used, even after it has become the other one."""

from __future__ import annotations

from collections.abc import Callable

from onward.runtimes.openvino.lane_tuner import STEPS_BETWEEN_TRIALS, TRIAL_STEPS, LaneTuner


def lanes(tuner: LaneTuner, steps: int, seconds: Callable[[int, int], float]) -> list[int]:
    """The lanes of so many steps, each of which takes seconds(lane, its number)."""
    chosen = []
    for number in range(steps):
        chosen.append(tuner.lane)
        tuner.record(seconds(tuner.lane, number))
    return chosen


def test_the_faster_lane_is_found_soon_whichever_it_is() -> None:
    def first(lane: int, number: int) -> float:
        return 1.0 + lane

    def second(lane: int, number: int) -> float:
        return 2.0 - lane

    for faster, seconds in enumerate((first, second)):
        assert set(lanes(LaneTuner(), 10 * TRIAL_STEPS, seconds)[5 * TRIAL_STEPS :]) == {faster}


def test_the_other_lane_is_rarely_tried() -> None:
    chosen = lanes(LaneTuner(), 10 * STEPS_BETWEEN_TRIALS, lambda lane, number: 1.0 + lane)
    assert sum(chosen) < 0.03 * len(chosen)


def test_a_change_of_the_machine_is_noticed() -> None:
    tuner = LaneTuner()
    lanes(tuner, 2 * STEPS_BETWEEN_TRIALS, lambda lane, number: 1.0 + lane)
    chosen = lanes(tuner, 2 * STEPS_BETWEEN_TRIALS, lambda lane, number: 2.0 - lane)
    assert set(chosen[-STEPS_BETWEEN_TRIALS // 2 :]) == {1}


def test_the_first_steps_of_a_trial_and_single_slow_ones_do_not_count() -> None:
    steps_of_lane = [0, 0]

    def seconds(lane: int, number: int) -> float:
        steps_of_lane[lane] += 1
        is_waking = lane == 1 and steps_of_lane[1] % (2 * TRIAL_STEPS) in range(1, TRIAL_STEPS)
        return 30.0 if is_waking or number % 7 == 0 else 2.0 - lane

    assert set(lanes(LaneTuner(), 20 * TRIAL_STEPS, seconds)[-5 * TRIAL_STEPS :]) == {1}


def test_equally_fast_lanes_change_nothing() -> None:
    chosen = lanes(LaneTuner(), 4 * STEPS_BETWEEN_TRIALS, lambda lane, number: 1.0)
    assert chosen[-TRIAL_STEPS:] == [0] * TRIAL_STEPS
