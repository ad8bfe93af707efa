"""API keys: which requests are accepted, and what the others get."""

from __future__ import annotations

import base64
import logging

import pytest

from onward.errors import SetupError
from onward.server.addresses import is_loopback
from onward.server.app import make_app
from onward.server.auth import check_exposure, mask_key
from onward.server.keys import Keys, collect_keys
from tests.server.fakes import Call, FakeBackend, completion, in_loop, settings

KEYS = ("sk-first-0123456789", "sk-second")


def basic(password: str) -> str:
    return "Basic " + base64.b64encode(f":{password}".encode()).decode()


@pytest.mark.parametrize(
    ("headers", "code"),
    [
        ({"authorization": "Bearer sk-first-0123456789"}, 200),
        ({"authorization": "bearer sk-second"}, 200),
        ({"authorization": basic("sk-second")}, 200),
        ({"api-key": "sk-second"}, 200),
        ({"x-api-key": "sk-second"}, 200),
        ({"authorization": "Bearer ", "x-api-key": "sk-second"}, 200),
        ({"authorization": "Bearer wrong", "api-key": "sk-second"}, 200),
        ({}, None),
        ({"authorization": "Bearer "}, None),
        ({"authorization": "Bearer"}, None),
        ({"authorization": "Basic !!!"}, None),
        ({"authorization": "Bearer sk-firs"}, "invalid_api_key"),
        ({"authorization": "Bearer sk-first-0123456789x"}, "invalid_api_key"),
        ({"authorization": "Bearer SK-SECOND"}, "invalid_api_key"),
        ({"authorization": "Bearer clé"}, "invalid_api_key"),
        ({"api-key": "wrong"}, "invalid_api_key"),
    ],
)
@in_loop
async def test_a_request_with_a_valid_key_is_accepted(headers: dict[str, str], code: int | str | None) -> None:
    backend = FakeBackend()
    call = await completion(make_app(backend, settings(api_key=KEYS)), headers=headers).done()
    if code == 200:
        assert call.status == 200
        return
    assert call.status == 401
    assert call.error["code"] == code
    assert call.error["type"] == "invalid_request_error"
    assert call.headers["content-type"] == "application/json; charset=utf-8"
    assert backend.requests == []


@in_loop
async def test_a_wrong_key_is_masked_in_the_error_and_never_logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    app = make_app(FakeBackend(), settings(api_key=KEYS))
    call = await completion(app, headers={"authorization": "Bearer sk-wrong-0123456-key"}).done()
    assert call.error["message"].startswith("Incorrect API key provided: sk-wrong********-key.")
    assert "0123456" not in caplog.text
    assert KEYS[0] not in caplog.text


def test_short_keys_are_masked_whole() -> None:
    assert mask_key("sk-short") == "********"
    assert mask_key("0123456789abc") == "01234567*9abc"


@pytest.mark.parametrize(
    ("method", "path", "needs_key"),
    [
        ("POST", "/v1/completions", True),
        ("POST", "/openai/v1/completions", True),
        ("POST", "/v1/engines/storyteller/completions", True),
        ("POST", "/completions", True),
        ("GET", "/models", True),
        ("GET", "/v1/models", True),
        ("GET", "/v1/models/storyteller", True),
        ("GET", "/openai/v1/models", True),
        ("GET", "/v1/engines", True),
        ("POST", "/tokenize", True),
        ("POST", "/detokenize", True),
        ("GET", "/tokenizer_info", True),
        ("GET", "/metrics", True),
        ("GET", "/health", False),
        ("GET", "/live", False),
        ("GET", "/openapi.json", False),
        ("GET", "/openai/schemas/Completion.json", False),
        ("GET", "/docs", False),
        ("GET", "/", False),
        ("OPTIONS", "/v1/completions", False),
    ],
)
@in_loop
async def test_which_routes_need_a_key(method: str, path: str, needs_key: bool) -> None:
    call = await Call(make_app(FakeBackend(), settings(api_key=KEYS)), method, path).done()
    assert (call.status == 401) == needs_key


@in_loop
async def test_without_keys_an_empty_bearer_is_fine() -> None:
    call = await completion(make_app(FakeBackend(), settings()), headers={"authorization": "Bearer "}).done()
    assert call.status == 200


@in_loop
async def test_a_wrong_method_is_reported_before_a_missing_key() -> None:
    call = await Call(make_app(FakeBackend(), settings(api_key=KEYS)), "GET", "/v1/completions").done()
    assert call.status == 405


@pytest.mark.parametrize("host", ["127.0.0.1", "127.1.2.3", "::1", "[::1]", "localhost", "LOCALHOST"])
def test_a_loopback_address_needs_no_key(host: str) -> None:
    assert is_loopback(host)
    check_exposure(settings(host=host), Keys([]))


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.5", "example.org"])
def test_listening_on_a_network_needs_a_key_or_no_auth(host: str) -> None:
    with pytest.raises(SetupError, match="without a key"):
        check_exposure(settings(host=host), Keys([]))
    check_exposure(settings(host=host), collect_keys(settings(api_key=("sk-a",))))
    check_exposure(settings(host=host, no_auth=True), Keys([]))
