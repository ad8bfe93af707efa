"""Large answers leave the event loop in parts, and clients see what they would see of small ones."""

from __future__ import annotations

import asyncio
import json

import pytest

from onward.api.openai import reply as openai_reply
from onward.api.openai.encode import MIN_PART_BYTES, completion_parts, encode_completion
from onward.api.openai.response import Choice, Completion, Logprobs
from onward.completions.answer import Delta, Finish
from onward.server.app import App
from onward.text.assembler import TokenRecord
from tests.server.fakes import Call, FakeBackend, completion, events, in_loop, settings

NUM_TOKENS = 8000


def large_delta(index: int = 0) -> Delta:
    """A choice of about a megabyte."""
    likely = tuple((rank, f"alternative {rank}".encode(), -0.5 * rank, rank) for rank in range(1, 5))
    records = [TokenRecord(0, f"token {number}".encode(), -0.5, likely) for number in range(NUM_TOKENS)]
    return Delta(index, "x", records, Finish("length"))


def large_choice(index: int = 0) -> Choice:
    """The text that is sent for it."""
    names = [f"token {number}" for number in range(NUM_TOKENS)]
    top = [{name: -0.5} | {f"alternative {rank}": -0.5 * rank for rank in range(1, 5)} for name in names]
    values = Logprobs(
        tokens=names, token_logprobs=[-0.5] * NUM_TOKENS, top_logprobs=list(top), text_offset=[0] * NUM_TOKENS
    )
    return Choice(text="x", index=index, logprobs=values, finish_reason="length")


def bodies(call: Call) -> list[bytes]:
    return [message.get("body", b"") for message in call.sent[1:]]


@in_loop
async def test_a_large_completion_is_sent_in_parts_and_without_a_length() -> None:
    call = await completion(App(FakeBackend([large_delta()], [large_delta(1)]), settings()), logprobs=4).done()
    assert call.status == 200
    assert call.headers["content-type"] == "application/json"
    assert call.headers["openai-model"] == "fake-model:1"
    assert "content-length" not in call.headers
    assert len(bodies(call)) > 5
    assert max(map(len, bodies(call))) < 3 * MIN_PART_BYTES
    decoded = json.loads(call.body)
    assert [choice["index"] for choice in decoded["choices"]] == [0, 1]
    assert decoded["choices"][1]["logprobs"]["tokens"] == large_choice().logprobs.tokens  # type: ignore[union-attr]
    whole = Completion(**{**decoded, "choices": [large_choice(0), large_choice(1)]})
    assert call.body == encode_completion(whole)


@in_loop
async def test_a_large_completion_has_its_schema_too() -> None:
    app = App(FakeBackend([large_delta()]), settings())
    call = await completion(app, path="/openai/v1/completions", logprobs=4).done()
    assert next(iter(json.loads(call.body))) == "$schema"
    assert "link" in call.headers


@in_loop
async def test_a_large_event_is_sent_in_parts() -> None:
    script = [[large_delta()], [Delta(1, " end", [], Finish("length"))]]
    call = await completion(App(FakeBackend(*script), settings()), stream=True, logprobs=4).done()
    large, small, done = events(call.body)
    assert len(large["choices"][0]["logprobs"]["tokens"]) == NUM_TOKENS
    assert (small["choices"][0]["text"], done) == (" end", "[DONE]")
    assert max(map(len, bodies(call))) < 3 * MIN_PART_BYTES


@in_loop
async def test_the_event_loop_runs_between_the_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    turns = 0

    async def count_turns() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    seen: list[int] = []

    def watched(*arguments: object, **named: object) -> object:
        for part in completion_parts(*arguments, **named):  # type: ignore[arg-type]
            seen.append(turns)
            yield part

    monkeypatch.setattr(openai_reply, "completion_parts", watched)
    counter = asyncio.create_task(count_turns())
    await completion(App(FakeBackend([large_delta()]), settings()), logprobs=4).done()
    counter.cancel()
    assert len(seen) == len(set(seen)) > 5


@in_loop
async def test_no_comment_is_sent_inside_an_event() -> None:
    """A client that reads slowly makes the stream look idle in the middle of an event."""
    app = App(FakeBackend([large_delta()]), settings(keep_alive=0.001))
    call = completion(app, stream=True, logprobs=4)
    send = call._send

    async def slow_send(message: dict[str, object]) -> None:
        await asyncio.sleep(0.01)
        await send(message)

    call._send = slow_send  # type: ignore[method-assign]
    await call.done()
    found = [event for event in events(call.body) if event is not None]
    assert len(found) == 2


@in_loop
async def test_a_client_that_leaves_ends_the_encoding() -> None:
    backend = FakeBackend([large_delta()])
    call = completion(App(backend, settings()), stream=True, logprobs=4)
    await call.until(2)
    call.leave()
    await call.done()
    assert not call.ended
    assert backend.answers[0].closed.is_set()
