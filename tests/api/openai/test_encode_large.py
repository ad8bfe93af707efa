"""A large answer is encoded in parts: the bytes are those of a small one."""

from __future__ import annotations

from copy import deepcopy

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from onward.api.openai.encode import (
    MIN_PART_BYTES,
    chunk_event,
    chunk_event_parts,
    chunk_parts,
    completion_parts,
    encode_completion,
    num_values,
)
from onward.api.openai.response import (
    Choice,
    Chunk,
    Completion,
    CompletionTokensDetails,
    Logprobs,
    PromptLogprob,
    PromptTokensDetails,
    Usage,
)
from tests.examples import UNICODE, slow_but

USAGE = Usage(
    prompt_tokens=1,
    completion_tokens=2,
    total_tokens=3,
    prompt_tokens_details=PromptTokensDetails(),
    completion_tokens_details=CompletionTokensDetails(),
)
HOSTILE = ['"choices": [', '"choices":[', '"logprobs": null', '"logprobs":null', "\n    ", '\\"', "{}", "é🙂"]
texts = st.text(UNICODE, max_size=10) | st.sampled_from(HOSTILE)
numbers = st.floats(allow_nan=False, allow_infinity=False)


def logprobs(num_tokens: int, num_top: int | None, name: str = "x") -> Logprobs:
    """Entries as of an echoed prompt: the first has no value."""
    tops = None if num_top is None else [{f"{name}{rank}": -0.1 * rank for rank in range(num_top)}] * num_tokens
    return Logprobs(
        tokens=[name] * num_tokens,
        token_logprobs=[None, *[-0.25] * num_tokens][:num_tokens],
        top_logprobs=None if tops is None else [None, *tops][:num_tokens],
        text_offset=list(range(num_tokens)),
    )


def prompt_logprobs(num_tokens: int, num_top: int, name: str = "x") -> list[dict[int, PromptLogprob] | None]:
    entry = {rank: PromptLogprob(-0.1 * rank, rank + 1, f"{name}{rank}") for rank in range(num_top + 1)}
    return [None, *[entry] * num_tokens][:num_tokens]


choices_lists = st.lists(
    st.builds(
        Choice,
        text=texts,
        index=st.integers(0, 5),
        logprobs=st.none() | st.builds(logprobs, st.integers(0, 5), st.none() | st.integers(0, 3), texts),
        finish_reason=st.none() | st.just("stop"),
        prompt_token_ids=st.none() | st.just([1, 2]),
        prompt_logprobs=st.none() | st.builds(prompt_logprobs, st.integers(0, 5), st.integers(0, 3), texts),
    ),
    max_size=4,
)


def completion(choices: list[Choice], model: str = "m") -> Completion:
    return Completion(id="cmpl-1", created=1, model=model, choices=choices, usage=USAGE)


def chunk(choices: list[Choice], model: str = "m") -> Chunk:
    return Chunk(id="cmpl-1", object="text_completion", created=1, choices=choices, model=model, wire_usage=None)


@given(choices_lists, texts, st.sampled_from([None, "https://host/schema?\n"]))
def test_the_parts_of_a_completion_are_its_encoding(choices: list[Choice], model: str, schema: str | None) -> None:
    whole = completion(choices, model)
    assert b"".join(completion_parts(deepcopy(whole), schema=schema)) == encode_completion(whole, schema=schema)


@given(choices_lists, texts)
def test_the_parts_of_a_chunk_are_its_encoding(choices: list[Choice], model: str) -> None:
    whole = chunk(choices, model)
    assert b"".join(chunk_parts(deepcopy(whole))) == msgspec.json.encode(whole)
    assert b"".join(chunk_event_parts(deepcopy(whole))) == chunk_event(whole)


@pytest.mark.parametrize("num_tokens", slow_but([1, 4097], [1, 4095, 4097, 30_000]))
@pytest.mark.parametrize("num_top", [None, 0, 1, 20])
def test_many_tokens_are_encoded_in_slices(num_tokens: int, num_top: int | None) -> None:
    choices = [Choice(text="a", index=index, logprobs=logprobs(num_tokens, num_top)) for index in range(2)]
    if num_top is not None:
        choices[1].prompt_logprobs = prompt_logprobs(num_tokens, num_top)
    expected = encode_completion(completion(choices))
    parts = list(completion_parts(completion(deepcopy(choices))))
    assert b"".join(parts) == expected
    assert all(MIN_PART_BYTES <= len(part) < 3 * MIN_PART_BYTES for part in parts[:-1])
    assert b"".join(chunk_event_parts(chunk(deepcopy(choices)))) == chunk_event(chunk(choices))


def test_log_probabilities_are_released_as_they_are_encoded() -> None:
    whole = completion([Choice(text="a", index=0, logprobs=logprobs(10_000, 20))])
    entries = whole.choices[0].logprobs
    assert entries is not None and entries.top_logprobs is not None
    assert len(list(completion_parts(whole))) > 5
    assert set(entries.tokens) == {None} and entries.top_logprobs == [None] * 10_000


def test_a_large_event_can_be_obfuscated() -> None:
    whole = chunk([Choice(text="a", index=0, logprobs=logprobs(10_000, 5))])
    event = b"".join(chunk_event_parts(deepcopy(whole), obfuscate=True))
    assert len(event) == 1 << (len(event) - 1).bit_length() == len(chunk_event(whole, obfuscate=True))
    decoded = msgspec.json.decode(event.removeprefix(b"data: "))
    assert decoded.pop("obfuscation")
    assert decoded == msgspec.json.decode(msgspec.json.encode(whole))


def test_values_are_counted() -> None:
    assert num_values([]) == 0
    assert num_values([Choice(text="x" * 16_000, index=0)]) == 1001
    assert num_values([Choice(text="", index=0, logprobs=logprobs(100, 20))]) == 1 + 100 * 43
    assert num_values([Choice(text="", index=0, logprobs=logprobs(100, None))] * 2) == 2 + 200 * 3
    assert num_values([Choice(text="", index=0, prompt_logprobs=prompt_logprobs(100, 4))]) == 1 + 100 * 21
