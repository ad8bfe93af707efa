"""Limits of one request: prompt tokens, log probabilities, and texts that are refused before they are tokenized."""

from __future__ import annotations

from itertools import count
from typing import Any

import pytest

from onward.api.openai.decode import check_request
from onward.api.openai.errors import openai_words
from onward.completions.infill import Infill
from onward.completions.limits import RequestLimits
from onward.completions.plan import Plan, ServedModel, plan
from onward.errors import InvalidRequest
from onward.model_files.toy import END, ToyTokenizer

CONTEXT = 64


class CountingTokenizer(ToyTokenizer):
    """Counts the characters that it tokenizes."""

    def __init__(self, max_token_bytes: int) -> None:
        super().__init__()
        self.max_token_bytes = max_token_bytes
        self.num_characters = 0

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        self.num_characters += len(text)
        return list(text.encode())


def planned(tokenizer: ToyTokenizer | None = None, limits: RequestLimits | None = None, **fields: Any) -> Plan:
    tokenizer = tokenizer or ToyTokenizer()
    model = ServedModel("toy", tokenizer, tokenizer.size, CONTEXT, Infill(1, 2, 3, frozenset({END}), False))
    request = check_request({"model": "toy", **fields})
    with openai_words():
        return plan(request, model, 0, count(), limits or RequestLimits())


@pytest.mark.parametrize("fields", [{"prompt": "x" * 100_000}, {"prompt": "a", "suffix": "x" * 100_000}])
def test_a_text_that_cannot_fit_is_refused_before_it_is_tokenized(fields: dict[str, Any]) -> None:
    tokenizer = CountingTokenizer(max_token_bytes=10)
    message = r"is 64 tokens, however you requested at least 10016 tokens \(at least 10000 in your prompt; 16 for the "
    with pytest.raises(InvalidRequest, match=message):
        planned(tokenizer, **fields)
    assert tokenizer.num_characters <= 1


@pytest.mark.parametrize(("num_characters", "max_tokens"), [(1, 64), (10, 10**6), (65, 0), (10_000, 16), (65_536, 16)])
def test_a_text_of_up_to_65536_characters_is_counted_exactly(num_characters: int, max_tokens: int) -> None:
    message = (
        rf"requested {num_characters + max_tokens} tokens \({num_characters} in your prompt; {max_tokens} for the "
    )
    with pytest.raises(InvalidRequest, match=message):
        planned(CountingTokenizer(max_token_bytes=10), prompt="x" * num_characters, max_tokens=max_tokens)


def test_composed_characters_count_less() -> None:
    """A tokenizer may compose `e` and an accent (three bytes) into one character of two bytes."""
    with pytest.raises(InvalidRequest, match=r"requested 76 tokens \(60 in your prompt; "):
        planned(CountingTokenizer(max_token_bytes=1), prompt="e\u0301" * 20)


def test_only_the_beginning_of_a_long_text_is_tokenized_if_that_is_too_long() -> None:
    tokenizer = CountingTokenizer(max_token_bytes=1_000_000)
    with pytest.raises(InvalidRequest, match=r"\(at least 32768 in your prompt; 16 for the completion\)"):
        planned(tokenizer, prompt="x" * 1_000_000)
    assert tokenizer.num_characters == 65_536


def test_a_long_text_of_few_tokens_is_accepted() -> None:
    class LongTokens(CountingTokenizer):
        def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
            return list(text[::10_000].encode())

    [job] = planned(LongTokens(max_token_bytes=1_000_000), prompt="x" * 100_000).jobs
    assert bytes(job.prompt) == b"x" * 10


def test_no_more_of_a_prediction_is_tokenized_than_the_context_needs() -> None:
    tokenizer = CountingTokenizer(max_token_bytes=1)
    [job] = planned(tokenizer, prompt="", prediction={"type": "content", "content": "x" * 1_000_000}).jobs
    assert len(job.prediction) == CONTEXT
    assert tokenizer.num_characters == 65_536


def test_the_tokens_of_all_prompts_are_limited() -> None:
    limits = RequestLimits(max_prompt_tokens=100)
    assert len(planned(limits=limits, prompt=[[1] * 10] * 10).jobs) == 10
    with pytest.raises(InvalidRequest, match=r"at least 110 tokens together, .* at most 100 per request\. Send the"):
        planned(limits=limits, prompt=[[1] * 10] * 11)


def test_planning_stops_at_the_limit() -> None:
    tokenizer = CountingTokenizer(max_token_bytes=1)
    with pytest.raises(InvalidRequest, match="at least 120 tokens together"):
        planned(tokenizer, RequestLimits(max_prompt_tokens=100), prompt=["x" * 40] * 1000)
    assert tokenizer.num_characters == 120


@pytest.mark.parametrize(
    ("fields", "num_logprobs"),
    [
        ({"logprobs": 4}, 4 * 10 * 5),
        ({"logprobs": 0}, 4 * 10),
        ({"logprobs": 4, "n": 3}, 3 * 4 * 10 * 5),
        ({"logprobs": 4, "n": 2, "best_of": 3}, 3 * 4 * 10 * 5),
        ({"logprobs": 4, "echo": True}, 4 * (10 + 8) * 5),
        ({"logprobs": 4, "echo": True, "n": 3}, 3 * 4 * (10 + 8) * 5),
        ({"prompt_logprobs": 2}, 4 * 8 * 3),
        ({"prompt_logprobs": 2, "logprobs": 4, "n": 3}, 3 * 4 * (10 * 5 + 8 * 3)),
    ],
)
def test_the_log_probabilities_of_an_answer_are_limited(fields: dict[str, Any], num_logprobs: int) -> None:
    request = {"prompt": ["12345678"] * 4, "max_tokens": 10, **fields}
    assert planned(limits=RequestLimits(max_answer_logprobs=num_logprobs), **request)
    with pytest.raises(InvalidRequest, match=rf"could contain {num_logprobs} log probabilities .* at most "):
        planned(limits=RequestLimits(max_answer_logprobs=num_logprobs - 1), **request)


def test_without_log_probabilities_that_limit_does_not_apply() -> None:
    assert planned(limits=RequestLimits(max_answer_logprobs=1), prompt="a", echo=True, n=3)


def test_a_request_for_too_many_is_refused_before_its_prompts_are_tokenized() -> None:
    tokenizer = CountingTokenizer(max_token_bytes=1)
    with pytest.raises(InvalidRequest, match="could contain 1680 log probabilities"):
        planned(tokenizer, RequestLimits(max_answer_logprobs=1000), prompt="abc", logprobs=20, n=5)
    assert tokenizer.num_characters == 0


def test_more_tokens_than_the_context_are_refused_as_such_also_with_log_probabilities() -> None:
    with pytest.raises(InvalidRequest, match=r"maximum context length is 64 tokens, however you requested 1000003 tok"):
        planned(limits=RequestLimits(max_answer_logprobs=1000), prompt="abc", logprobs=4, max_tokens=10**6)
