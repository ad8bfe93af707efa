"""Reported log-probabilities: the raw log-softmax, accurate, the same bits wherever they appear."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from onward.sampling.reference import ReferenceSampler
from onward.sampling.sampler import Sampler
from tests.sampling.harness import as_row, choice, exact_logprobs, normal, sample_many, sample_one


@pytest.mark.parametrize("size", [1, 7, 255, 256, 257, 511, 512, 513, 8192, 151_936])
@pytest.mark.parametrize("scale", [0.0, 0.1, 3.0, 40.0])
def test_logprobs_are_accurate(size: int, scale: float) -> None:
    row = normal(size, scale=scale, seed=size)
    exact = exact_logprobs(row)
    targets = [0, size - 1, size // 2, int(row.argmax()), int(row.argmin())]
    for scored in Sampler(size).score(np.stack([row] * 5), 0, targets, 5):
        for token, logprob in ((scored.token, scored.logprob), *scored.top):
            assert abs(logprob - exact[token]) <= 2e-6 * abs(exact[token]) + 1e-6
            assert logprob <= 0
            assert logprob == float(np.float32(logprob))


@pytest.mark.parametrize(
    "row",
    [
        as_row([1000.0] * 4096),
        np.linspace(-80, 0, 4096).astype(np.float32),
        np.linspace(-1e30, 1e30, 600).astype(np.float32),
        as_row([0.0] + [-10.0] * 100_000),
    ],
    ids=["equal", "ramp", "huge", "one peak"],
)
def test_unusual_rows_are_accurate_too(row: np.ndarray) -> None:
    exact = exact_logprobs(row)
    for scored in Sampler(row.size).score(np.stack([row] * 3), 0, [0, row.size // 2, row.size - 1], 0):
        assert abs(scored.logprob - exact[scored.token]) <= 2e-6 * abs(exact[scored.token]) + 1e-6


@pytest.mark.parametrize("kind", [Sampler, ReferenceSampler])
def test_the_most_likely_are_exact_and_ordered(kind: type[Sampler] | type[ReferenceSampler]) -> None:
    row = np.round(normal(3000, seed=4))  # full of ties
    order = np.lexsort((np.arange(row.size), -row))
    for top in (1, 2, 5, 20, 63, 64, 65, 3000, 5000):
        [scored] = kind(row.size).score(row.reshape(1, -1), 0, [17], top)
        assert [token for token, _ in scored.top] == order[:top].tolist()
        values = [logprob for _, logprob in scored.top]
        assert values == sorted(values, reverse=True)


@pytest.mark.parametrize("kind", [Sampler, ReferenceSampler])
def test_the_logprob_of_the_sampled_token_equals_its_entry_in_top(kind: type[Sampler] | type[ReferenceSampler]) -> None:
    row, sampler = normal(50, scale=1, seed=8), kind(50)
    for number in range(40):
        sampled = sample_one(sampler, row, choice(number=number, temperature=1.7, logprobs=50))
        assert dict(sampled.top)[sampled.token] == sampled.logprob


@pytest.mark.parametrize("kind", [Sampler, ReferenceSampler])
def test_an_impossible_token_has_a_logprob_of_minus_infinity(kind: type[Sampler] | type[ReferenceSampler]) -> None:
    row = as_row([0, -np.inf, 0, -np.inf])
    [scored] = kind(4).score(row.reshape(1, -1), 0, [1], 4)
    assert scored.logprob == -math.inf
    assert scored.top == ((0, scored.top[0][1]), (2, scored.top[0][1]), (1, -math.inf), (3, -math.inf))
    assert abs(scored.top[0][1] - math.log(0.5)) < 1e-7


@pytest.mark.parametrize("kind", [Sampler, ReferenceSampler])
def test_logprobs_none_reports_no_number_and_zero_no_list(
    kind: type[Sampler] | type[ReferenceSampler],
) -> None:
    row = as_row([1, 2, 3])
    none, zero = (sample_one(kind(3), row, choice(logprobs=logprobs)) for logprobs in (None, 0))
    assert math.isnan(none.logprob) and none.top == ()
    assert zero.logprob < 0 and zero.top == ()
    assert none.token == zero.token


@pytest.mark.parametrize("params", [{}, {"temperature": 0.6}, {"top_p": 0.7}, {"temperature": 0.0}])
def test_requesting_logprobs_changes_neither_tokens_nor_numbers(params: dict[str, Any]) -> None:
    row, sampler = normal(2000, seed=2), Sampler(2000)
    tokens = sample_many(sampler, row, 50, **params).tolist()
    seen = set()
    for logprobs in (0, 1, 5, 20, 64, 65, 2000):
        assert sample_many(sampler, row, 50, logprobs=logprobs, **params).tolist() == tokens
        sampled = sample_one(sampler, row, choice(logprobs=logprobs, **params))
        assert sampled.top[:1] in ((), ((int(row.argmax()), sampled.top[0][1] if sampled.top else 0.0),))
        seen.add(sampled.logprob)
    assert len(seen) == 1


def test_scored_and_sampled_logprobs_are_the_same_bits() -> None:
    row, sampler = normal(9000, seed=3), Sampler(9000)
    for params in (
        {},
        {"temperature": 0.8, "top_p": 0.95},
        {"logit_bias": ((3, 4.0),)},
        {"temperature": 0.0},
    ):
        sampled = sample_one(sampler, row, choice(logprobs=5, **params))
        assert sampler.score(row.reshape(1, -1), 0, [sampled.token], 5) == [sampled]


@pytest.mark.parametrize("size", [1, 7, 512, 513, 3000])
def test_the_rank_of_a_scored_token_is_its_place_in_the_ranking(size: int) -> None:
    """Also for equally likely tokens, impossible ones, and at the bounds of blocks."""
    row = np.round(normal(size, seed=size))
    row[:: max(2, size // 3)] = -np.inf
    row[0] = row[size // 2] = 3.0
    order = np.lexsort((np.arange(size), -row)).tolist()
    targets = [token for token in (0, 1, size // 2, 511, 512, size - 1, order[0], order[-1]) if token < size]
    logits = np.stack([row] * len(targets))
    for kind in (Sampler, ReferenceSampler):
        plain, ranked = (kind(size).score(logits, 0, targets, 2, with_ranks=ranks) for ranks in (False, True))
        assert [one.rank for one in ranked] == [order.index(token) + 1 for token in targets]
        assert plain == [one._replace(rank=0) for one in ranked]


def test_scores_use_consecutive_rows() -> None:
    logits = normal(30, rows=6)
    scored = Sampler(30).score(logits, 2, [4, 4, 9], 1)
    for one, row, target in zip(scored, logits[2:5], (4, 4, 9), strict=True):
        assert one.token == target
        assert abs(one.logprob - exact_logprobs(row)[target]) < 2e-5
        assert one.top[0][0] == int(row.argmax())
    assert Sampler(30).score(logits, 6, [], 3) == []


def test_a_score_out_of_range_is_refused() -> None:
    logits = normal(30, rows=2)
    with pytest.raises(ValueError, match="outside of the vocabulary"):
        Sampler(30).score(logits, 0, [30], 0)
    with pytest.raises(IndexError, match="row is out of range"):
        Sampler(30).score(logits, 1, [0, 0], 0)
