"""Events of a stream as they are sent, and the chunks that they encode."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from onward.api.openai.choices import ChoiceParts
from onward.api.openai.encode import chunk_event
from onward.api.openai.reply import Chunks, OpenAIReply
from onward.completions.answer import Delta, Finish, PromptRecord, TokenCounts
from onward.completions.request import CompletionRequest
from onward.offload import MAX_INLINE_SIZE
from onward.text.assembler import TokenRecord
from tests.examples import UNICODE
from tests.server.fakes import FakeAnswer

COUNTS = TokenCounts(prompt=1, completion=2)
MODEL = 'a "text":"" \\ model'
FIELDS: dict[str, dict[str, Any]] = {
    "nothing more": {},
    "usage at the end": {"include_usage": True},
    "usage in each chunk": {"include_usage": True, "continuous_usage_stats": True},
    "token ids": {"return_token_ids": True},
    "log-probabilities": {"logprobs": 1},
    "the prompt": {"echo": True},
}


def deltas_of(texts: list[str]) -> list[Delta]:
    """Return deltas of two choices, in turns: the first ones with the prompt, the last ones with a finish."""
    record = TokenRecord(7, b"x", -0.5, ((7, b"x", -0.5, 1),))
    prompt = PromptRecord("Say", (1,), (b"Say",), None, lambda token: b"x")
    found = [Delta(index, text, [record]) for text in texts for index in (0, 1)]
    for first, last in zip(found[:2], found[-2:], strict=True):
        first.prompt, last.finish = prompt, Finish("length")
    return found


async def events_and_chunks(fields: dict[str, Any], texts: list[str]) -> tuple[list[Any], list[bytes]]:
    """Return what a stream sends of deltas, each of a step of its own, and the encoded chunks."""
    request = CompletionRequest(model="m", prompt="Say", stream=True, n=2, **fields)
    answer = FakeAnswer(MODEL, [])
    reply, parts = OpenAIReply(request), ChoiceParts(request)
    reply.begin(answer)
    chunks = Chunks(request, reply.identity, answer.model, answer.fingerprint)
    sent: list[Any] = []
    expected: list[bytes] = []
    for delta in deltas_of(texts):
        sent += await reply.feed([delta], COUNTS)
        expected += [chunk_event(chunk) for chunk in chunks.of(await parts.write([delta]), COUNTS)]
    return sent, expected


@pytest.mark.parametrize("fields", FIELDS.values(), ids=FIELDS)
@given(texts=st.lists(st.text(UNICODE, max_size=9), min_size=3, max_size=5))
@example(texts=["", '"text":""', '\\"', "\x00\u2028\n", "🙂é"])
def test_each_event_is_an_encoded_chunk(fields: dict[str, Any], texts: list[str]) -> None:
    sent, expected = asyncio.run(events_and_chunks(fields, texts))
    assert sent == expected


def test_a_large_text_is_encoded_in_parts() -> None:
    texts = ["a", "b" * 17 * MAX_INLINE_SIZE, "c"]
    sent, expected = asyncio.run(events_and_chunks({}, texts))
    assert [event if isinstance(event, bytes) else b"".join(event) for event in sent] == expected
    assert any(not isinstance(event, bytes) for event in sent)
