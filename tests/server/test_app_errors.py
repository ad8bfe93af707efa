"""Every error on every route comes in the error envelope."""

from __future__ import annotations

import asyncio
import gzip
import json

import pytest

from onward import offload
from onward.errors import EngineStopped, Overloaded, ServerError
from onward.model_files.toy import ToyTokenizer
from onward.server import exchange
from onward.server.app import App
from tests.server.fakes import Call, FakeBackend, completion, in_loop, settings, skip
from tests.toy_backend import make_backend, running
from tests.waiting import until


class Panic(BaseException):
    """As pyo3 raises for a panic in Rust."""


URL_ERRORS = [
    ("POST", "/v1/nope", 404, "Invalid URL (POST /v1/nope)", None),
    ("POST", "/v1/completion", 404, "Invalid URL (POST /v1/completion). Did you mean /v1/completions?", None),
    ("GET", "/v1/", 404, "Invalid URL (GET /v1/)", None),
    ("POST", "/openai/v1/nope", 404, "Invalid URL (POST /openai/v1/nope)", None),
    ("POST", "/nope", 404, "Unknown request URL: POST /nope. Please", "unknown_url"),
    ("GET", "/robots.txt", 404, "Unknown request URL: GET /robots.txt. Please", "unknown_url"),
    ("GET", "/v1/models/", 404, "Invalid URL (GET /v1/models/)", None),
    ("GET", "/v1/completions", 405, "Only POST requests are accepted.", "method_not_supported"),
    ("DELETE", "/openai/v1/completions", 405, "Only POST requests are accepted.", "method_not_supported"),
    ("GET", "/v1/engines/x/completions", 405, "Only POST requests are accepted.", "method_not_supported"),
    ("POST", "/v1/models", 405, "Not allowed to POST on /v1/models. (HINT: Perhaps you meant", None),
    ("DELETE", "/v1/models/storyteller", 405, "Not allowed to DELETE on /v1/models/storyteller. (HINT", None),
    ("POST", "/health", 405, "Not allowed to POST on /health. (HINT", None),
    ("GET", "/tokenize", 405, "Not allowed to GET on /tokenize. (HINT", None),
    ("GET", "/v1/models/nope", 404, "The model 'nope' does not exist", "model_not_found"),
    ("GET", "/v1/engines/nope", 404, "The model 'nope' does not exist", "model_not_found"),
    ("GET", "/tokenizer_info?model=nope", 404, "The model `nope` does not exist", "model_not_found"),
]


@pytest.mark.parametrize(("method", "target", "status", "message", "code"), URL_ERRORS)
@in_loop
async def test_a_wrong_url_or_method_is_an_error_in_the_envelope(
    method: str, target: str, status: int, message: str, code: str | None
) -> None:
    call = await Call(App(FakeBackend(), settings()), method, target).done()
    assert call.status == status
    assert call.error["message"].startswith(message)
    assert (call.error["type"], call.error["code"]) == ("invalid_request_error", code)
    assert call.headers["content-type"] == "application/json; charset=utf-8"
    assert ("allow" in call.headers) == (status == 405)


@pytest.mark.parametrize(
    ("path", "message"),
    [
        (
            "/v1/chat/completions",
            "Invalid URL (POST /v1/chat/completions). This server implements the Completions API only. Send POST "
            "/v1/completions with `prompt` instead of `messages`; the client's base URL stays the same.",
        ),
        (
            "/openai/v1/responses",
            "Invalid URL (POST /openai/v1/responses). This server implements the Completions API only. Send POST "
            "/openai/v1/completions with `prompt` instead of `input`; the client's base URL stays the same.",
        ),
        (
            "/chat/completions",
            "Unknown request URL: POST /chat/completions. This server implements the Completions API only. Send POST "
            "/v1/completions with `prompt` instead of `messages`; the client's base URL must end in /v1.",
        ),
        (
            "/api/chat",
            "Unknown request URL: POST /api/chat. This server completes text and has no chat. Send POST /api/generate "
            "with `prompt` instead of `messages`.",
        ),
        (
            "/v1/embeddings",
            "Invalid URL (POST /v1/embeddings). This server implements the Completions API only (POST /v1/completions "
            "with `prompt`); see the docs at /docs.",
        ),
        (
            "/v1/audio/speech",
            "Invalid URL (POST /v1/audio/speech). This server implements the Completions API only (POST "
            "/v1/completions with `prompt`); see the docs at /docs.",
        ),
    ],
)
@in_loop
async def test_the_url_of_another_api_is_a_404_that_says_what_to_do(path: str, message: str) -> None:
    call = await Call(App(FakeBackend(), settings()), "POST", path, b"{}").done()
    assert (call.status, call.error["message"]) == (404, message)
    assert call.error["type"] == "invalid_request_error"


BODY_ERRORS = [
    ("/v1/completions", b"{", "We could not parse the JSON body", None),
    ("/v1/completions", b"", "We could not parse the JSON body", None),
    ("/v1/completions", b"\xff\xfe", "We could not parse the JSON body", None),
    ("/v1/completions", b"[]", "Invalid type for the request body", None),
    ("/v1/completions", b'{"prompt": "x"}', "you must provide a model parameter", None),
    ("/v1/completions", b'{"model": "m", "foo": 1}', "Unrecognized request argument supplied: foo", None),
    ("/v1/completions", b'{"model": "m", "n": "2"}', "Invalid type for 'n'", "n"),
    ("/tokenize", b"{", "We could not parse the JSON body", None),
    ("/tokenize", b'{"prompt": "' + b"x" * 4_000_001 + b'"}', "The text has 4000001 bytes, but this server", "prompt"),
    ("/tokenize", b"{}", "Invalid type for 'prompt': expected a string", "prompt"),
    ("/tokenize", b'{"prompt": 5}', "Invalid type for 'prompt': expected a string", "prompt"),
    (
        "/tokenize",
        b'{"prompt": "", "add_special_tokens": 1}',
        "Invalid type for 'add_special_tokens'",
        "add_special_tokens",
    ),
    ("/tokenize", b'{"prompt": "", "messages": []}', "Unrecognized request argument supplied: messages", None),
    ("/detokenize", b'{"tokens": [1, "2"]}', "Invalid type for 'tokens': expected an array of integers", "tokens"),
    ("/detokenize", b'{"tokens": [true]}', "Invalid type for 'tokens': expected an array of integers", "tokens"),
    ("/detokenize", b'{"tokens": [256]}', "Invalid token: 256. Minimum value is 0, maximum", "tokens"),
]


@pytest.mark.parametrize(("path", "body", "message", "param"), BODY_ERRORS)
@in_loop
async def test_a_wrong_body_is_a_400_in_the_envelope(path: str, body: bytes, message: str, param: str | None) -> None:
    call = await Call(App(FakeBackend(), settings()), "POST", path, body).done()
    assert call.status == 400
    assert call.error["message"].startswith(message)
    assert call.error["param"] == param


@pytest.mark.parametrize(
    ("content_type", "status"),
    [
        ("application/json", 200),
        ("application/json; charset=utf-8", 200),
        ("Application/JSON;charset=UTF-8", 200),
        ("", 200),
        ("text/plain", 400),
        ("application/x-www-form-urlencoded", 400),
        ("multipart/form-data; boundary=x", 400),
    ],
)
@in_loop
async def test_the_content_type_must_be_json(content_type: str, status: int) -> None:
    call = await completion(App(FakeBackend(), settings()), headers={"content-type": content_type}).done()
    assert call.status == status
    if status == 400:
        kind = content_type.partition(";")[0]
        assert call.error["code"] == "unsupported_content_type"
        assert call.error["message"] == (
            f"Unsupported content type: '{kind}'. This API method only accepts 'application/json' requests, but "
            f"you specified the header 'Content-Type: {content_type}'. Please try again with a supported content "
            "type."
        )


@pytest.mark.parametrize("encoding", ["gzip", "br", "zstd", "deflate", "GZIP", "identity, gzip", "x"])
@pytest.mark.parametrize("path", ["/v1/completions", "/tokenize", "/completion", "/api/generate", "/generate"])
@in_loop
async def test_a_compressed_body_is_415_on_every_route(path: str, encoding: str) -> None:
    backend = FakeBackend()
    app = App(backend, settings())
    call = await Call(app, "POST", path, gzip.compress(b"{}"), **{"content-encoding": encoding}).done()
    assert call.status == 415
    assert "without compression" in call.body.decode() and call.headers["accept-encoding"] == "identity"
    assert backend.requests == []


@pytest.mark.parametrize("headers", [{}, {"content-encoding": "identity"}, {"content-encoding": ""}])
@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf"])
@in_loop
async def test_a_body_may_begin_with_a_byte_order_mark(mark: bytes, headers: dict[str, str]) -> None:
    body = mark + b'{"model": "storyteller", "prompt": "a"}'
    app = App(FakeBackend(), settings())
    assert (await Call(app, "POST", "/v1/completions", body, **headers).done()).status == 200


@pytest.mark.parametrize(
    "declared", ["1000", "", "0" * 5000 + "1000", "0" * 5000], ids=["all", "none", "zeros first", "zeros"]
)
@in_loop
async def test_a_body_over_the_limit_is_413_declared_or_chunked(declared: str) -> None:
    backend = FakeBackend()
    call = Call(App(backend, settings(max_body=100)), "POST", "/v1/completions", None, **{"content-length": declared})
    for _ in range(9):
        call.feed(b"x" * 100)
    call.feed(b"x" * 100, more=False)
    await call.done()
    assert call.status == 413
    assert call.error["type"] == "invalid_request_error"
    assert call.headers["connection"] == "close"
    assert call.unread == 0
    assert backend.requests == []


@in_loop
async def test_a_body_of_exactly_the_limit_is_accepted() -> None:
    body = b'{"model": "m", "prompt": "x"}'
    app = App(FakeBackend(), settings(max_body=len(body)))
    assert (await Call(app, "POST", "/v1/completions", body).done()).status == 200
    assert (await Call(app, "POST", "/v1/completions", body + b" ").done()).status == 413


@in_loop
async def test_a_client_that_expects_100_continue_is_refused_before_it_sends() -> None:
    call = Call(
        App(FakeBackend(), settings(max_body=100)),
        "POST",
        "/v1/completions",
        None,
        **{"content-length": "1000", "expect": "100-continue"},
    )
    await call.done()
    assert call.status == 413


@in_loop
async def test_a_body_that_stalls_is_refused() -> None:
    call = Call(App(FakeBackend(), settings()), "POST", "/v1/completions", None)
    call.feed(b"{")
    await until(lambda: not call.unread)
    await skip(exchange.BODY_IDLE_SECONDS)
    await call.done()
    assert call.status == 408
    assert call.error["message"].startswith("No more of the request body arrived")
    assert call.headers["connection"] == "close"


@in_loop
async def test_a_body_that_arrives_slowly_but_steadily_is_accepted() -> None:
    call = Call(App(FakeBackend(), settings()), "POST", "/v1/completions", None)
    body = b'{"model": "m", "prompt": "x"}'
    for chunk in (body[:10], body[10:20]):
        call.feed(chunk)
        await until(lambda: not call.unread)
        await skip(exchange.BODY_IDLE_SECONDS * 0.6)
    call.feed(body[20:], more=False)
    await call.done()
    assert call.status == 200


@in_loop
async def test_a_body_that_arrives_forever_is_refused() -> None:
    call = Call(App(FakeBackend(), settings()), "POST", "/v1/completions", None)
    while not call.task.done():
        call.feed(b" ")
        await until(lambda: call.task.done() or not call.unread)
        await skip(exchange.BODY_IDLE_SECONDS / 2)
    assert call.status == 408
    assert "not complete" in call.error["message"]


@in_loop
async def test_an_oversized_body_that_stalls_is_refused_all_the_same() -> None:
    call = Call(App(FakeBackend(), settings(max_body=10)), "POST", "/v1/completions", None)
    call.feed(b"x" * 11)
    await until(lambda: not call.unread)
    await skip(exchange.DISCARD_SECONDS)
    await call.done()
    assert call.status == 413


@in_loop
async def test_responses_while_draining_close_their_connections() -> None:
    backend = FakeBackend()
    backend.drain()
    call = await completion(App(backend, settings())).done()
    assert call.status == 503
    assert call.headers["connection"] == "close"
    assert call.headers["retry-after"] == "1"


@in_loop
async def test_a_failure_in_a_page_is_500_without_its_cause() -> None:
    backend = FakeBackend()
    backend.models = lambda: 1 / 0  # type: ignore[method-assign,assignment,return-value]
    call = await Call(App(backend, settings()), "GET", "/v1/models").done()
    assert call.status == 500
    assert "division" not in call.body.decode()
    assert call.error["type"] == "server_error"


@in_loop
async def test_concurrent_requests_get_one_response_each() -> None:
    app = App(FakeBackend(), settings())
    calls = [completion(app, stream=index % 2 == 0) for index in range(20)]
    await asyncio.gather(*(call.done() for call in calls))
    assert all(call.ended and call.status == 200 for call in calls)
    assert app.num_running == 0


@pytest.mark.parametrize(
    ("error", "headers"),
    [
        (ServerError(final=True), ("false", None)),
        (EngineStopped(final=True), ("false", None)),
        (ServerError(), (None, None)),
        (EngineStopped(), (None, "1")),
        (Overloaded(), (None, "1")),
    ],
)
@in_loop
async def test_only_a_dead_engine_forbids_a_retry(error: Exception, headers: tuple[str | None, str | None]) -> None:
    backend = FakeBackend()
    backend.error_to_raise = error
    call = await completion(App(backend, settings())).done()
    assert call.status >= 500
    assert (call.headers.get("x-should-retry"), call.headers.get("retry-after")) == headers


@in_loop
async def test_an_error_quotes_only_the_beginning_of_long_client_input() -> None:
    for fields in ({"<" * 100_000: 1}, {"logit_bias": {"<" * 100_000: 1}}, {str(one): 1 for one in range(20_000)}):
        call = await completion(App(FakeBackend(), settings()), **fields).done()
        assert call.status == 400
        assert len(call.body) < 10_000
        assert call.error["message"].endswith("…")


@pytest.mark.parametrize("error", [Panic, SystemExit, MemoryError])
@pytest.mark.parametrize("length", [3, 20_000, 40_000])
@in_loop
async def test_a_tokenizer_that_fails_ends_one_request_only(
    monkeypatch: pytest.MonkeyPatch, length: int, error: type[BaseException]
) -> None:
    """On the event loop, on a thread of the pool, and on the one for large texts, all of which continue."""
    encode = ToyTokenizer.encode

    def failing(tokenizer: ToyTokenizer, text: str, *, add_special_tokens: bool = True) -> list[int]:
        if "!" in text:
            raise error("called `Option::unwrap()` on a `None` value")
        return encode(tokenizer, text, add_special_tokens=add_special_tokens)

    monkeypatch.setattr(ToyTokenizer, "encode", failing)
    monkeypatch.setattr(offload, "MIN_QUEUED_SIZE", 30_000)
    async with running(make_backend()) as backend:
        app = App(backend, settings(max_body=8_000_000))
        for _ in range(4):  # more than there are threads
            body = json.dumps({"model": "toy", "prompt": "!" * length}).encode()
            call = await Call(app, "POST", "/tokenize", body).done()
            assert call.status == 500 and "unwrap" not in call.error["message"]
        body = json.dumps({"model": "toy", "prompt": "a" * length}).encode()
        call = await Call(app, "POST", "/tokenize", body).done()
        assert call.status == 200 and call.json["count"] >= length
