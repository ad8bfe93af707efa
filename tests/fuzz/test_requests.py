"""Property tests: every request gets one complete response, errors in the envelope, and never a 500."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from onward.server.app import App
from tests.examples import UNICODE, examples
from tests.server.fakes import Call, FakeBackend, settings

PATHS = ["/v1/completions", "/openai/v1/completions", "/v1/engines/m/completions", "/tokenize", "/detokenize"]
FIELDS = ["model", "prompt", "stream", "n", "max_tokens", "tokens", "stream_options", "logprobs", "user", "stop"]
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(UNICODE),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(UNICODE, max_size=5), inner, max_size=3),
    max_leaves=5,
)


def ask(method: str, target: str, body: bytes, **headers: str) -> Call:
    async def talk() -> Call:
        async with asyncio.timeout(60):
            call = Call(
                App(FakeBackend(), settings(max_body=10_000, dialects=("none",))), method, target, body, **headers
            )
            return await call.done()

    call = asyncio.run(talk())
    assert call.ended
    assert call.status < 500
    if call.status >= 400:
        assert call.error["message"]
    return call


@given(st.sampled_from(PATHS), st.binary(max_size=50))
@hypothesis_settings(max_examples=examples(60))
def test_any_bytes_get_one_response(path: str, body: bytes) -> None:
    ask("POST", path, body)


@given(st.sampled_from(PATHS), st.dictionaries(st.sampled_from(FIELDS), JSON))
@hypothesis_settings(max_examples=examples(150))
def test_any_json_object_gets_one_response(path: str, fields: dict[str, Any]) -> None:
    ask("POST", path, json.dumps({"model": "storyteller"} | fields).encode())


@given(
    st.sampled_from(["GET", "PUT", "OPTIONS", "PATCH", "DELETE", "POST"]),
    st.text(UNICODE, max_size=20),
    st.text(UNICODE, max_size=9),
)
@hypothesis_settings(max_examples=examples(100))
def test_any_url_gets_one_response(method: str, path: str, query: str) -> None:
    ask(method, f"/{path}?{query}", b"")


@given(
    st.sampled_from(["authorization", "forwarded", "x-forwarded-host", "host", "content-type"]),
    st.binary(max_size=40),
)
@hypothesis_settings(max_examples=examples(100))
def test_any_header_gets_one_response(name: str, value: bytes) -> None:
    body = b'{"model": "m", "prompt": "x"}'
    call = ask("POST", "/openai/v1/completions", body, **{name: value.decode("latin-1")})
    for _, sent in call.sent[0]["headers"]:
        assert b"\n" not in sent and b"\r" not in sent
