"""Ollama's native API: the same completions as /v1/completions, as lines of JSON."""

from __future__ import annotations

import json
from datetime import datetime
from typing import Any

import pytest

from onward.server.app import App
from tests.api.served import openai_text, post, toy_app
from tests.server.fakes import Call, FakeBackend, delta, in_loop, settings

OWN_FIELDS = {"logprobs", "num_predict", "prompt", "top_logprobs"}
"""Fields that this dialect's own code reads; each has a test here."""
REQUEST: tuple[str, dict[str, Any]] = (
    "/api/generate",
    {"model": "storyteller", "prompt": "Once upon", "stream": False, "options": {"num_predict": 20}},
)
"""One that is computed, and sampled: its path and body."""

PROMPT = "ab ab ab ab"
OPTIONS = {"temperature": 0, "num_predict": 12}


def lines(call: Call) -> list[dict[str, Any]]:
    return [json.loads(line) for line in call.body.decode().splitlines()]


@in_loop
async def test_an_unknown_model_has_ollamas_error_message() -> None:
    async with toy_app() as app:
        calls = [
            await post(app, "/api/generate", model="nope", prompt="x"),
            await post(app, "/api/generate", model="nope"),
            await post(app, "/api/show", model="nope"),
        ]
    assert [(call.status, call.json) for call in calls] == [(404, {"error": "model 'nope' not found"})] * 3


@in_loop
async def test_a_completion_is_that_of_the_completions_route() -> None:
    async with toy_app() as app:
        answer = (await post(app, "/api/generate", model="toy", prompt=PROMPT, stream=False, options=OPTIONS)).json
        text = await openai_text(app, prompt=PROMPT, temperature=0, max_tokens=12)
    assert answer["response"] == text != ""
    assert answer["model"] == "toy" and answer["done"] is True and answer["done_reason"] == "length"
    assert answer["eval_count"] == 12 and answer["prompt_eval_count"] > 0
    assert abs(answer["total_duration"] - answer["prompt_eval_duration"] - answer["eval_duration"]) <= 2  # rounding
    assert datetime.fromisoformat(answer["created_at"]).tzinfo is not None


@in_loop
async def test_a_stream_is_the_default_and_folds_to_the_whole_answer() -> None:
    async with toy_app() as app:
        whole = (await post(app, "/api/generate", model="toy", prompt=PROMPT, stream=False, options=OPTIONS)).json
        call = await post(app, "/api/generate", model="toy:latest", prompt=PROMPT, raw=True, options=OPTIONS)
    *partial, final = lines(call)
    assert call.headers["content-type"] == "application/x-ndjson"
    assert "".join(line["response"] for line in partial) == whole["response"]
    assert not any(line["done"] for line in partial) and {line["model"] for line in partial} == {"toy:latest"}
    assert final["done"] is True and final["response"] == ""
    for name in ("done_reason", "eval_count", "prompt_eval_count"):
        assert final[name] == whole[name]


@in_loop
async def test_a_suffix_and_options_have_an_effect() -> None:
    async with toy_app() as app:
        fields: dict[str, Any] = {"prompt": PROMPT, "suffix": " end"}
        answer = (await post(app, "/api/generate", model="toy", stream=False, options=OPTIONS, **fields)).json
        text = await openai_text(app, temperature=0, max_tokens=12, **fields)
        options = OPTIONS | {"stop": [text[3:5]], "num_ctx": 4096}
        stopped = (await post(app, "/api/generate", model="toy", stream=False, options=options, **fields)).json
    assert answer["response"] == text
    assert stopped["response"] == text[: text.index(text[3:5])] and stopped["done_reason"] == "stop"


@in_loop
async def test_defaults_are_ollamas() -> None:
    backend = FakeBackend()
    app = App(backend, settings())
    await post(app, "/api/generate", model="storyteller", prompt="x", options={"seed": -1})
    await post(app, "/api/generate", model="storyteller", prompt="x", options={"seed": 7, "repeat_penalty": 1.2})
    first, second = backend.requests
    assert (first.temperature, first.top_k, first.top_p, first.seed) == (0.8, 40, 0.9, None)
    assert first.fill_context and first.stream
    assert (second.seed, second.repetition_penalty) == (7, 1.2)


@in_loop
async def test_log_probabilities_have_texts_and_bytes() -> None:
    async with toy_app() as app:
        fields: dict[str, Any] = {"model": "toy", "prompt": PROMPT, "options": OPTIONS, "logprobs": True}
        whole = (await post(app, "/api/generate", stream=False, top_logprobs=2, **fields)).json
        streamed = lines(await post(app, "/api/generate", top_logprobs=2, **fields))
    assert len(whole["logprobs"]) == 12
    first = whole["logprobs"][0]
    assert first["token"].encode() == bytes(first["bytes"]) and len(first["top_logprobs"]) == 2
    assert [entry for line in streamed for entry in line.get("logprobs", [])] == whole["logprobs"]


@in_loop
async def test_without_a_prompt_the_model_is_loaded() -> None:
    async with toy_app() as app:
        answer = (await post(app, "/api/generate", model="toy")).json
        missing = await post(app, "/api/generate", model="nothing")
    assert (answer["done"], answer["done_reason"], answer["response"]) == (True, "load", "")
    assert missing.status == 404 and "nothing" in missing.json["error"]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"prompt": "x"}, "Missing required parameter: 'model'"),
        ({"model": "toy", "prompt": "x", "format": "yaml"}, "Supported values are: 'json'"),
        ({"model": "toy", "prompt": "x", "system": "Be kind."}, "'system' does not support"),
        ({"model": "toy", "prompt": "x", "context": [1, 2]}, "'context' does not support"),
        ({"model": "toy", "prompt": "x", "keep_alive": 0}, "'keep_alive' does not support 0"),
        ({"model": "toy", "prompt": "x", "options": {"frob": 1}}, "Unknown parameter: 'options.frob'"),
        ({"model": "toy", "prompt": "x", "options": {"mirostat": 3}}, "Invalid 'options.mirostat'"),
    ],
)
def test_invalid_requests_have_ollamas_errors(fields: dict[str, Any], message: str) -> None:
    async def check() -> None:
        async with toy_app() as app:
            call = await post(app, "/api/generate", **fields)
        assert call.status == 400 and list(call.json) == ["error"] and message in call.json["error"]

    in_loop(check)()


@in_loop
async def test_a_failure_ends_a_stream_with_an_error() -> None:
    app = App(FakeBackend(delta("a"), RuntimeError("secret")), settings())
    first, last = lines(await post(app, "/api/generate", model="storyteller", prompt="x"))
    assert first["response"] == "a" and list(last) == ["error"] and "secret" not in last["error"]


@in_loop
async def test_models_are_listed_and_described() -> None:
    async with toy_app() as app:
        tags = (await Call(app, "GET", "/api/tags").done()).json["models"]
        running = (await Call(app, "GET", "/api/ps").done()).json["models"]
        shown = (await post(app, "/api/show", name="toy:latest")).json
        version = (await Call(app, "GET", "/api/version").done()).json
        missing = await post(app, "/api/show", model="nothing")
        unnamed = await post(app, "/api/show")
    assert [model["name"] for model in tags] == [model["name"] for model in running] == ["toy", "gpt-old"]
    assert shown["capabilities"] == ["completion", "insert"]
    assert shown["model_info"]["onward.context_length"] == running[0]["context_length"]
    assert version["version"] and missing.status == 404 and unnamed.status == 400


@in_loop
async def test_the_answer_to_a_head_request_for_the_tags_has_no_body() -> None:
    """This is how Ollama's command line checks for a server."""
    call = await Call(App(FakeBackend(), settings()), "HEAD", "/api/tags").done()
    assert call.status == 200


@in_loop
async def test_a_format_constrains_the_response() -> None:
    schema = {"type": "object", "properties": {"a": {"const": 1}}, "required": ["a"], "additionalProperties": False}
    async with toy_app() as app:
        fields = {"model": "toy", "prompt": "x", "stream": False}
        written = (await post(app, "/api/generate", format=schema, **fields)).json
        anything = (await post(app, "/api/generate", format="json", options={"num_predict": 1}, **fields)).json
        unset = (await post(app, "/api/generate", format="", options={"num_predict": 2}, **fields)).json
    assert json.loads(written["response"]) == {"a": 1} and written["done_reason"] == "stop"
    assert anything["response"].startswith("{")
    assert unset["eval_count"] == 2
