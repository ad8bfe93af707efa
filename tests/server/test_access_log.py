"""The access log: one line per request, whatever its outcome."""

from __future__ import annotations

import asyncio
import logging

import pytest

from onward.errors import EngineStopped, InvalidRequest, Overloaded
from onward.server import logs
from onward.server.app import make_app
from tests.server.fakes import Call, FakeBackend, completion, delta, in_loop, settings


@in_loop
async def test_a_request_is_one_line_of_the_access_log(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "onward.access")
    app = make_app(FakeBackend(), settings())
    call = await completion(app, user="eve\nstatus=500 " + "x" * 100, stream=True).done()
    await Call(app, "GET", "/health").done()
    (record,) = [record for record in caplog.records if record.name == "onward.access"]
    line = record.getMessage()
    pairs = dict(pair.split("=") for pair in line.split(" "))
    assert pairs["id"] == call.headers["x-request-id"]
    assert pairs["user"] == "eve_status_500_" + "x" * 49 + "…"
    assert {
        "status": "200",
        "prompt": "7",
        "completion": "3",
        "cached": "4",
        "stream": "true",
    }.items() <= pairs.items()
    assert (pairs["client"], pairs["route"], pairs["model"]) == ("192.0.2.7", "/v1/completions", "fake-model:1")
    assert pairs["cancelled"] == "false"
    assert float(pairs["ttft_ms"]) <= float(pairs["ms"])


@in_loop
async def test_the_log_marks_cancelled_and_failed_streams(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "onward.access")
    app = make_app(FakeBackend(asyncio.Event()), settings())
    call = completion(app)
    await asyncio.sleep(0.001)
    call.leave()
    await call.done()
    await completion(make_app(FakeBackend(delta("a"), RuntimeError()), settings()), stream=True).done()
    cancelled, failed = [one.getMessage() for one in caplog.records if one.name == "onward.access"]
    assert "status=499" in cancelled and "cancelled=true" in cancelled
    assert "status=200" in failed and "error=server_error" in failed


@in_loop
async def test_the_access_log_can_be_turned_off(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    await completion(make_app(FakeBackend(), settings(access_log=False))).done()
    assert not [record for record in caplog.records if record.name == "onward.access"]


@pytest.mark.parametrize("value", ["", " ", "\x00\x1b[31m", "a=b", 'a"b', "a\u2028b"])
def test_a_logged_value_is_one_word_of_printable_characters(value: str) -> None:
    cleaned = logs.clean(value)
    assert cleaned and cleaned.isprintable()
    assert not set(cleaned) & set(' ="\n')


@pytest.mark.parametrize(
    ("error", "status"), [(Overloaded(), 503), (EngineStopped(), 503), (InvalidRequest("Too long."), 400)]
)
@in_loop
async def test_a_refused_request_is_logged_with_its_model_and_user(
    error: Exception, status: int, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "onward.access")
    backend = FakeBackend()
    backend.error_to_raise = error
    await completion(make_app(backend, settings()), model="a model=" + "x" * 99, user="eve").done()
    (record,) = [record for record in caplog.records if record.name == "onward.access"]
    pairs = dict(pair.split("=") for pair in record.getMessage().split(" "))
    assert pairs["model"] == "a_model_" + "x" * 56 + "…"
    assert (pairs["user"], pairs["status"]) == ("eve", str(status))


@in_loop
async def test_a_request_with_an_invalid_parameter_is_logged_with_its_model_and_user(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "onward.access")
    for fields in ({"temperature": 9}, {"user": 5}, {"model": 7}, {"model": ""}):
        await completion(make_app(FakeBackend(), settings()), **{"model": "one", "user": "eve"} | fields).done()
    lines = [record.getMessage() for record in caplog.records if record.name == "onward.access"]
    logged = [dict(pair.split("=") for pair in line.split(" ")) for line in lines]
    expected = [("one", "eve"), ("one", "-"), ("-", "eve"), ("-", "eve")]
    assert [(pairs["model"], pairs["user"]) for pairs in logged] == expected
    assert {pairs["status"] for pairs in logged} == {"400"}


@in_loop
async def test_a_forwarded_client_address_cannot_forge_a_pair(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "onward.access")
    call = completion(make_app(FakeBackend(), settings()))
    call.scope["client"] = ("evil status=500\tmodel=x\x85", 0)
    await call.done()
    (line,) = [record.getMessage() for record in caplog.records if record.name == "onward.access"]
    assert " client=evil_status_500_model_x_ " in line
