"""JSON responses, byte by byte."""

from __future__ import annotations

import re

import pytest

from onward.errors import EngineStopped, InvalidRequest, ModelNotFound, Overloaded
from onward.server.app import App
from tests.server.fakes import Call, FakeBackend, completion, delta, in_loop, settings


@in_loop
async def test_a_completion_joins_the_text_deltas() -> None:
    call = await completion(App(FakeBackend(), settings())).done()
    assert call.status == 200
    assert call.json["choices"] == [
        {"text": " there was a fox", "index": 0, "logprobs": None, "finish_reason": "length"}
    ]
    assert call.json["usage"]["total_tokens"] == 10
    assert "error" not in call.json


@in_loop
async def test_a_response_has_its_length_and_openais_headers() -> None:
    call = await completion(App(FakeBackend(), settings())).done()
    headers = call.headers
    assert headers["content-type"] == "application/json"
    assert headers["content-length"] == str(len(call.body))
    assert re.fullmatch(r"req_[0-9a-f]{32}", headers["x-request-id"])
    assert headers["openai-processing-ms"].isdecimal()
    assert headers["openai-version"] == "2020-10-01"
    assert headers["openai-model"] == call.json["model"] == "fake-model:1"
    assert headers["cache-control"] == "no-cache, must-revalidate"
    assert headers["access-control-allow-origin"] == "*"
    assert headers["access-control-expose-headers"] == "X-Request-ID, Onward-Seed"


@in_loop
async def test_an_engine_in_the_path_stands_for_the_model() -> None:
    backend = FakeBackend()
    body = b'{"prompt": "Once"}'
    call = await Call(App(backend, settings()), "POST", "/v1/engines/org/tiny/completions", body).done()
    assert call.status == 200
    assert backend.requests[0].model == "org/tiny"


@in_loop
async def test_a_body_in_several_chunks_is_joined() -> None:
    backend = FakeBackend()
    call = Call(App(backend, settings()), "POST", "/v1/completions", None)
    for chunk in (b'{"model": "storyteller", ', b"", b'"prompt": "On'):
        call.feed(chunk)
    call.feed(b'ce"}', more=False)
    await call.done()
    assert backend.requests[0].prompt == "Once"


@pytest.mark.parametrize(
    ("headers", "url"),
    [
        ({"host": "127.0.0.1:8000"}, "http://127.0.0.1:8000"),
        ({"host": "[::1]:8000"}, "http://[::1]:8000"),
        (
            {"host": "inner", "x-forwarded-host": "api.example.org", "x-forwarded-proto": "https"},
            "https://api.example.org",
        ),
        (
            {"host": "inner", "forwarded": 'for=1.2.3.4;proto=https;host="api.example.org"'},
            "https://api.example.org",
        ),
        ({"host": 'evil"><script>'}, ""),
        ({}, ""),
    ],
)
@in_loop
async def test_the_openai_path_links_the_schema_first(headers: dict[str, str], url: str) -> None:
    app = App(FakeBackend(), settings(allowed_origin=("*",)))
    call = await completion(app, path="/openai/v1/completions", headers=headers).done()
    assert next(iter(call.json)) == "$schema"
    assert call.json["$schema"] == url + "/openai/schemas/Completion.json"
    assert call.headers["link"] == '</openai/schemas/Completion.json>; rel="describedBy"'


@in_loop
async def test_other_paths_have_no_schema() -> None:
    call = await completion(App(FakeBackend(), settings())).done()
    assert "$schema" not in call.json
    assert "link" not in call.headers


@pytest.mark.parametrize(
    ("problem", "status", "code", "retry"),
    [
        (ModelNotFound("no such model"), 404, "model_not_found", None),
        (InvalidRequest("too long", param="prompt"), 400, None, None),
        (Overloaded(retry_after=3), 503, None, "3"),
        (EngineStopped(), 503, None, "1"),
        (RuntimeError("the disk is on fire"), 500, None, None),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
@in_loop
async def test_an_error_of_the_backend_is_an_http_error_streamed_or_not(
    problem: Exception, status: int, code: str | None, retry: str | None, stream: bool
) -> None:
    backend = FakeBackend()
    backend.error_to_raise = problem
    call = await completion(App(backend, settings()), stream=stream).done()
    assert call.status == status
    assert call.headers["content-type"].startswith("application/json")
    assert call.error["code"] == code
    assert call.headers.get("retry-after") == retry
    assert "fire" not in call.body.decode()


@pytest.mark.parametrize("stream", [False, True])
@in_loop
async def test_an_error_before_the_first_token_is_an_http_error(stream: bool) -> None:
    call = await completion(App(FakeBackend(EngineStopped()), settings()), stream=stream).done()
    assert call.status == 503
    assert call.error["type"] == "server_error"


@in_loop
async def test_an_error_while_decoding_sends_no_partial_response(caplog: pytest.LogCaptureFixture) -> None:
    backend = FakeBackend(delta(" there"), ValueError("secret detail"))
    call = await completion(App(backend, settings())).done()
    assert call.status == 500
    assert "secret" not in call.body.decode()
    failure = next(record for record in caplog.records if record.name == "onward.server")
    assert call.headers["x-request-id"] in failure.getMessage()
    assert failure.exc_info is not None
    assert backend.answers[0].closed.is_set()


@in_loop
async def test_a_model_name_with_special_characters_makes_a_valid_header() -> None:
    backend = FakeBackend()
    backend.answer_model = "modèle\r\nx: y"
    call = await completion(App(backend, settings())).done()
    assert call.headers["openai-model"] == "mod%C3%A8le%0D%0Ax: y"
    assert call.json["model"] == "modèle\r\nx: y"
