"""Tables of numbers for every step from logits to the set of possible tokens, for both samplers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from onward.sampling.outputs import NO_TOKEN_LEFT
from onward.sampling.reference import ReferenceSampler, edited
from onward.sampling.sampler import Sampler
from tests.examples import slow_but
from tests.sampling.harness import AnySampler, as_row, choice, sample_many, sample_one, support

BOTH = pytest.mark.parametrize("kind", slow_but([Sampler], [Sampler, ReferenceSampler]))
HALVING = as_row(np.log([0.1, 0.5, 0.15, 0.25]).tolist())  # best first: 1, 3, 2, 0


@BOTH
@pytest.mark.parametrize(
    ("params", "possible"),
    [
        ({}, {0, 1, 2, 3}),
        ({"top_p": 1.0, "top_k": 0, "min_p": 0.0}, {0, 1, 2, 3}),
        ({"top_p": 0.0}, {1}),
        ({"top_p": 1e-9}, {1}),
        ({"top_p": 0.49}, {1}),
        ({"top_p": 0.51}, {1, 3}),
        ({"top_p": 0.74}, {1, 3}),
        ({"top_p": 0.76}, {1, 2, 3}),
        ({"top_p": 0.91}, {0, 1, 2, 3}),
        ({"top_k": 1}, {1}),
        ({"top_k": 2}, {1, 3}),
        ({"top_k": 3}, {1, 2, 3}),
        ({"top_k": 4}, {0, 1, 2, 3}),
        ({"top_k": 1000}, {0, 1, 2, 3}),
        ({"min_p": 1.0}, {1}),
        ({"min_p": 0.51}, {1}),
        ({"min_p": 0.49}, {1, 3}),
        ({"min_p": 0.31}, {1, 3}),
        ({"min_p": 0.29}, {1, 2, 3}),
        ({"min_p": 1e-9}, {0, 1, 2, 3}),
        ({"temperature": 0.0}, {1}),
        ({"temperature": 0.0, "top_p": 0.9, "top_k": 3}, {1}),
        ({"temperature": 1e-6}, {1}),
    ],
)
def test_each_filter_keeps_a_prefix_of_the_ranking(
    kind: type[AnySampler], params: dict[str, Any], possible: set[int]
) -> None:
    assert support(kind(4), HALVING, **params) == possible


@BOTH
@pytest.mark.parametrize(
    ("params", "possible"),
    [
        ({"top_k": 2, "top_p": 0.6}, {1}),  # of the two, 1 has 2/3; of all, it would take both to reach 0.6
        ({"top_k": 2, "top_p": 0.7}, {1, 3}),
        ({"min_p": 0.4, "top_p": 0.6}, {1}),
        ({"min_p": 0.4, "top_k": 1}, {1}),
        ({"min_p": 0.25, "top_k": 2}, {1, 3}),
        ({"min_p": 0.4, "top_k": 3}, {1, 3}),
    ],
)
def test_top_p_is_a_share_of_the_mass_that_min_p_and_top_k_keep(
    kind: type[AnySampler], params: dict[str, Any], possible: set[int]
) -> None:
    assert support(kind(4), HALVING, **params) == possible


@BOTH
def test_filters_apply_to_the_distribution_after_temperature(kind: type[AnySampler]) -> None:
    # at temperature 0.5 the probabilities are squared: 0.725, 0.181, 0.065, 0.029
    assert support(kind(4), HALVING, top_p=0.7) == {1, 3}
    assert support(kind(4), HALVING, top_p=0.7, temperature=0.5) == {1}
    assert support(kind(4), HALVING, min_p=0.45) == {1, 3}
    assert support(kind(4), HALVING, min_p=0.45, temperature=0.5) == {1}


@BOTH
def test_ties_go_to_the_lower_id(kind: type[AnySampler]) -> None:
    tied = as_row([1, 2, 2, 2, 2, 1])
    assert support(kind(6), tied, temperature=0) == {1}
    assert support(kind(6), tied, top_k=1) == {1}
    assert support(kind(6), tied, top_k=3) == {1, 2, 3}
    assert support(kind(6), tied, top_k=5, min_p=0.1) == {0, 1, 2, 3, 4}
    assert support(kind(4), as_row([0, 0, 0, 0]), top_p=0.5) == {0, 1}
    assert support(kind(4), as_row([0, 0, 0, 0]), top_p=0.51) == {0, 1, 2}


@BOTH
def test_negative_and_positive_zero_are_a_tie(kind: type[AnySampler]) -> None:
    zeros = as_row([-1, -0.0, 0.0, -0.0, 0.0])
    assert support(kind(5), zeros, temperature=0) == {1}
    assert support(kind(5), zeros, top_k=3) == {1, 2, 3}
    assert support(kind(5), zeros, top_p=0.4) == {1, 2}
    [best] = kind(5).score(zeros.reshape(1, -1), 0, [0], 3)
    assert [token for token, _ in best.top] == [1, 2, 3]


def test_penalties_follow_the_published_formulas() -> None:
    row = as_row([2, -2, 0, 1, 3])
    changed = edited(
        row,
        choice(
            accepted=(0, 0, 1, 2),
            repetition_penalty=2.0,
            frequency_penalty=0.5,
            presence_penalty=0.25,
            logit_bias=((1, 7.0), (4, -100.0)),
        ),
        frozenset({3}),
    )
    assert changed.tolist() == [2 / 2 - 2 * 0.5 - 0.25, -2 * 2 - 0.5 - 0.25 + 7, -0.75, -np.inf, -97]
    assert row.tolist() == [2, -2, 0, 1, 3]


@BOTH
@pytest.mark.parametrize(
    ("params", "best"),
    [
        ({}, 0),
        ({"presence_penalty": 0.4}, 0),
        ({"presence_penalty": 0.6}, 1),  # 0 was generated three times: once is enough for presence
        ({"frequency_penalty": 0.16}, 0),
        ({"frequency_penalty": 0.17}, 1),  # 3 × 0.17 > 0.5
        ({"repetition_penalty": 1.1}, 0),
        ({"repetition_penalty": 1.4}, 1),  # 2 / 1.4 < 1.5
        ({"presence_penalty": -2.0, "logit_bias": ((1, 2.4),)}, 0),
        ({"presence_penalty": -2.0, "logit_bias": ((1, 2.6),)}, 1),
        ({"logit_bias": ((2, 100.0),)}, 2),
        ({"logit_bias": ((0, -100.0), (1, -100.0))}, 2),
    ],
)
def test_penalties_and_bias_change_the_greedy_token(kind: type[AnySampler], params: dict[str, Any], best: int) -> None:
    state = choice(accepted=(0, 0, 0), temperature=0.0, **params)
    assert sample_one(kind(4), as_row([2, 1.5, -1, -5]), state).token == best


@BOTH
def test_repetition_penalty_makes_a_negative_logit_more_negative(kind: type[AnySampler]) -> None:
    state = choice(accepted=(0,), temperature=0.0, repetition_penalty=1.5)
    assert sample_one(kind(2), as_row([-1, -1.4]), state).token == 1


@BOTH
def test_a_bias_of_a_hundred_in_effect_bans_or_forces_a_token(kind: type[AnySampler]) -> None:
    row = as_row([5, 4, 3, 2])
    assert support(kind(4), row, logit_bias=((0, -100.0), (1, -100.0))) == {2, 3}
    assert support(kind(4), row, logit_bias=((3, 100.0),), temperature=2.0) == {3}


@BOTH
@pytest.mark.parametrize("params", [{}, {"temperature": 0}, {"top_p": 0.5}, {"logit_bias": ((0, 100.0),)}])
def test_a_banned_token_is_never_sampled_however_likely(kind: type[AnySampler], params: dict[str, Any]) -> None:
    row = as_row([50, 40, 1, 0])
    tokens = sample_many(kind(4), row, 200, banned=frozenset({0, 1}), **params)
    assert set(tokens.tolist()) <= {2, 3}


@BOTH
def test_logprobs_stay_raw_under_bans_bias_and_penalties(kind: type[AnySampler]) -> None:
    row = as_row([3, 2, 1])
    plain = sample_one(kind(3), row, choice(temperature=0, logprobs=3))
    moved = sample_one(
        kind(3),
        row,
        choice(temperature=0, logprobs=3, accepted=(1,), presence_penalty=2, logit_bias=((2, 9.0),)),
        frozenset({0}),
    )
    assert (plain.token, moved.token) == (0, 2)
    assert moved.top == plain.top
    assert moved.logprob == plain.top[2][1]


@BOTH
def test_where_no_token_is_left_nothing_is_sampled(kind: type[AnySampler]) -> None:
    assert sample_one(kind(2), as_row([1, -np.inf]), choice(), frozenset({0})).token == NO_TOKEN_LEFT


def test_an_edit_outside_of_the_vocabulary_is_refused() -> None:
    sampler = Sampler(4)
    for state, banned in (
        (choice(logit_bias=((4, 1.0),)), None),
        (choice(), frozenset({-1})),
        (choice(presence_penalty=1, accepted=(9,)), None),
    ):
        with pytest.raises(ValueError, match="outside of the vocabulary"):
            sample_one(sampler, as_row([0, 0, 0, 0]), state, banned)
