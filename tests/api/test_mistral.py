"""Mistral's fill-in-the-middle API: the same completions as /v1/completions, in the shape of a chat."""

from __future__ import annotations

from typing import Any

from onward.server.app import App
from tests.api.served import events, openai_text, post, toy_app
from tests.server.fakes import FakeBackend, delta, in_loop, settings

OWN_FIELDS = {"max_tokens", "prompt"}
"""Fields that this dialect's own code reads; each has a test here."""
REQUEST: tuple[str, dict[str, Any]] = (
    "/v1/fim/completions",
    {"model": "storyteller", "prompt": "Once upon", "max_tokens": 20, "temperature": 1},
)
"""One that is computed, and sampled: its path and body."""

PATH = "/v1/fim/completions"
FIELDS: dict[str, Any] = {"model": "toy", "prompt": "ab ab ab ab", "suffix": " end", "temperature": 0, "max_tokens": 12}


@in_loop
async def test_a_completion_is_that_of_the_completions_route() -> None:
    async with toy_app() as app:
        answer = (await post(app, PATH, **FIELDS)).json
        text = await openai_text(app, **{name: FIELDS[name] for name in FIELDS if name != "model"})
    (choice,) = answer["choices"]
    assert choice["message"]["content"] == text != "" and choice["message"]["role"] == "assistant"
    assert choice["finish_reason"] == "length" and answer["object"] == "chat.completion" and answer["model"] == "toy"
    assert answer["usage"]["completion_tokens"] == 12


@in_loop
async def test_a_stream_folds_to_the_whole_answer() -> None:
    async with toy_app() as app:
        whole = (await post(app, PATH, **FIELDS)).json
        call = await post(app, PATH, stream=True, **FIELDS)
    assert call.body.endswith(b"data: [DONE]\n\n")
    call.sent[-1]["body"] = call.sent[-1]["body"].removesuffix(b"data: [DONE]\n\n")
    chunks = events(call)
    text = "".join(chunk["choices"][0]["delta"]["content"] for chunk in chunks)
    assert text == whole["choices"][0]["message"]["content"]
    assert chunks[0]["choices"][0]["delta"]["role"] == "assistant" and len({chunk["id"] for chunk in chunks}) == 1
    assert chunks[-1]["choices"][0]["finish_reason"] == "length" and chunks[-1]["usage"] == whole["usage"]
    assert all(chunk["object"] == "chat.completion.chunk" for chunk in chunks)


@in_loop
async def test_fields_reach_the_backend() -> None:
    backend = FakeBackend()
    app = App(backend, settings())
    more = {"random_seed": 5, "stop": "x", "min_tokens": 2, "metadata": {"a": [1]}, "prompt_cache_key": "k"}
    await post(app, PATH, model="storyteller", prompt="p", **more)
    (request,) = backend.requests
    assert (request.seed, request.stop, request.min_tokens, request.temperature) == (5, ("x",), 2, 0.7)
    assert request.fill_context


@in_loop
async def test_errors_are_mistrals() -> None:
    async with toy_app() as app:
        wrong = await post(app, PATH, **FIELDS | {"temperature": "hot"})
        missing = await post(app, PATH, **FIELDS | {"model": "nothing"})
        few = await post(app, PATH, **FIELDS | {"min_tokens": 13})
    assert wrong.status == 422 and wrong.json["detail"][0]["loc"] == ["body", "temperature"]
    assert missing.status == 404 and missing.json["object"] == "error" and "nothing" in missing.json["message"]
    assert few.status == 422 and "min_tokens" in few.json["detail"][0]["msg"]
    app = App(FakeBackend(delta("a"), RuntimeError("secret")), settings())
    *_, last = events(await post(app, PATH, model="storyteller", prompt="x", stream=True))
    assert last["object"] == "error" and "secret" not in last["message"]
