"""Computation ends with its client's connection."""

from __future__ import annotations

import asyncio

import pytest

from onward.server.app import App
from tests.server.fakes import STORY, Call, FakeBackend, completion, delta, in_loop, settings
from tests.waiting import until


@pytest.mark.parametrize("stream", [False, True])
@in_loop
async def test_disconnecting_during_prefill_closes_the_answer(stream: bool) -> None:
    backend = FakeBackend(asyncio.Event(), *STORY)
    app = App(backend, settings())
    call = completion(app, stream=stream)
    await until(lambda: backend.answers)
    assert app.num_running == 1
    call.leave()
    await call.done()
    assert backend.answers[0].closed.is_set()
    assert call.sent == []
    assert app.num_running == 0


@pytest.mark.parametrize("stream", [False, True])
@in_loop
async def test_disconnecting_while_decoding_closes_the_answer(stream: bool) -> None:
    backend = FakeBackend(delta("a"), asyncio.Event())
    call = completion(App(backend, settings()), stream=stream)
    await until(lambda: backend.answers and backend.answers[0].num_yielded)
    call.leave()
    await call.done()
    assert backend.answers[0].closed.is_set()
    assert not call.ended


@in_loop
async def test_disconnecting_before_the_request_is_accepted_cancels_it() -> None:
    backend = FakeBackend()
    backend.admission = asyncio.Event()
    call = completion(App(backend, settings()))
    await until(lambda: backend.requests)
    call.leave()
    await call.done()
    assert backend.admission_cancelled.is_set()
    assert backend.answers == []


@in_loop
async def test_disconnecting_while_the_body_arrives_submits_nothing() -> None:
    backend = FakeBackend()
    call = Call(App(backend, settings()), "POST", "/v1/completions", None)
    call.feed(b'{"model":')
    call.leave()
    await call.done()
    assert backend.requests == []
    assert call.sent == []


@in_loop
async def test_an_oserror_from_send_means_that_the_client_disconnected(caplog: pytest.LogCaptureFixture) -> None:
    backend = FakeBackend(delta("a"), asyncio.Event())

    async def broken_send(message: object) -> None:
        raise OSError("connection lost")

    call = completion(App(backend, settings()), stream=True)
    call._send = broken_send  # type: ignore[method-assign]
    await call.done()
    assert backend.answers[0].closed.is_set()
    assert not [record for record in caplog.records if record.levelname == "ERROR"]


@in_loop
async def test_stopping_the_server_closes_the_answer() -> None:
    backend = FakeBackend(delta("a"), asyncio.Event())
    call = completion(App(backend, settings()), stream=True)
    await call.until(2)
    call.task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call.task
    assert backend.answers[0].closed.is_set()


@in_loop
async def test_disconnecting_after_the_end_changes_nothing() -> None:
    app = App(FakeBackend(), settings())
    call = completion(app, stream=True)
    await call.until(5)
    call.leave()
    await call.done()
    assert call.ended
    assert 'status="200"' in (await Call(app, "GET", "/metrics").done()).body.decode()
