"""Events are encoded for the strictest client."""

from __future__ import annotations

import json
from typing import Any

import httpx2
import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from onward.api.openai.encode import MIN_OBFUSCATED_BYTES, chunk_event
from onward.api.openai.response import (
    Choice,
    Chunk,
    CompletionTokensDetails,
    Logprobs,
    PromptTokensDetails,
    Usage,
)
from onward.api.sse import DONE, KEEP_ALIVE
from tests.examples import UNICODE, examples


def chunk(text: str = " IP", **fields: Any) -> Chunk:
    choice = Choice(text=text, index=0)
    return Chunk(id="cmpl-1", object="text_completion", created=1774968007, choices=[choice], model="davinci", **fields)


USAGE = Usage(
    prompt_tokens=1,
    completion_tokens=2,
    total_tokens=3,
    prompt_tokens_details=PromptTokensDetails(),
    completion_tokens_details=CompletionTokensDetails(),
)


def test_the_bytes_of_an_event_are_as_recorded() -> None:
    assert chunk_event(chunk()) == (
        b'data: {"id":"cmpl-1","object":"text_completion","created":1774968007,"choices":[{"text":" IP",'
        b'"index":0,"logprobs":null,"finish_reason":null}],"model":"davinci"}\n\n'
    )


def test_usage_is_present_only_if_requested() -> None:
    assert chunk_event(chunk(wire_usage=None)).endswith(b',"model":"davinci","usage":null}\n\n')
    assert b'"usage":{"prompt_tokens":1,"completion_tokens":2,' in chunk_event(chunk(wire_usage=USAGE))


def test_an_event_has_no_error_key_and_no_line_end_inside() -> None:
    event = chunk_event(chunk("a\nb\r\n\u2028é🙂", system_fingerprint="fp", wire_usage=None))
    assert b'"error"' not in event
    assert event.count(b"\n") == 2 and b"\r" not in event
    assert "é🙂".encode() in event


def test_the_end_and_the_keep_alive_are_fixed_bytes() -> None:
    assert DONE == b"data: [DONE]\n\n"
    assert KEEP_ALIVE.startswith(b":") and KEEP_ALIVE.endswith(b"\n\n")


@settings(max_examples=examples(150))
@given(st.text(UNICODE, max_size=400))
def test_an_obfuscated_event_reveals_only_its_size_class(text: str) -> None:
    event = chunk_event(chunk(text), obfuscate=True)
    plain = chunk_event(chunk(text))
    size = len(event)
    assert size >= MIN_OBFUSCATED_BYTES and size & (size - 1) == 0
    data = json.loads(event.removeprefix(b"data: "))
    padding = data.pop("obfuscation")
    assert data == json.loads(plain.removeprefix(b"data: "))
    assert len(padding) == size - len(plain) - len(',"obfuscation":""')
    assert size == MIN_OBFUSCATED_BYTES or len(plain) + len(',"obfuscation":""') > size // 2


def test_events_of_short_tokens_have_the_same_size() -> None:
    words = ["a", " the", " butterfly", "🙂", "\n", ""]
    assert {len(chunk_event(chunk(word), obfuscate=True)) for word in words} == {MIN_OBFUSCATED_BYTES}


def test_obfuscation_is_random() -> None:
    assert chunk_event(chunk(), obfuscate=True) != chunk_event(chunk(), obfuscate=True)


def read(stream: bytes) -> list[str]:
    """Return the data of the events of a stream, as httpx2 decodes them."""
    request = httpx2.Request("POST", "http://127.0.0.1/v1/completions")
    response = httpx2.Response(200, headers={"content-type": "text/event-stream"}, content=stream, request=request)
    return [event.data for event in httpx2.EventSource(response)]


texts = st.text(UNICODE, max_size=20)
floats = st.floats(allow_nan=False, allow_infinity=False, width=32)


@st.composite
def chunks(draw: st.DrawFn) -> Chunk:
    tokens = draw(st.none() | st.lists(texts, max_size=3))
    logprobs = None
    if tokens is not None:
        numbers = [draw(floats) for _ in tokens]
        tops: list[dict[str, float] | None] = [{token: number} for token, number in zip(tokens, numbers, strict=True)]
        logprobs = Logprobs(
            tokens=tokens, token_logprobs=list(numbers), top_logprobs=tops, text_offset=list(range(len(tokens)))
        )
    reason = draw(st.sampled_from([None, "stop", "length", "content_filter"]))
    choice = Choice(text=draw(texts), index=draw(st.integers(0, 9)), logprobs=logprobs, finish_reason=reason)  # type: ignore[arg-type]
    return Chunk(
        id="cmpl-1",
        object="text_completion",
        created=1,
        choices=draw(st.sampled_from([[choice], []])),
        model="m",
        wire_usage=draw(st.sampled_from([msgspec.UNSET, None, USAGE])),
    )


@settings(max_examples=examples(150))
@given(st.lists(chunks(), max_size=4), st.booleans())
def test_encoded_events_decode_to_themselves(sent: list[Chunk], obfuscate: bool) -> None:
    stream = b"".join(KEEP_ALIVE + chunk_event(each, obfuscate=obfuscate) for each in sent) + DONE
    *events, done = read(stream)
    assert done == "[DONE]"
    received = [msgspec.json.decode(event, type=Chunk) for event in events]
    for each in received:
        assert (each.obfuscation is not None) == obfuscate
        each.obfuscation = None
    assert received == sent
