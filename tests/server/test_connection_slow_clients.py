"""Connections of slow clients, over real sockets in the test's own event loop."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from types import SimpleNamespace

import pytest
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from onward.server import connection
from onward.server.app import make_app
from onward.server.connection import server_config
from onward.server.process import bind
from onward.server.run import _Server
from tests.server.fakes import FakeBackend, Step, delta, in_loop, settings

HEALTH = b"GET /health HTTP/1.1\r\nhost: localhost\r\n\r\n"
LONG = "x" * 1_000_000


@asynccontextmanager
async def connected(
    *script: Step, keys: tuple[str, ...] = ()
) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    """Serve a scripted backend and yield a connection to it."""
    listener = bind("127.0.0.1", 0)
    listener.listen()
    server = _Server(server_config(make_app(FakeBackend(*script), settings(access_log=False, api_key=keys))))
    serving = asyncio.create_task(server.serve(sockets=[listener]))
    reader, writer = await asyncio.open_connection(*listener.getsockname())
    try:
        yield reader, writer
    finally:
        writer.close()
        server.should_exit = True
        await serving


def post_stream() -> bytes:
    return post(stream=True, stream_options={"include_obfuscation": False})


def post(**fields: object) -> bytes:
    body = json.dumps({"model": "m", "prompt": "x"} | fields).encode()
    return (
        b"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: "
        + f"{len(body)}\r\n\r\n".encode()
        + body
    )


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "HEAD_SECONDS", 0.2)


@pytest.mark.parametrize("sent", [b"", b"\r\n", b"GET", b"GET /health HTTP/1.1\r\nhost: localhost\r\n"])
@in_loop
async def test_a_head_that_does_not_end_closes_the_connection(sent: bytes) -> None:
    async with connected() as (reader, writer):
        writer.write(sent)
        assert await reader.read() == b""


@in_loop
async def test_a_head_sent_byte_by_byte_closes_the_connection() -> None:
    async with connected() as (reader, writer):
        writer.write(b"GET /health HTTP/1.1\r\nx: ")
        reading = asyncio.create_task(reader.read())
        while not reading.done():
            writer.write(b"x")
            await asyncio.sleep(0.01)
        assert reading.exception() is not None or b"200" not in reading.result()


@pytest.mark.parametrize("sent", [b"\r\n", b"GET /hea"])
@in_loop
async def test_the_next_head_of_a_connection_may_be_as_slow_as_the_first(sent: bytes) -> None:
    async with connected() as (reader, writer):
        writer.write(HEALTH)
        await reader.readuntil(b"}}}")
        writer.write(sent)
        assert await reader.read() == b""


@in_loop
async def test_an_idle_connection_is_kept_for_the_next_request() -> None:
    async with connected() as (reader, writer):
        for _ in range(2):
            writer.write(HEALTH)
            await reader.readuntil(b"}}}")
            await asyncio.sleep(0.3)
        assert not reader.at_eof()


@in_loop
async def test_a_slow_response_outlives_a_slow_pipelined_head() -> None:
    go = asyncio.Event()
    async with connected(go, delta("late", finish="stop")) as (reader, writer):
        writer.write(post() + b"GET /hea")
        await asyncio.sleep(0.5)
        go.set()
        answer = await reader.read()
        assert b"200 OK" in answer
        assert b'"late"' in answer


@in_loop
async def test_the_head_timeout_does_not_apply_to_a_body() -> None:
    async with connected() as (reader, writer):
        writer.write(post()[:-5])
        await asyncio.sleep(0.4)
        writer.write(post()[-5:])
        assert b"200 OK" in await reader.readuntil(b"\r\n")


@in_loop
async def test_the_endless_body_of_a_refused_request_does_not_hold_its_connection() -> None:
    async with connected(keys=("sk-a",)) as (reader, writer):
        writer.write(b"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-length: 1000000\r\n\r\n")
        assert b"401" in await reader.readuntil(b"\r\n")
        reading = asyncio.create_task(reader.read())
        while not reading.done():
            writer.write(b"x")
            await asyncio.sleep(0.01)
        assert reading.exception() is not None or reading.result().rstrip().endswith(b"}")


@pytest.mark.parametrize(
    "head",
    [
        b"GET /" + b"x" * 70_000 + b" HTTP/1.1\r\n",
        b"GET /health HTTP/1.1\r\n" + b"x: y\r\n" * 12_000,
        b"GET /health HTTP/1.1\r\nx: " + b"y" * 70_000,
        b"GET /health HTTP/1.1\r\nhost: localhost\r\nx: " + b"y" * 66_000 + b"\r\n\r\n",
        b"POST /v1/completions HTTP/1.1\r\ncontent-length: 9\r\nx: " + b"y" * 70_000 + b"\r\n\r\n123456789",
    ],
)
@in_loop
async def test_a_head_without_end_is_refused(head: bytes) -> None:
    async with connected() as (reader, writer):
        writer.write(head)
        answer = await reader.read()
    assert answer.startswith(b"HTTP/1.1 431 ")
    assert b"x-request-id: req_" in answer and b"access-control-allow-origin: *" in answer
    assert "over 65536 bytes" in json.loads(answer.partition(b"\r\n\r\n")[2])["error"]["message"]


@in_loop
async def test_a_head_just_below_the_limit_is_accepted() -> None:
    async with connected() as (reader, writer):
        writer.write(HEALTH[:-2] + b"x: " + b"y" * 60_000 + b"\r\n\r\n")
        assert b" 200 " in await reader.readuntil(b"\r\n")


@in_loop
async def test_endless_trailers_close_the_connection() -> None:
    async with connected(asyncio.Event()) as (reader, writer):
        head, _, body = post().partition(b"\r\n\r\n")
        writer.write(re.sub(rb"content-length: \d+", b"transfer-encoding: chunked", head) + b"\r\n\r\n")
        writer.write(b"%x\r\n" % len(body) + body + b"\r\n0\r\n")
        reading = asyncio.create_task(reader.read())
        while not reading.done():
            writer.write(b"x: y\r\n" * 1000)
            await asyncio.sleep(0.01)


@in_loop
async def test_a_client_that_does_not_read_its_response_is_disconnected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "STALL_SECONDS", 0.2)
    async with connected(*(delta(LONG) for _ in range(30)), delta("", finish="stop")) as (reader, writer):
        writer.transport.pause_reading()  # type: ignore[attr-defined]
        writer.write(post_stream())
        await asyncio.sleep(1.5)
        writer.transport.resume_reading()  # type: ignore[attr-defined]
        try:
            received = await reader.read()
        except ConnectionError:
            received = b""
        assert len(received) < 30 * len(LONG)
        assert b"[DONE]" not in received


class FakeTransport:
    """A transport with pending output, and a loop whose timers the test fires."""

    def __init__(self) -> None:
        self.size = 0
        self.aborted = False
        self.due: Callable[[], None] | None = None

    def get_write_buffer_size(self) -> int:
        return self.size

    def abort(self) -> None:
        self.aborted = True

    def call_later(self, _: float, check: Callable[[int], None], before: int) -> FakeTransport:
        self.due = lambda: check(before)
        return self

    def cancel(self) -> None:
        self.due = None

    def fire(self) -> None:
        """Let the time of the timer pass."""
        assert self.due is not None
        self.due()


def protocol_and_transport() -> tuple[connection.Protocol, FakeTransport]:
    protocol, transport = connection.Protocol.__new__(connection.Protocol), FakeTransport()
    protocol.transport = protocol.loop = transport  # type: ignore[assignment]
    return protocol, transport


def test_a_client_that_reads_something_each_time_stays_connected() -> None:
    protocol, transport = protocol_and_transport()
    transport.size = 100
    protocol._start_stall_timer()
    for size in (99, 50, 1):
        transport.size = size
        transport.fire()
        assert not transport.aborted
    transport.fire()
    assert transport.aborted


def test_no_timer_starts_where_no_output_is_pending() -> None:
    protocol, transport = protocol_and_transport()
    protocol._start_stall_timer()
    assert transport.due is None
    transport.size = 5
    protocol._start_stall_timer()
    transport.size, due = 0, transport.due
    assert due is not None
    transport.due = None
    due()
    assert transport.due is None and not transport.aborted


def test_the_stall_timer_starts_when_the_response_is_complete(monkeypatch: pytest.MonkeyPatch) -> None:
    """The rest may be too little to pause writing."""
    for inherited in ("on_response_complete", "resume_writing"):
        monkeypatch.setattr(HttpToolsProtocol, inherited, lambda _: None, raising=False)
    for method in (connection.Protocol.on_response_complete, connection.Protocol.resume_writing):
        protocol, transport = protocol_and_transport()
        transport.size = 5
        protocol.cycle = SimpleNamespace(response_complete=True)  # type: ignore[assignment]
        method(protocol)
        assert transport.due is not None


def test_the_stall_timer_does_not_start_while_a_response_is_written(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(HttpToolsProtocol, "resume_writing", lambda _: None, raising=False)
    protocol, transport = protocol_and_transport()
    transport.size = 5
    protocol._start_stall_timer()
    protocol.cycle = SimpleNamespace(response_complete=False)  # type: ignore[assignment]
    protocol.resume_writing()
    assert transport.due is None
