"""Compiled sums along a ranking, in its order: where a sum passes a goal, and how much there is in all.

Every sum is added from the first number to the last, in float64, as numpy's cumsum does; but no array of sums is
written, and nothing behind the goal is read. All functions release the GIL. `weights` and `distances` are float32 [n],
n ≥ 1, contiguous, as in shaping.Ranking; they are only read.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from onward.sampling.compilation import cached, source_digest
from onward.sampling.vocab_blocks import compiled

COMPILED_FILES = ("vocab_blocks.py", "running_sums.py")
"""The files of this folder that hold compiled code of these sums."""

_SUM, _COUNT, _SUM_OF_BENDS, _COUNT_OF_BENDS, _INTERVAL = range(5)

Weights = NDArray[np.float32]


@compiled()
def bend(weights: Any, i: Any) -> Any:
    """Return by how much the weights fall more, or less, before weight i + 1 than behind it (float32)."""
    return abs((weights[i] - weights[i + 1]) - (weights[i + 1] - weights[i + 2]))


@compiled()
def first_at_or_above(distances: Any, centre: Any) -> Any:
    """Return how many of the distances, which never descend, are below `centre` (float64)."""
    low, high = 0, distances.size
    while low < high:
        middle = (low + high) // 2
        if np.float64(distances[middle]) - centre < 0.0:
            low = middle + 1
        else:
            high = middle
    return low


@compiled()
def interval_around(distances: Any, weights: Any, centre: Any, goal: Any) -> Any:
    """Return (start, end) of the ranks whose distance is closest to `centre` (float64), as many as have a sum of
    weights above `goal`, else all. Of two that are as close, the lower rank comes first."""
    low = first_at_or_above(distances, centre)
    high, total = low, 0.0
    while low > 0 or high < distances.size:
        is_lower_next = high == distances.size
        if low > 0 and not is_lower_next:
            is_lower_next = centre - np.float64(distances[low - 1]) <= np.float64(distances[high]) - centre
        if is_lower_next:
            low -= 1
            total += weights[low]
        else:
            total += weights[high]
            high += 1
        if total > goal:
            break
    return low, high


@compiled()
def run(task: Any, distances: Any, weights: Any, goal: Any, centre: Any, includes_goal: Any) -> Any:
    """Do one of the tasks; return (int64, int64, float64), of which the task says what it means."""
    total = 0.0
    if task == _SUM:
        for weight in weights:
            total += weight
        return 0, weights.size, total
    if task == _COUNT:
        for i in range(weights.size):
            total += weights[i]
            if total > goal or (total == goal and not includes_goal):
                return 0, i, total
        return 0, weights.size, total
    if task == _INTERVAL:
        start, end = interval_around(distances, weights, centre, goal)
        return start, end, 0.0
    for i in range(weights.size - 2):
        total += bend(weights, i)
        if task == _COUNT_OF_BENDS and total > goal:
            return 0, i, total
    return 0, max(0, weights.size - 2), total


def entry_point() -> Any:
    """Return `run`, compiled once per machine and kept in numba's cache."""
    digest = source_digest(COMPILED_FILES)

    def running_sums(*arguments: Any) -> Any:
        return run(*arguments) if digest >= 0 else (0, 0, 0.0)

    return cached(running_sums)


_run = entry_point()


def sum_in_order(weights: Weights) -> float:
    """Return the sum of the weights."""
    return float(_run(_SUM, weights, weights, 0.0, 0.0, False)[2])


def count_below(weights: Weights, goal: float) -> int:
    """Return how many of the sums of the first 1, 2, … weights are < goal."""
    return int(_run(_COUNT, weights, weights, goal, 0.0, False)[1])


def count_up_to(weights: Weights, goal: float) -> int:
    """Return how many of the sums of the first 1, 2, … weights are ≤ goal."""
    return int(_run(_COUNT, weights, weights, goal, 0.0, True)[1])


def sum_of_bends(weights: Weights) -> float:
    """Return the sum of the n - 2 bends of the weights: the absolute second differences."""
    return float(_run(_SUM_OF_BENDS, weights, weights, 0.0, 0.0, False)[2])


def count_of_bends(weights: Weights, goal: float) -> int:
    """Return how many of the sums of the first 1, 2, … bends are ≤ goal."""
    return int(_run(_COUNT_OF_BENDS, weights, weights, goal, 0.0, False)[1])


def nearest(distances: Weights, weights: Weights, centre: float, goal: float) -> tuple[int, int]:
    """Return (start, end) of the ranks whose distance is closest to `centre`, as many as have a sum of weights above
    `goal`, else all. `distances` never descend."""
    start, end, _ = _run(_INTERVAL, distances, weights, goal, centre, False)
    return int(start), int(end)
