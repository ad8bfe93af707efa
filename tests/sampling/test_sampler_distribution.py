"""Sampled tokens against the exact distribution: chi-square tests with fixed seeds."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from onward.sampling.sampler import Sampler
from tests.examples import slow_but
from tests.sampling.harness import Logits, choice, exact_logprobs, normal, sample_many

NUM_SAMPLES = 20_000


def exact_distribution(
    row: Logits, *, temperature: float = 1, top_k: int = 0, top_p: float = 1, min_p: float = 0
) -> NDArray[np.float64]:
    order = np.lexsort((np.arange(row.size), -row))
    p: NDArray[np.float64] = np.exp(exact_logprobs(row, temperature))
    kept = np.zeros(row.size, bool)
    kept[order[: top_k or None]] = True
    kept &= p >= min_p * p.max()
    p = np.where(kept, p, 0) / p[kept].sum()
    mass_above = np.cumsum(p[order]) - p[order]
    p[order[mass_above >= top_p]] = 0
    p /= p.sum()
    return p


def sampled_by_100_choices(row: Logits, **params: Any) -> list[int]:
    """Return NUM_SAMPLES tokens: an equal number of positions of each choice."""
    sampler, logits = Sampler(row.size), row.reshape(1, -1)
    choices = [choice(number=number, seed=2024, **params) for number in range(100)]
    tokens = []
    for _ in range(NUM_SAMPLES // 100):
        new = [sampled.token for sampled in sampler.sample(logits, [0] * 100, choices, [None] * 100)]
        for one, token in zip(choices, new, strict=True):
            one.accept(token)
        tokens += new
    return tokens


PARAMS: list[dict[str, Any]] = [
    {},
    {"temperature": 0.7},
    {"temperature": 2.0, "top_p": 0.9},
    {"top_p": 0.5},
    {"top_k": 12},
    {"min_p": 0.1},
    {"temperature": 1.3, "top_k": 30, "top_p": 0.8, "min_p": 0.02},
]


@pytest.mark.parametrize("size", [40, 1300])
@pytest.mark.parametrize("params", slow_but([PARAMS[0], PARAMS[3], PARAMS[-1]], PARAMS))
def test_samples_follow_the_exact_distribution(size: int, params: dict[str, Any]) -> None:
    row = np.round(normal(size, scale=1.5, seed=size) * 4) / np.float32(4)  # with ties
    expected = exact_distribution(row, **params) * NUM_SAMPLES
    counts = np.bincount(sampled_by_100_choices(row, **params), minlength=size)
    assert counts[expected == 0].sum() == 0
    common = expected >= 8
    observed = np.append(counts[common], counts[~common].sum())
    wanted = np.append(expected[common], expected[~common].sum())
    statistic = float(((observed - wanted)[wanted > 0] ** 2 / wanted[wanted > 0]).sum())
    degrees = int((wanted > 0).sum()) - 1
    assert statistic < degrees + 4 * np.sqrt(2 * degrees) + 4


def test_the_positions_of_one_choice_are_independent() -> None:
    """Successive samples of one sequence, as pairs: each pair is as frequent as it should be."""
    state, sampler = choice(seed=5), Sampler(8)
    logits = np.zeros((1, 8), np.float32)
    tokens = []
    for _ in range(6400):
        [sampled] = sampler.sample(logits, [0], [state], [None])
        state.accept(sampled.token)
        tokens.append(sampled.token)
    pairs = np.bincount(np.array(tokens[:-1]) * 8 + tokens[1:], minlength=64)
    statistic = float(((pairs - 100) ** 2 / 100).sum())
    assert abs(statistic - 63) < 4 * np.sqrt(2 * 63)


def test_choices_of_one_job_sample_different_first_tokens() -> None:
    tokens = sample_many(Sampler(1000), np.zeros(1000, np.float32), 50, seed=1)
    assert len(set(tokens.tolist())) > 40


def test_a_rare_token_is_not_truncated_away() -> None:
    """One token takes half of the mass, the other half is spread over 100,000: half of the samples are distinct."""
    row = np.zeros(100_001, np.float32)
    row[0] = np.log(100_000)
    tokens = sample_many(Sampler(row.size), row, 400, seed=3)
    assert 150 < (tokens == 0).sum() < 250
    assert len(set(tokens.tolist())) > 140
