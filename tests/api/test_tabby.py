"""Tabby's API: the same completions as /v1/completions, with its segments."""

from __future__ import annotations

from typing import Any

import pytest

from onward.completions.request import InfillContext
from onward.server.app import App
from tests.api.served import openai_text, post, toy_app
from tests.server.fakes import Call, FakeBackend, delta, in_loop, settings

OWN_FIELDS = {
    "declarations", "prefix", "raw_prompt", "relevant_snippets_from_changed_files",
    "relevant_snippets_from_recently_opened_files",
}  # fmt: skip
"""Fields that this dialect's own code reads; each has a test here."""
REQUEST: tuple[str, dict[str, Any]] = (
    "/tabby/v1/completions",
    {"language": "text", "segments": {"prefix": "Once upon"}, "temperature": 1},
)
"""One that is computed, and sampled: its path and body."""

PATH = "/tabby/v1/completions"


@in_loop
async def test_a_completion_is_that_of_the_completions_route() -> None:
    segments = {"prefix": "ab ab ab ab", "suffix": " end", "filepath": "a.py", "git_url": "", "clipboard": ""}
    async with toy_app() as app:
        answer = (await post(app, PATH, language="python", segments=segments, temperature=0, mode="standard")).json
        fields: dict[str, Any] = {"prompt": "ab ab ab ab", "suffix": " end", "max_tokens": 64, "temperature": 0}
        text = await openai_text(app, **fields)
        raw = (await post(app, PATH, debug_options={"raw_prompt": "ab ab"}, temperature=0)).json
        plain = await openai_text(app, prompt="ab ab", max_tokens=64, temperature=0)
    assert answer["choices"] == [{"index": 0, "text": text}] and answer["id"].startswith("cmpl-")
    assert raw["choices"][0]["text"] == plain


@in_loop
async def test_segments_reach_the_backend() -> None:
    backend = FakeBackend(delta("a\nb", finish="stop"))
    app = App(backend, settings())
    segments = {
        "prefix": "x\r\ny",
        "declarations": [{"filepath": "a.py", "body": "A"}],
        "relevant_snippets_from_changed_files": [{"filepath": "b.py", "body": "B", "score": 0.5}],
    }
    answer = (await post(app, PATH, segments=segments, user="u", seed=3)).json
    (request,) = backend.requests
    assert request.infill == InfillContext((("b.py", "B"), ("a.py", "A"))) and request.prompt == "x\ny"
    assert (request.temperature, request.seed, request.user, request.max_tokens) == (0.1, 3, "u", 64)
    assert answer["choices"][0]["text"] == "a\r\nb"


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({}, "'segments' is empty"),
        ({"segments": {"suffix": "x"}}, "Missing required parameter: 'segments.prefix'"),
        ({"segments": {"prefix": "x", "frob": 1}}, "Unknown parameter: 'segments.frob'"),
        ({"segments": {"prefix": "x"}, "mode": "next_edit_suggestion"}, "'mode' does not support"),
        ({"segments": {"prefix": "x", "declarations": [{"filepath": "a"}]}}, "declarations[0].body"),
    ],
)
def test_invalid_requests_are_refused(fields: dict[str, Any], message: str) -> None:
    async def check() -> None:
        call = await post(App(FakeBackend(), settings()), PATH, **fields)
        assert call.status == 400 and message in call.json["error"]["message"]

    in_loop(check)()


@in_loop
async def test_a_failure_is_an_error() -> None:
    app = App(FakeBackend(delta("a"), RuntimeError("secret")), settings())
    assert (await post(app, PATH, segments={"prefix": "x"})).status == 500


@in_loop
async def test_health_names_the_model() -> None:
    call = await Call(App(FakeBackend(), settings()), "GET", "/tabby/v1/health").done()
    assert call.json["model"] == "storyteller" and call.json["cpu_count"] >= 1 and call.json["cuda_devices"] == []
