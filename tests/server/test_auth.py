"""API keys: who may use the server, and how clients that send wrong keys are slowed down."""

from __future__ import annotations

import asyncio
import base64
import logging

import pytest

from onward.errors import SetupError
from onward.server import auth
from onward.server.addresses import is_loopback, network
from onward.server.app import App
from onward.server.auth import (
    BURST,
    MAX_ADDRESSES,
    MAX_DELAY_SECONDS,
    RATE_PER_SECOND,
    WrongKeys,
    check_exposure,
    mask_key,
)
from onward.server.keys import Keys, collect_keys
from tests.server.fakes import Call, FakeBackend, completion, in_loop, settings

GENERATED = "sk-" + 8 * "aB-9"


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_the_first_wrong_keys_are_answered_at_once_and_later_ones_with_growing_delays() -> None:
    clock = Clock()
    wrong = WrongKeys(clock)
    delays = [wrong.delay("192.0.2.1") for _ in range(BURST + 4)]
    assert delays == [0.0] * BURST + [0.5, 1.0, 1.5, 2.0]
    assert max(delays) == MAX_DELAY_SECONDS
    assert wrong.seconds_until_accepted("192.0.2.1") == 1 / RATE_PER_SECOND
    assert wrong.seconds_until_accepted("192.0.2.2") == 0
    clock.now = 1 / RATE_PER_SECOND
    assert wrong.seconds_until_accepted("192.0.2.1") == 0


def test_an_address_is_forgiven_with_time() -> None:
    clock = Clock()
    wrong = WrongKeys(clock)
    for _ in range(BURST + 4):
        wrong.delay("192.0.2.1")
    for _ in range(10_000):
        wrong.delay("192.0.2.1")
    clock.now = 10.0
    assert [wrong.delay("192.0.2.1") for _ in range(BURST)] == [0.0] * BURST


def test_the_number_of_remembered_addresses_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(auth, "MAX_ADDRESSES", 50)
    wrong = WrongKeys(Clock())
    for index in range(200):
        wrong.delay(f"host-{index}")
        wrong.remember(f"host-{index}", b"digest")
        wrong.remember("busy", b"%d" % index)
    assert len(wrong._tokens) == 50 < MAX_ADDRESSES
    assert len(wrong._known) == 50
    assert wrong.remembers("busy", b"199")
    assert not wrong.remembers("busy", b"1")


@pytest.mark.parametrize(
    ("address", "counted"),
    [
        ("192.0.2.1", "192.0.2.1"),
        ("::ffff:192.0.2.1", "192.0.2.1"),
        ("2001:db8::1", "2001:db8::/64"),
        ("2001:db8::ffff:1%eth0", "2001:db8::/64"),
        ("/run/socket", "/run/socket"),
        ("-", "-"),
    ],
)
def test_one_client_is_one_address(address: str, counted: str) -> None:
    assert network(address) == counted


@in_loop
async def test_a_flood_of_wrong_keys_is_refused_while_valid_keys_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[float] = []
    go = asyncio.Event()

    async def sleep(seconds: float) -> None:
        waits.append(seconds)
        await go.wait()

    monkeypatch.setattr("onward.server.auth.asyncio.sleep", sleep)
    app = App(FakeBackend(), settings(api_key=("sk-known", "sk-new", GENERATED)))
    assert (await completion(app, headers={"api-key": "sk-known"}).done()).status == 200
    flood = [completion(app, headers={"api-key": f"wrong-{index}"}) for index in range(40)]
    answered = [call for call in flood if len((await _settled(call)).sent)]
    statuses = [call.status for call in answered]
    assert statuses.count(401) == BURST
    assert statuses.count(429) == 40 - BURST - len(waits)
    assert 3 <= len(waits) <= 5
    refused = next(call for call in answered if call.status == 429)
    assert int(refused.headers["retry-after"]) >= 1
    assert refused.error["code"] == "rate_limit_exceeded"
    # Keys that a person chose pass if they were valid at this address before; others are not even compared. Keys made
    # by `onward key new` always pass.
    assert (await completion(app, headers={"api-key": "sk-known"}).done()).status == 200
    assert (await completion(app, headers={"api-key": "sk-new"}).done()).status == 429
    assert (await completion(app, headers={"api-key": GENERATED}).done()).status == 200
    assert (await completion(app, headers={"authorization": f"Bearer {GENERATED}"}).done()).status == 200
    assert (await completion(app, headers={"api-key": GENERATED[:-1] + "x"}).done()).status == 429
    go.set()
    assert {(await call.done()).status for call in flood} == {401, 429}


async def _settled(call: Call) -> Call:
    """Return the call once the event loop has had the time to answer it, if it is answered at once."""
    for _ in range(20):
        await asyncio.get_running_loop().run_in_executor(None, lambda: None)
        if call.ended:
            break
    return call


@in_loop
async def test_a_missing_key_is_not_a_wrong_one() -> None:
    app = App(FakeBackend(), settings(api_key=("sk-a",)))
    for _ in range(3 * BURST):
        assert (await completion(app).done()).status == 401
    assert (await completion(app, headers={"api-key": "sk-a"}).done()).status == 200


@in_loop
async def test_health_cannot_be_used_to_guess_keys() -> None:
    app = App(FakeBackend(), settings(api_key=("sk-a",)))
    for index in range(3 * BURST):
        call = await Call(app, "GET", "/health", b"", **{"api-key": f"wrong-{index}"}).done()
        assert call.status == 200
    call = await Call(app, "GET", "/health", b"", **{"api-key": "sk-a"}).done()
    assert "models" not in call.json


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
    call = await completion(App(backend, settings(api_key=KEYS)), headers=headers).done()
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
    app = App(FakeBackend(), settings(api_key=KEYS))
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
    call = await Call(App(FakeBackend(), settings(api_key=KEYS)), method, path).done()
    assert (call.status == 401) == needs_key


@in_loop
async def test_without_keys_an_empty_bearer_is_fine() -> None:
    call = await completion(App(FakeBackend(), settings()), headers={"authorization": "Bearer "}).done()
    assert call.status == 200


@in_loop
async def test_a_wrong_method_is_reported_before_a_missing_key() -> None:
    call = await Call(App(FakeBackend(), settings(api_key=KEYS)), "GET", "/v1/completions").done()
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
