"""The plan of a request: its jobs and the checks that depend on the model."""

from __future__ import annotations

from itertools import count
from typing import Any

import pytest

from onward.api.openai.decode import check_request
from onward.api.openai.errors import openai_words
from onward.completions.infill import Infill
from onward.completions.limits import RequestLimits
from onward.completions.plan import ServedModel, plan
from onward.errors import InvalidRequest
from onward.model_files.toy import ToyTokenizer

TOY = ToyTokenizer()
MODEL = ServedModel("toy", TOY, TOY.size, 2048, None)


NARROW = ServedModel("narrow", TOY, 100, 64, Infill(1, 2, 3, frozenset({4, 200}), suffix_first=False))
"""A model whose tokenizer has more tokens, including the end token, than the model has logits."""


def planned_for_narrow(**fields: Any) -> Any:
    with openai_words():
        [job] = plan(check_request({"model": "narrow", **fields}), NARROW, 0, count(), RequestLimits(100)).jobs
    return job


def test_end_tokens_outside_the_vocabulary_are_ignored() -> None:
    assert planned_for_narrow(prompt="a", min_tokens=1).end_tokens == frozenset()
    assert planned_for_narrow(prompt="a", suffix="b", min_tokens=1).end_tokens == frozenset({4})


def test_tokens_that_the_model_suppresses_are_banned_from_every_completion(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(TOY, "suppressed_tokens", frozenset({7, 3, -1, 150}))
    assert planned_for_narrow(prompt="a").sampling.banned_tokens == (3, 7)
    assert planned_for_narrow(prompt="a", banned_tokens=[5]).sampling.banned_tokens == (3, 5, 7)
    with pytest.raises(InvalidRequest, match="allowed_token_ids"):
        planned_for_narrow(prompt="a", allowed_token_ids=[3, 7])


@pytest.mark.parametrize("fields", [{"prompt": "z"}, {"prompt": "a", "suffix": "z"}, {"prompt": ""}])
def test_tokens_outside_the_vocabulary_are_rejected_in_prompt_and_suffix(fields: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest, match=r"^Invalid token in prompt: .* maximum value is 99 "):
        planned_for_narrow(**fields)


def test_a_suffix_is_part_of_the_context() -> None:
    assert planned_for_narrow(prompt="a" * 30, suffix="b" * 15, max_tokens=16).prompt[-1] == 3
    with pytest.raises(InvalidRequest, match="you requested 65 tokens"):
        planned_for_narrow(prompt="a" * 30, suffix="b" * 16, max_tokens=16)
