"""Two models on the same texts: the difference, its standard error, and where they diverge most."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from onward.cli.score.compare import MIN_TEXTS, comparison


def record(logprobs: list[float], num_bytes: int = 4, **more: Any) -> dict[str, Any]:
    return {
        "id": "1",
        "model": "m",
        "system_fingerprint": "fp",
        "logprob": sum(logprobs),
        "num_tokens": len(logprobs),
        "num_bytes": num_bytes,
        "tokens": ["t"] * len(logprobs),
        "token_bytes": ["74"] * len(logprobs),
        "token_logprobs": logprobs,
        "ranks": [1] * len(logprobs),
    } | more


def test_the_difference_is_that_of_the_sums() -> None:
    found = comparison(("a", "b"), [record([-1.0, -2.0]), record([-3.0], 8)], [record([-1.5, -2.0]), record([-2.0], 8)])
    assert [each["bits_per_byte"] for each in found["models"]] == pytest.approx(
        [6 / 12 / math.log(2), 5.5 / 12 / math.log(2)]
    )
    assert found["difference"] == pytest.approx(-0.5 / 12 / math.log(2))
    assert found["interval"] is None
    assert [(each["index"], each["logprobs"]) for each in found["tokens"][:2]] == [(0, [-3.0, -2.0]), (0, [-1.0, -1.5])]


@pytest.mark.slow
def test_the_interval_covers_the_true_difference_as_often_as_it_says() -> None:
    random = np.random.default_rng(5)
    covered = 0
    for _ in range(30):
        ours = random.normal(-2.0, 0.5, 40)
        theirs = ours - random.normal(0.1, 0.2, 40)
        found = comparison(("a", "b"), [record([each]) for each in ours], [record([each]) for each in theirs])
        low, high = found["interval"]
        covered += low <= 0.1 / 4 / math.log(2) <= high
    assert 25 <= covered <= 30  # 28.5 expected


def test_the_same_scores_have_the_same_interval() -> None:
    first = [record([-float(number)]) for number in range(MIN_TEXTS)]
    second = [record([-(float(number) ** 1.1)]) for number in range(MIN_TEXTS)]
    assert comparison(("a", "b"), first, second) == comparison(("a", "b"), first, second)


def test_other_tokens_are_not_compared() -> None:
    found = comparison(("a", "b"), [record([-1.0])], [record([-0.5, -0.5])])
    assert found["tokens"] is None and found["difference"] == 0.0
