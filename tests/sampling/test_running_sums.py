"""Sums along a ranking, against arrays of sums by numpy: the same numbers to the last bit."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from onward.sampling.running_sums import (
    count_below,
    count_of_bends,
    count_up_to,
    nearest,
    sum_in_order,
    sum_of_bends,
)

Numbers = NDArray[np.float32]


@st.composite
def weights(draw: st.DrawFn) -> Numbers:
    """Weights of a ranking, the first of which is 1; with ties."""
    rng = np.random.default_rng(draw(st.integers(0, 999)))
    logits = np.round(rng.standard_normal(draw(st.integers(1, 400))) * 4, draw(st.sampled_from((0, 1, 6))))
    ranked = np.sort(logits)[::-1].astype(np.float32)
    found: Numbers = np.exp(ranked - ranked[0])
    return found


@given(weights(), st.floats(0, 1.2), st.integers(0, 400))
def test_sums_of_weights(numbers: Numbers, share: float, place: int) -> None:
    sums = np.cumsum(numbers, dtype=np.float64)
    assert sum_in_order(numbers) == sums[-1]
    for goal in (share * float(sums[-1]), float(sums[place % sums.size])):
        assert count_below(numbers, goal) == np.searchsorted(sums, goal, side="left")
        assert count_up_to(numbers, goal) == np.searchsorted(sums, goal, side="right")


@given(weights(), st.floats(0, 1.2))
def test_sums_of_bends(numbers: Numbers, share: float) -> None:
    sums = np.cumsum(np.abs(np.diff(numbers, n=2)), dtype=np.float64)
    if sums.size:
        assert sum_of_bends(numbers) == sums[-1]
        assert count_of_bends(numbers, share * sums[-1]) == np.searchsorted(sums, share * sums[-1], side="right")


@given(weights(), st.floats(0, 1.2), st.floats(-1, 30))
def test_the_interval_around_a_distance(numbers: Numbers, share: float, centre: float) -> None:
    distances = -np.log(numbers)
    goal = share * sum_in_order(numbers)
    exact = distances.astype(np.float64)
    below = int(np.count_nonzero(exact < centre))
    outwards = [*range(below - 1, -1, -1), *range(below, numbers.size)]
    ranks = sorted(outwards, key=lambda rank: abs(exact[rank] - centre))
    count = 1 + int(np.searchsorted(np.cumsum(numbers[ranks], dtype=np.float64), goal, side="right"))
    kept = ranks[:count]
    assert nearest(distances, numbers, centre, goal) == (min(kept), max(kept) + 1)


@pytest.mark.parametrize("size", [1, 2])
def test_two_weights_have_no_bend(size: int) -> None:
    numbers = np.ones(size, np.float32)
    assert sum_of_bends(numbers) == count_of_bends(numbers, 0.0) == 0
