"""Any vocabulary size, extreme parameters, broken logits: a token or an error, never a wrong token or a hang."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from onward.sampling.outputs import NOT_FINITE, Sampled
from onward.sampling.reference import ReferenceSampler
from onward.sampling.sampler import Sampler
from tests.sampling.harness import as_row, choice, normal, sample_many, sample_one, support


@pytest.mark.parametrize("size", [1, 7, 255, 256, 257, 8192, 151_936])
@pytest.mark.parametrize(
    "params",
    [
        {"temperature": 1e-6},
        {"temperature": 5e-324},
        {"temperature": 2.0, "top_p": 0.999_999_999},
        {"top_p": 1e-9},
        {"top_p": 5e-324},
        {"top_k": 2**60},
        {"min_p": 5e-324, "top_p": 0.3},
        {"top_k": 3, "top_p": 0.5, "min_p": 0.5},
    ],
)
def test_extreme_parameters_sample_a_possible_token(size: int, params: dict[str, Any]) -> None:
    row = normal(size, scale=5, seed=1)
    row[1::3] = -np.inf
    tokens = sample_many(Sampler(size), row, 3, seed=9, **params)
    assert np.isfinite(row[tokens]).all()
    if params.get("temperature", 1) < 1e-5 or params.get("top_p", 1) < 1e-8:
        assert (tokens == row.argmax()).all()


@pytest.mark.parametrize("size", [1, 7, 255, 256, 257, 8192, 151_936])
def test_equal_logits_are_cut_by_id(size: int) -> None:
    row = np.zeros(size, np.float32)
    half = sample_many(Sampler(size), row, 50, top_p=0.5, seed=4)
    assert half.max() <= (size - 1) // 2
    tenth = sample_many(Sampler(size), row, 50, top_k=max(size // 10, 1), seed=4)
    assert tenth.max() < max(size // 10, 1)
    assert (sample_many(Sampler(size), row, 3, top_p=1e-9) == 0).all()


def test_a_single_possible_token_is_always_sampled() -> None:
    row = np.full(5000, -np.inf, np.float32)
    row[4321] = -2e38
    for params in ({}, {"temperature": 2.0}, {"top_p": 0.1}, {"top_k": 4000}, {"min_p": 0.5, "logprobs": 3}):
        assert support(Sampler(5000), row, **params) == {4321}


def test_the_largest_finite_logits_can_be_sampled_from() -> None:
    largest = float(np.finfo(np.float32).max)
    row = as_row([largest, -largest, largest, 0])
    assert support(Sampler(4), row) == {0, 2}
    assert support(Sampler(4), row, logit_bias=((0, 100.0), (2, -100.0)), temperature=0.5) == {0, 2}
    assert support(Sampler(4), row, accepted=(0, 1), repetition_penalty=0.01) == {0, 2}


@pytest.mark.parametrize("kind", [Sampler, ReferenceSampler])
@pytest.mark.parametrize("index", [0, 700, 1499])
@pytest.mark.parametrize("bad", [np.nan, -np.nan, np.inf])
@pytest.mark.parametrize("params", [{"temperature": 0.0}, {"logprobs": 1}, {"top_p": 0.5, "temperature": 0.7}])
def test_from_logits_that_are_not_finite_nothing_is_sampled(
    kind: type[Sampler], index: int, bad: float, params: dict[str, Any]
) -> None:
    row = normal(1500)
    row[index] = bad
    assert repr(sample_one(kind(1500), row, choice(**params))) == repr(Sampled(NOT_FINITE, math.nan, ()))


def test_a_row_without_any_possible_token_does_not_change_the_others() -> None:
    logits = normal(20, rows=3)
    before = Sampler(20).score(logits, 0, [1, 2, 3], 2)
    logits[1] = -np.inf
    after = Sampler(20).score(logits, 0, [1, 2, 3], 2)
    assert after[1].token == NOT_FINITE and (after[0], after[2]) == (before[0], before[2])


def test_a_bad_row_that_no_choice_uses_is_ignored() -> None:
    logits = normal(20, rows=3)
    logits[1] = np.nan
    assert len(Sampler(20).sample(logits, [0, 2], [choice(), choice()], [None, None])) == 2
