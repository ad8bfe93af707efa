"""Sums along a ranking, and searches in it, against arrays of sums by numpy: the same numbers to the last bit."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from onward.sampling import ranking
from tests.kernels import float_definitions as definitions
from tests.sampling.compiled import call, padded

Numbers = NDArray[np.float32]


@st.composite
def ranked_logits(draw: st.DrawFn) -> Numbers:
    """Logits from the highest to the lowest, with ties."""
    rng = np.random.default_rng(draw(st.integers(0, 999)))
    logits = np.round(rng.standard_normal(draw(st.integers(1, 400))) * 4, draw(st.sampled_from((0, 1, 6))))
    found: Numbers = np.sort(logits)[::-1].astype(np.float32)
    return found


def weights_of(logits: Numbers, scale: float = 1.0) -> Numbers:
    """Return the weights by their definition."""
    log2_e = np.float32(scale) * np.float32(1.4426950408889634)
    return definitions.exp2((logits - logits[0]) * log2_e)


@given(ranked_logits(), st.sampled_from((1.0, 0.7, 100.0, 1e-3)))
def test_weights_have_the_bits_of_their_definition(logits: Numbers, scale: float) -> None:
    weights = np.empty(logits.size + 16, np.float32)
    call(ranking.write_weights, padded(logits), logits.size, scale, weights)
    assert weights[: logits.size].tobytes() == weights_of(logits, scale).tobytes()


def in_sixteens(terms: NDArray[np.float64]) -> float:
    """Return a sum in the order of the kernels: 16 at a time, and then halves."""
    lanes = np.zeros(16)
    for start in range(0, terms.size, 16):
        part = terms[start : start + 16]
        lanes[: part.size] += part
    while lanes.size > 1:
        lanes = lanes[: lanes.size // 2] + lanes[lanes.size // 2 :]
    return float(lanes[0])


@given(ranked_logits())
def test_sums_are_added_sixteen_at_a_time(logits: Numbers) -> None:
    weights, size = weights_of(logits), logits.size
    assert call(ranking.mass_of, padded(weights), size) == in_sixteens(weights.astype(np.float64))
    products = weights * (logits[0] - logits)
    found = call(ranking.weighted_distance, padded(logits), padded(weights), size, 1.0)
    assert found == in_sixteens(products.astype(np.float64))
    differences = logits.astype(np.float64) - in_sixteens(logits.astype(np.float64)) / size
    expected = np.sqrt(in_sixteens(differences * differences) / size)
    assert call(ranking.deviation_of, padded(logits), size) == expected


@given(ranked_logits(), st.floats(0, 1.2), st.integers(0, 400))
def test_the_place_where_a_sum_passes_a_goal_is_numpys(logits: Numbers, share: float, place: int) -> None:
    weights = weights_of(logits)
    sums = np.cumsum(weights, dtype=np.float64)
    for goal in (share * float(sums[-1]), float(sums[place % sums.size])):
        assert call(ranking.count_below, weights, weights.size, goal) == np.searchsorted(sums, goal, side="left")
        assert call(ranking.count_up_to, weights, weights.size, goal) == np.searchsorted(sums, goal, side="right")


@given(ranked_logits(), st.floats(-10, 10), st.integers(0, 400))
def test_as_many_are_at_least_a_bound_as_numpy_counts(logits: Numbers, bound: float, place: int) -> None:
    for each in (bound, float(logits[place % logits.size])):
        assert call(ranking.count_at_least, logits, logits.size, each) == np.count_nonzero(
            logits.astype(np.float64) >= each
        )


@given(ranked_logits(), st.floats(0, 1.2))
def test_sums_of_bends_are_those_of_second_differences(logits: Numbers, share: float) -> None:
    weights = weights_of(logits)
    sums = np.cumsum(np.abs(np.diff(weights, n=2)), dtype=np.float64)
    if sums.size:
        assert call(ranking.sum_of_bends, weights, weights.size) == sums[-1]
        goal = share * float(sums[-1])
        expected = np.searchsorted(sums, goal, side="right")
        assert call(ranking.count_of_bends, weights, weights.size, goal) == expected


@given(ranked_logits(), st.floats(0, 1.2), st.floats(-1, 30))
def test_the_interval_around_a_distance_has_the_nearest_ranks(logits: Numbers, share: float, centre: float) -> None:
    weights, exact = weights_of(logits), (logits[0] - logits).astype(np.float64)
    goal, found = share * float(weights.sum()), np.empty(2, np.int64)
    below = int(np.count_nonzero(exact < centre))
    outwards = [*range(below - 1, -1, -1), *range(below, weights.size)]
    ranks = sorted(outwards, key=lambda rank: abs(exact[rank] - centre))
    count = 1 + int(np.searchsorted(np.cumsum(weights[ranks], dtype=np.float64), goal, side="right"))
    kept = ranks[:count]
    call(ranking.find_nearest, logits, weights, weights.size, 1.0, centre, goal, found)
    assert found.tolist() == [min(kept), max(kept) + 1]


@pytest.mark.parametrize("size", [1, 2])
def test_two_weights_have_no_bend(size: int) -> None:
    numbers = np.ones(size, np.float32)
    assert call(ranking.sum_of_bends, numbers, size) == 0
    assert call(ranking.count_of_bends, numbers, size, 0.0) == 0
