"""Answers of upstreams with random changes: whatever arrives, a request ends with tokens or an intended error, and the
next one is served."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from copy import deepcopy
from typing import Any

import pytest

from onward.backends.embedded import EmbeddedBackend
from onward.errors import EngineStopped, ServerError
from tests.engines.upstreams.harness import complete, on
from tests.engines.upstreams.standin import Fault, Handler, stand_in
from tests.engines.upstreams.test_engine_hostile import KINDS, event, one, scored, status
from tests.examples import slow_but

NUM_MUTANTS = 60
VALUES: tuple[Any, ...] = (
    None, True, False, 0, -1, 1, 2**31, 2**63, 10**30, 0.5, -0.5, 1e300, -1e300, "", "97", "nan", "token_id:97", [],
    [[]], [None], {}, {"error": None}, {"message": "m", "code": 500}, [97] * 100, "x" * 1000,
)  # fmt: skip


def places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Every container of a message, with each key or index in it."""
    if isinstance(value, dict | list):
        for key in list(value) if isinstance(value, dict) else range(len(value)):
            yield value, key
            yield from places(value[key])


def mutant(message: dict[str, Any], draw: random.Random) -> dict[str, Any]:
    message = deepcopy(message)
    for _ in range(draw.randrange(1, 3)):
        container, key = draw.choice(list(places(message)))
        match draw.randrange(4):
            case 0:
                del container[key]
            case 1 if isinstance(container, dict):
                container[draw.choice(("error", "index", "stop", "finish_reason", "message", "tokens"))] = value(draw)
            case 2 if isinstance(container, list):
                container.insert(key, deepcopy(container[key]))
            case _:
                container[key] = value(draw)
        if not message:
            break
    return message


def value(draw: random.Random) -> Any:
    return deepcopy(draw.choice(VALUES))


async def survives(backend: EmbeddedBackend, caplog: pytest.LogCaptureFixture, **fields: Any) -> None:
    try:
        answer = await complete(backend, max_tokens=3, **fields)
    except (ServerError, EngineStopped):
        pass
    else:
        [choice] = answer.choices
        assert choice.finish_reason in ("stop", "length")
        for number in choice.logprobs.token_logprobs if choice.logprobs else ():
            assert number is None or number <= 0
    assert "a choice failed" not in caplog.text  # no unforeseen error


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("logprobs", slow_but([1], [None, 1]))
def test_a_mutated_event_is_an_answer_or_an_error(
    kind: str, logprobs: int | None, caplog: pytest.LogCaptureFixture
) -> None:
    draw = random.Random(5)

    async def test(backend: EmbeddedBackend) -> None:
        for _ in range(NUM_MUTANTS):
            server.faults = [one(mutant(event(kind, 97, 98), draw))]
            await survives(backend, caplog, logprobs=logprobs)
        server.faults = []
        assert (await complete(backend, max_tokens=3)).choices[0].finish_reason == "length"

    with stand_in(kind) as server:
        on(server, test)


@pytest.mark.parametrize("kind", ["vllm", "sglang"])
def test_mutated_scores_are_scores_or_an_error(kind: str, caplog: pytest.LogCaptureFixture) -> None:
    draw = random.Random(6)

    async def test(backend: EmbeddedBackend) -> None:
        for _ in range(NUM_MUTANTS):
            server.faults = [status(200, mutant(scored(kind, [83, 97, 121]), draw))]
            await survives(backend, caplog, prompt=[83, 97, 121], echo=True, logprobs=1)

    with stand_in(kind) as server:
        on(server, test)


def corrupted(content: bytes, draw: random.Random) -> Fault:
    """Send an answer of which some bytes are others, missing or doubled, and close the connection."""
    changed = bytearray(content)
    for _ in range(draw.randrange(1, 4)):
        place = draw.randrange(len(changed))
        match draw.randrange(3):
            case 0:
                changed[place] = draw.randrange(256)
            case 1:
                del changed[place : place + draw.randrange(1, 9)]
            case _:
                changed[place:place] = changed[place : place + draw.randrange(1, 9)]

    def answer(handler: Handler, body: dict[str, Any]) -> None:
        handler.close_connection = True
        handler.wfile.write(changed)

    return answer


@pytest.mark.parametrize("kind", slow_but(["vllm"], KINDS))
def test_a_corrupted_answer_is_an_answer_or_an_error(kind: str, caplog: pytest.LogCaptureFixture) -> None:
    draw = random.Random(7)
    data = b"data: " + json.dumps(event(kind, 97, 98)).encode() + b"\n\n"
    body = b"%x\r\n%b\r\n0\r\n\r\n" % (len(data), data)
    content = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n" + body

    async def test(backend: EmbeddedBackend) -> None:
        for _ in range(NUM_MUTANTS):
            server.faults = [corrupted(content, draw)]
            await survives(backend, caplog)

    with stand_in(kind) as server:
        on(server, test)
