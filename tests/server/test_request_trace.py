"""The spans of requests: their attributes and parents, and that they have no text unless it is requested."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from onward.backends.embedded import EmbeddedBackend
from onward.completions.request import CompletionRequest
from onward.errors import ServerError
from onward.server.app import App
from onward.server.request_trace import CompletionTrace
from onward.service.team import Team
from onward.tracing import RequestTrace, context_of
from tests.engines.upstreams.harness import PROMPT, on, spell
from tests.engines.upstreams.standin import stand_in
from tests.server.fakes import Call, FakeBackend, completion, delta, in_loop, settings
from tests.service.databases import store_with
from tests.test_tracing import PARENT, Spans
from tests.toy_backend import make_backend, running

SECRETS = ("a very private prompt", "STOPWORD", "somebody@example.com", "sk-secret")


def asked(app: Any, **fields: Any) -> Call:
    headers = fields.pop("headers", {})
    body = {"prompt": SECRETS[0], "stop": SECRETS[1], "user": SECRETS[2], "max_tokens": 5, **fields}
    return completion(app, headers={"authorization": "Bearer sk-secret", **headers}, **body)


@in_loop
async def test_a_completion_has_the_spans_of_the_conventions() -> None:
    spans = Spans()
    app = App(FakeBackend(), settings(api_key=("sk-secret",)), tracer=spans)
    fields = {"temperature": 0.5, "top_p": 0.9, "n": 2, "seed": 7, "top_k": 3, "stream": True}
    call = await asked(app, headers={"traceparent": PARENT}, **fields).done()
    assert call.status == 200
    assert spans.names == ["POST /v1/completions", "text_completion storyteller"]
    server, inference = spans["POST /v1/completions"], spans["text_completion storyteller"]
    assert f"{server.context.trace_id:032x}" in PARENT and f"{server.parent_id:016x}" in PARENT
    assert inference.parent_id == server.context.span_id and inference.kind == "internal"
    assert server.attributes == {
        "http.request.method": "POST", "http.route": "/v1/completions", "url.path": "/v1/completions",
        "url.scheme": "http", "http.response.status_code": 200, "onward.request.id": call.headers["x-request-id"],
        "onward.key.name": "-",
    }  # fmt: skip
    first_token = inference.attributes.pop("gen_ai.response.time_to_first_chunk")
    assert isinstance(first_token, float) and 0 < first_token < 10
    assert inference.attributes == {
        "gen_ai.operation.name": "text_completion", "gen_ai.provider.name": "onward", "gen_ai.output.type": "text",
        "gen_ai.request.model": "storyteller", "gen_ai.request.max_tokens": 5, "gen_ai.request.temperature": 0.5,
        "gen_ai.request.top_p": 0.9, "gen_ai.request.stream": True, "gen_ai.request.choice.count": 2,
        "gen_ai.request.seed": 7, "gen_ai.request.top_k": 3, "gen_ai.response.model": "fake-model:1",
        "gen_ai.response.finish_reasons": ["length"], "gen_ai.usage.input_tokens": 7,
        "gen_ai.usage.output_tokens": 3, "gen_ai.usage.cache_read.input_tokens": 4,
        "gen_ai.usage.reasoning.output_tokens": 0, "onward.fingerprint": "fp_fake",
    }  # fmt: skip


@in_loop
async def test_no_span_has_text_or_keys() -> None:
    spans = Spans()
    backend = FakeBackend()
    app = App(backend, settings(api_key=("sk-secret",)), tracer=spans)
    await asked(app).done()
    await asked(app, max_tokens=-1).done()
    await Call(app, "GET", "/v1/models?q=sk-secret", authorization="Bearer sk-secret").done()
    backend.error_to_raise = ServerError("a very private prompt was wrong")
    await asked(app).done()
    assert len(spans.found) == 6
    for span in spans.found:
        assert not any(secret in repr(span) for secret in (*SECRETS, "there was a fox"))


@in_loop
async def test_prompts_and_completions_are_in_spans_where_that_is_asked_for() -> None:
    spans = Spans(keeps_prompts=True)
    app = App(FakeBackend(), settings(), tracer=spans)
    await asked(app, prompt=["one", "two"], stream=True).done()
    attributes = spans["text_completion storyteller"].attributes
    given = json.loads(str(attributes["gen_ai.input.messages"]))
    assert [each["parts"][0]["content"] for each in given] == ["one", "two"]
    assert {each["role"] for each in given} == {"user"}
    (made,) = json.loads(str(attributes["gen_ai.output.messages"]))
    assert made == {
        "role": "assistant", "parts": [{"type": "text", "content": " there was a fox"}], "finish_reason": "length"
    }  # fmt: skip
    spans.found.clear()
    await asked(app, prompt="x" * 50_000).done()
    attributes = spans["text_completion storyteller"].attributes
    (part,) = json.loads(str(attributes["gen_ai.input.messages"]))[0]["parts"]
    assert part["content"] == "x" * 16_384 + "…"
    spans.found.clear()
    await asked(app, prompt=[5, 6]).done()
    assert "(2 token ids)" in str(spans["text_completion storyteller"].attributes["gen_ai.input.messages"])


@in_loop
async def test_a_span_has_the_beginning_of_a_long_answer_and_an_unsampled_one_nothing() -> None:
    backend = FakeBackend(script_of=lambda _: [delta("ä" * 10_000), delta("x" * 10_000, finish="stop")])
    spans = Spans(keeps_prompts=True)
    app = App(backend, settings(), tracer=spans)
    await asked(app, stream=True).done()
    (made,) = json.loads(str(spans["text_completion storyteller"].attributes["gen_ai.output.messages"]))
    assert made["parts"][0]["content"] == "ä" * 10_000 + "x" * 6_384 + "…"
    request = CompletionRequest(prompt="a")
    for traceparent, is_kept in ((PARENT, True), (PARENT[:-2] + "00", False)):
        trace = CompletionTrace(RequestTrace(spans, context_of(traceparent)), request, may_keep_prompts=True)
        trace.generated(delta("private"))
        assert bool(list(trace._choices.texts())) is is_kept


def test_keys_that_are_not_logged_have_no_text_in_spans(tmp_path: Path) -> None:
    with store_with(tmp_path, alice={"logs_requests": False}, bob={}) as store:

        @in_loop
        async def run() -> None:
            spans, team = Spans(keeps_prompts=True), Team(store, tmp_path)
            app = App(FakeBackend(), settings(), team=team, tracer=spans)
            for name in ("alice", "bob"):
                await completion(app, headers={"authorization": f"Bearer sk-{name}"}).done()
            found = [span for span in spans.found if span.name.startswith("text_completion")]
            assert ["gen_ai.input.messages" in span.attributes for span in found] == [False, True]
            keys = [span.attributes.get("onward.key.name") for span in spans.found if span.kind == "server"]
            assert keys == ["alice", "bob"]
            team.close()

        run()


@pytest.mark.parametrize(
    ("script", "error"),
    [([ServerError()], "server_error"), ([delta("a"), RuntimeError("secret")], "server_error")],
)
def test_failures_are_errors_of_both_spans(script: list[Any], error: str) -> None:
    @in_loop
    async def run() -> None:
        spans = Spans()
        app = App(FakeBackend(*script), settings(), tracer=spans)
        call = await completion(app).done()
        assert call.status == 500
        inference, server = spans["text_completion storyteller"], spans["POST /v1/completions"]
        assert inference.error == inference.attributes["error.type"] == error
        assert server.error == server.attributes["error.type"] == "500"

    run()


@in_loop
async def test_a_client_that_leaves_ends_its_spans() -> None:
    spans = Spans()
    app = App(FakeBackend(delta("a"), asyncio.Event()), settings(), tracer=spans)
    call = completion(app, stream=True)
    await call.until(2)
    call.leave()
    await call.done()
    assert spans["text_completion storyteller"].error == "cancelled"
    assert spans["POST /v1/completions"].attributes["http.response.status_code"] == 200


@in_loop
async def test_polls_of_monitoring_are_not_traced() -> None:
    spans = Spans()
    app = App(FakeBackend(), settings(), tracer=spans)
    for path in ("/health", "/live", "/metrics", "/v1/models", "/v1/nothing"):
        await Call(app, "GET", path).done()
    assert spans.names == ["GET -", "GET /v1/models"]
    metrics = (await Call(app, "GET", "/metrics").done()).body.decode()
    assert 'onward_trace_spans_total{outcome="exported"} 2.0' in metrics


def test_servers_that_compute_get_the_trace_and_are_spans_of_it() -> None:
    with stand_in("vllm") as server:
        server.faults = ["half"]
        spell(server, "a text")

        async def test(backend: EmbeddedBackend) -> None:
            spans = Spans()
            app = App(backend, settings(), tracer=spans)
            call = await completion(
                app, model="there", prompt=PROMPT, max_tokens=6, temperature=0, headers={"traceparent": PARENT}
            ).done()
            assert call.status == 200 and call.json["choices"][0]["text"] == "a text"
            engine = spans["engine"]
            calls = [span for span in spans.found if span.kind == "client"]
            assert [span.name for span in calls] == ["POST", "POST"], "the first one was lost"
            assert {span.parent_id for span in calls} == {engine.context.span_id}
            assert [each["traceparent"] for each in server.headers] == [
                span.context.headers["traceparent"] for span in calls
            ]
            assert all(PARENT[3:35] in each["traceparent"] for each in server.headers)
            assert calls[0].error and not calls[1].error
            assert calls[1].attributes["server.address"] == "127.0.0.1"
            assert calls[1].attributes["http.response.status_code"] == 200
            server.headers.clear()
            untraced = await completion(App(backend, settings()), model="there", prompt=PROMPT).done()
            assert untraced.status == 200 and "traceparent" not in server.headers[0]

        on(server, test)


@in_loop
async def test_an_engine_says_how_long_a_prompt_waited_and_was_prefilled() -> None:
    spans = Spans()
    async with running(make_backend()) as backend:
        app = App(backend, settings(), tracer=spans)
        call = await completion(app, model="toy", max_tokens=8, ignore_eos=True, prompt=["a", "b"]).done()
        assert call.status == 200
    assert spans.names == [
        "POST /v1/completions", "decode", "engine", "prefill", "queue", "text_completion toy"
    ]  # fmt: skip
    assert spans["engine"].parent_id == spans["text_completion toy"].context.span_id
    assert spans["engine"].attributes == {"onward.tokens.computed": 16}
    parts = [spans[name] for name in ("queue", "prefill", "decode")]
    assert [each.parent_id for each in parts] == [spans["engine"].context.span_id] * 3
    assert parts[0].end_ns == parts[1].start_ns < parts[1].end_ns == parts[2].start_ns < parts[2].end_ns
