"""Models, engines, tokens, health, metrics, schemas, pages, preflight, access log."""

from __future__ import annotations

import asyncio
import re

import pytest

import onward
from onward.server.app import App
from tests.server.fakes import Call, FakeBackend, completion, delta, in_loop, settings


async def get(target: str, backend: FakeBackend | None = None) -> Call:
    return await Call(App(backend or FakeBackend(), settings()), "GET", target).done()


@pytest.mark.parametrize("root", ["/v1", "/openai/v1", ""])
@in_loop
async def test_models_are_listed_and_found(root: str) -> None:
    listed = (await get(f"{root}/models")).json
    assert listed["object"] == "list"
    assert listed["data"][0] == {"id": "storyteller", "object": "model", "created": 1, "owned_by": "onward"}
    assert (await get(f"{root}/models/org/tiny")).json["id"] == "org/tiny"


@in_loop
async def test_engines_are_models_in_the_shape_of_the_first_clients() -> None:
    engine = (await get("/v1/engines")).json["data"][0]
    assert engine["object"] == "engine"
    assert engine["ready"] is True
    assert (await get("/v1/engines/org/tiny")).json["id"] == "org/tiny"


@in_loop
async def test_text_becomes_tokens_and_text_again() -> None:
    app = App(FakeBackend(), settings())
    answer = (await Call(app, "POST", "/tokenize", b'{"prompt": "hi"}').done()).json
    assert answer == {"count": 3, "max_model_len": 512, "tokens": [0, 104, 105], "token_strs": None}
    body = b'{"prompt": "hi", "model": null, "add_special_tokens": false, "return_token_strs": true}'
    answer = (await Call(app, "POST", "/tokenize", body).done()).json
    assert (answer["tokens"], answer["token_strs"]) == ([104, 105], ["h", "i"])
    assert "token_bytes" not in answer
    body = b'{"prompt": "hi", "add_special_tokens": false, "return_token_bytes": true}'
    answer = (await Call(app, "POST", "/tokenize", body).done()).json
    assert (answer["token_bytes"], answer["token_strs"]) == (["68", "69"], None)
    answer = (await Call(app, "POST", "/detokenize", b'{"tokens": [104, 105]}').done()).json
    assert answer == {"prompt": "hi", "content": "hi"}


@in_loop
async def test_a_long_text_is_tokenized_too() -> None:
    text = "word " * 10_000
    body = b'{"prompt": "%s", "add_special_tokens": false}' % text.encode()
    answer = (await Call(App(FakeBackend(), settings()), "POST", "/tokenize", body).done()).json
    assert answer["count"] == len(text)


@in_loop
async def test_tokenizer_info_has_what_evaluation_harnesses_read() -> None:
    info = (await get("/tokenizer_info?model=storyteller")).json
    assert info["eos_token"] == "<end>"
    assert info["bos_token"] is None
    assert info["model_max_length"] == 512


@pytest.mark.parametrize(("state", "status"), [("ready", 200), ("recovering", 503), ("draining", 503), ("dead", 503)])
@in_loop
async def test_health_reports_the_state_of_the_backend(state: str, status: int) -> None:
    backend = FakeBackend()
    backend.state = state
    call = await get("/health", backend)
    assert (call.status, call.json["status"]) == (status, state)
    model = {"draining": "ready"}.get(state, state)
    assert call.json["models"] == {"fake-model:1": {"status": model, "detail": ""}}
    live = await get("/live", backend)
    assert (live.status, live.json) == (200, {"status": "live"}), "a server that is not ready must not be killed"
    assert live.headers["cache-control"] == call.headers["cache-control"] == "no-store"


@in_loop
async def test_health_names_models_only_to_those_who_have_a_key() -> None:
    app = App(FakeBackend(), settings(api_key=["sk-secret"]))
    for key in ("", "Bearer sk-wrong"):
        call = await Call(app, "GET", "/health", authorization=key).done()
        assert call.json == {"status": "ready", "detail": ""}
    call = await Call(app, "GET", "/health", authorization="Bearer sk-secret").done()
    assert list(call.json["models"]) == ["fake-model:1"]


@in_loop
async def test_a_head_request_is_a_get_without_its_body() -> None:
    call = await Call(App(FakeBackend(), settings()), "HEAD", "/health").done()
    assert call.status == 200
    assert int(call.headers["content-length"]) > 0


def metric(text: str, line: str) -> float:
    found = re.search(rf"^{re.escape(line)} (\S+)$", text, re.MULTILINE)
    assert found, f"{line} is not in the metrics"
    return float(found[1])


@in_loop
async def test_metrics_count_requests_tokens_and_latencies() -> None:
    backend = FakeBackend()
    app = App(backend, settings())
    await completion(app).done()
    await completion(app, stream=True).done()
    await Call(app, "POST", "/v1/nope").done()
    backend.script_of = lambda _: [delta("a"), asyncio.Event()]
    gone = completion(app, stream=True)
    await gone.until(2)
    gone.leave()
    await gone.done()
    text = (await Call(app, "GET", "/metrics").done()).body.decode()
    model = 'model="fake-model:1"'
    assert metric(text, f'onward_requests_total{{{model},route="/v1/completions",status="200"}}') == 3
    assert metric(text, 'onward_requests_total{model="",route="-",status="404"}') == 1
    assert metric(text, "onward_requests_cancelled_total") == 1
    assert metric(text, "onward_requests_in_flight") == 1
    assert metric(text, f"onward_prompt_tokens_total{{{model}}}") == 21
    assert metric(text, f"onward_completion_tokens_total{{{model}}}") == 7
    assert metric(text, f"onward_cached_tokens_total{{{model}}}") == 12
    assert metric(text, f"onward_time_to_first_token_seconds_count{{{model}}}") == 3
    assert metric(text, f"onward_inter_token_seconds_count{{{model}}}") == 4
    assert metric(text, 'onward_request_seconds_count{route="/v1/completions"}') == 3
    assert metric(text, f"onward_engine_running{{{model}}}") == 3
    assert metric(text, f"onward_engine_rows{{{model}}}") == 3
    assert metric(text, f"onward_engine_waiting{{{model}}}") == 2
    assert metric(text, f"onward_kv_blocks_used{{{model}}}") == 4
    assert metric(text, f"onward_kv_blocks{{{model}}}") == 10
    assert metric(text, f"onward_engine_preemptions_total{{{model}}}") == 1
    assert metric(text, f"onward_engine_steps_total{{{model}}}") == 9


@in_loop
async def test_preflight_allows_every_origin() -> None:
    call = await Call(
        App(FakeBackend(), settings(api_key=("sk-a",))),
        "OPTIONS",
        "/v1/completions",
        b"",
        **{"access-control-request-headers": "authorization,content-type"},
    ).done()
    assert (call.status, call.body) == (204, b"")
    assert call.headers["access-control-allow-origin"] == "*"
    assert call.headers["access-control-allow-methods"] == "OPTIONS, POST"
    assert call.headers["access-control-allow-headers"] == "authorization,content-type"
    assert "content-length" not in call.headers


@in_loop
async def test_every_documented_path_is_served() -> None:
    app = App(FakeBackend(), settings())
    document = (await Call(app, "GET", "/openapi.json").done()).json
    assert document["info"]["version"] == onward.__version__
    for path, methods in document["paths"].items():
        for method in {"get", "post", "delete"} & set(methods):
            target = re.sub(r"\{\w+\}", "storyteller", path)
            call = await Call(app, method.upper(), target, b'{"model": null, "prompt": "x", "tokens": []}').done()
            if path.endswith("/completions/{id}"):
                assert (call.status, "no stream" in call.error["message"]) == (404, True)
            elif path.startswith("/v1/organization/"):
                assert (call.status, "has no ledger" in call.error["message"]) == (404, True)
            elif path.startswith("/v1/admin/") or path.endswith("load_lora_adapter"):
                assert (call.status, "needs an admin key" in call.error["message"]) == (403, True)
            elif path.startswith(("/v1/files", "/v1/batches")):
                assert (call.status, "no files and batches" in call.error["message"]) == (404, True)
            else:
                assert call.status in (200, 400, 422), (method, path)  # 422: as some dialects say 400


@in_loop
async def test_the_schema_of_completions_is_where_links_point() -> None:
    schema = (await get("/openai/schemas/Completion.json")).json
    assert schema["title"] == "Completion"
    assert set(schema["required"]) >= {"id", "object", "created", "model", "choices"}


@in_loop
async def test_the_application_handles_lifespan_and_websocket_scopes() -> None:
    incoming: asyncio.Queue[dict[str, str]] = asyncio.Queue()
    sent: list[str] = []

    async def send(message: dict[str, str]) -> None:
        sent.append(message["type"])

    app = App(FakeBackend(), settings())
    for kind in ("lifespan.startup", "lifespan.shutdown"):
        incoming.put_nowait({"type": kind})
    await app({"type": "lifespan"}, incoming.get, send)  # type: ignore[arg-type]
    await app({"type": "websocket"}, incoming.get, send)  # type: ignore[arg-type]
    assert sent == ["lifespan.startup.complete", "lifespan.shutdown.complete", "websocket.close"]
