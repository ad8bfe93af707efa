"""The features of engines: which requests need them, so that an engine without one refuses these and no others."""

from __future__ import annotations

from typing import Any

import pytest

from onward.api.openai.decode import check_request
from onward.completions.features import check_features
from onward.completions.rejections import NotAvailable

PENALTIES = [{"presence_penalty": 1}, {"frequency_penalty": -1}, {"repetition_penalty": 1.5}]
CHANGES = [
    *PENALTIES,
    {"temperature": 0.5},
    {"min_tokens": 1},
    {"logit_bias": {"97": 1}},
    {"banned_tokens": [97]},
    {"allowed_token_ids": [97]},
    {"bad_words": ["no"]},
    {"regex": "a*"},
    {"ban_eos_token": True},
    {"dry_multiplier": 0.8},
]


def is_needed(feature: str, **fields: Any) -> bool:
    try:
        check_features(check_request({"model": "toy", "prompt": "a", **fields}), [feature])
    except NotAvailable:
        return True
    return False


@pytest.mark.parametrize("penalty", PENALTIES, ids=lambda penalty: next(iter(penalty)))
def test_how_penalties_count_matters_only_with_a_penalty(penalty: dict[str, Any]) -> None:
    for feature, value in (("repeat_last_n", 8), ("penalize_nl", False)):
        assert is_needed(feature, **{feature: value}, **penalty)
        assert not is_needed(feature, **{feature: value})
        assert not is_needed(feature, **penalty)


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: next(iter(change)))
def test_raw_logprobs_are_needed_where_they_are_reported_and_differ(change: dict[str, Any]) -> None:
    for reporting in ({"logprobs": 1}, {"best_of": 2}):
        assert is_needed("raw_logprobs", **reporting, **change)
        assert not is_needed("raw_logprobs", **reporting)
    assert not is_needed("raw_logprobs", **change)


@pytest.mark.parametrize(
    ("feature", "fields"),
    [("seed", {"seed": 7}), ("order_of_samplers", {"top_p": 0.5, "samplers": ["top_p", "temperature"]})],
)
def test_greedy_requests_need_neither_seeds_nor_orders(feature: str, fields: dict[str, Any]) -> None:
    assert is_needed(feature, **fields, temperature=0.5) and not is_needed(feature, **fields, temperature=0)
