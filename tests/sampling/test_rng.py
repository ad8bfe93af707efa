"""The counter-based random numbers: fixed forever, uniform, and independent between neighbours."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from onward.sampling.rng import mix, uniform
from onward.sampling.sampler import Sampler
from tests.sampling.harness import sample_many

COUNT = 16_384


def chi_square(counts: np.ndarray, expected: float) -> float:
    """Return by how many standard deviations equal bins exceed the expected statistic (normal approximation)."""
    degrees = counts.size - 1
    statistic = float(((counts - expected) ** 2 / expected).sum())
    return (statistic - degrees) / float(np.sqrt(2 * degrees))


def test_the_finaliser_is_the_published_splitmix64() -> None:
    golden = 0x9E3779B97F4A7C15  # first outputs of the reference generator with state 1234567
    states = [(1234567 + golden * (i + 1)) % 2**64 for i in range(3)]
    assert [mix(state) for state in states] == [
        6457827717110365317,
        3203168211198807973,
        9817491932198370423,
    ]


def test_numbers_do_not_change_between_versions() -> None:
    assert uniform(0, 0, 0, 0) == 0.1296456182997474
    assert uniform(2**64 - 1, 127, 4095, 3) == 0.40048771005649775


@pytest.mark.parametrize(
    "numbered",
    [
        pytest.param(lambda i: uniform(i, 0, 0, 0), id="seeds"),
        pytest.param(lambda i: uniform(7, i, 0, 0), id="choices"),
        pytest.param(lambda i: uniform(7, 0, i, 0), id="positions"),
        pytest.param(lambda i: uniform(7, 0, 0, i), id="attempts"),
        pytest.param(lambda i: uniform(i << 32, 3, 5, 0), id="high halves of seeds"),
    ],
)
def test_numbers_of_consecutive_counters_are_uniform(numbered: Callable[[int], float]) -> None:
    numbers = np.array([numbered(i) for i in range(COUNT)])
    assert numbers.min() >= 0 and numbers.max() < 1
    assert abs(chi_square(np.histogram(numbers, 128, (0, 1))[0], COUNT / 128)) < 4
    pairs = np.histogram2d(numbers[:-1], numbers[1:], 12, ((0, 1), (0, 1)))[0]
    assert abs(chi_square(pairs.ravel(), (COUNT - 1) / 144)) < 4


@pytest.mark.parametrize(
    "neighbour",
    [
        pytest.param(lambda seed, c, p: uniform(seed + 1, c, p, 0), id="seed + 1"),
        pytest.param(lambda seed, c, p: uniform(seed, c + 1, p, 0), id="choice + 1"),
        pytest.param(lambda seed, c, p: uniform(seed, c, p + 1, 0), id="position + 1"),
        pytest.param(lambda seed, c, p: uniform(seed, c, p, 1), id="attempt + 1"),
        pytest.param(lambda seed, c, p: uniform(seed + 1, c, p - 1, 0), id="seed + 1, position - 1"),
        pytest.param(lambda seed, c, p: uniform(seed, c + 1, p - 1, 0), id="choice + 1, position - 1"),
    ],
)
def test_neighbours_are_independent(neighbour: Callable[[int, int, int], float]) -> None:
    counters = [(seed, c, p) for seed in range(16) for c in range(16) for p in range(1, 65)]
    own = np.array([uniform(*each, 0) for each in counters])
    other = np.array([neighbour(*each) for each in counters])
    pairs = np.histogram2d(own, other, 12, ((0, 1), (0, 1)))[0]
    assert abs(chi_square(pairs.ravel(), len(counters) / 144)) < 4
    assert abs(np.corrcoef(own, other)[0, 1]) < 4 / np.sqrt(len(counters))


@pytest.mark.parametrize("seed", [0, 1, 2**31, 2**63, 2**64 - 1])
def test_the_kernels_use_the_same_numbers(seed: int) -> None:
    vocabulary = 4096
    tokens = sample_many(Sampler(vocabulary), np.zeros(vocabulary, np.float32), 64, accepted=(5, 6), seed=seed)
    assert tokens.tolist() == [int(uniform(seed, number, 2, 0) * vocabulary) for number in range(64)]
