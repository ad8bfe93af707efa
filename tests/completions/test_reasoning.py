"""`usage.completion_tokens_details.reasoning_tokens` counts the tokens between a model's reasoning markers."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from onward.api.openai.response import Completion
from onward.completions.reasoning import ReasoningCounter, find_reasoning_markers
from onward.model_files.toy import ToyTokenizer
from onward.text.assembler import TokenRecord

from ..toy_backend import ask, complete, make_backend, running, stream

OPEN, CLOSE = 1, 2


@pytest.mark.parametrize(
    ("prompt", "tokens", "num_completion_tokens", "expected"),
    [
        ([], [OPEN, 5, 6, CLOSE, 7], 5, 2),
        ([], [5, 6], 2, 0),
        ([9, OPEN], [5, CLOSE, 6], 3, 1),
        ([OPEN, 9, CLOSE], [5, 6], 2, 0),
        ([], [OPEN, 5, 6, 7], 3, 2),
        ([], [OPEN, CLOSE, OPEN, 5, CLOSE], 5, 1),
    ],
)
def test_tokens_between_the_markers_count(
    prompt: list[int], tokens: list[int], num_completion_tokens: int, expected: int
) -> None:
    records = [TokenRecord(token, b"x", -1.0, ()) for token in tokens]
    whole, parts = (ReasoningCounter((OPEN, CLOSE), prompt) for _ in range(2))
    assert whole.count(records, num_completion_tokens) == expected
    assert sum(parts.count([record], num_completion_tokens) for record in records) == expected


class ReasoningTokenizer(ToyTokenizer):
    """The toy's tokenizer, with two of its special tokens as reasoning markers."""

    def token_id(self, literal: str) -> int | None:
        return {"<think>": 257, "</think>": 258}.get(literal) or super().token_id(literal)


def test_reasoning_tokens_are_the_same_streamed_or_not() -> None:
    async def run() -> tuple[Completion, Any]:
        backend = make_backend()
        (model,) = backend.served.values()
        model.served = type(model.served)(
            "toy",
            ReasoningTokenizer(),
            model.served.vocab_size,
            2048,
            None,
            find_reasoning_markers(ReasoningTokenizer()),
        )
        fields = {"prompt": "<|fim_prefix|>", "max_tokens": 30, "seed": 4, "ignore_eos": True, "n": 2}
        fields |= {"logit_bias": {"258": 19}, "skip_special_tokens": False}
        async with running(backend):
            chunks = await stream(backend, **fields, stream_options={"include_usage": True})
            return await complete(backend, **fields), chunks[-1].usage

    whole, streamed = asyncio.run(run())
    assert whole.usage == streamed
    at_least = sum(choice.text.count("") - 1 for choice in whole.choices if "<|fim_suffix|>" not in choice.text)
    reasoning = whole.usage.completion_tokens_details.reasoning_tokens
    assert 0 < reasoning <= whole.usage.completion_tokens and at_least <= reasoning


def test_a_model_without_markers_reports_none() -> None:
    assert find_reasoning_markers(ToyTokenizer()) is None
    assert ask(prompt="<think>").usage.completion_tokens_details.reasoning_tokens == 0
