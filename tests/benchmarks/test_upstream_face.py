"""The stand-in that measures a server alone: what it answers is vLLM's stream, and a server passes all of it on."""

from __future__ import annotations

import asyncio
import json

import pytest
from benchmarks.upstream_face import answer, load, stand_in

from tests.parity.servers import Server


@pytest.mark.parametrize(("num_tokens", "per_event"), [(1, 8), (16, 8), (20, 8)])
def test_an_answer_has_all_tokens_and_ends_once(num_tokens: int, per_event: int) -> None:
    head, _, body = answer(num_tokens, per_event).partition(b"\r\n\r\n")
    assert b"content-length: %d\r\n" % len(body) in head + b"\r\n"
    events = [json.loads(line[6:])["choices"][0] for line in body.splitlines() if line.startswith(b"data: {")]
    assert sum(len(event["token_ids"]) for event in events) == num_tokens
    assert [event["finish_reason"] for event in events] == [None] * (len(events) - 1) + ["length"]


@pytest.mark.slow
def test_a_server_passes_an_upstreams_answer_on() -> None:
    with stand_in(64, 8) as upstream:
        server = Server("--tokenizer", "toy=toy", model=f"toy=vllm+{upstream}")
        try:
            assert asyncio.run(load([server.url + "/v1"], 4, 8, 64)) > 0
            assert len(server.ask(max_tokens=64).text) == 64
        finally:
            server.close()
