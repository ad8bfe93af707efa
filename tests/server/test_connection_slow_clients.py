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
from onward.server.app import App
from onward.server.connection import server_config
from tests.listening import connected_to
from tests.server.fakes import FakeBackend, Step, delta, in_loop, settings, skip
from tests.waiting import until

HEALTH = b"GET /health HTTP/1.1\r\nhost: localhost\r\n\r\n"
LONG = "x" * 1_000_000


class Counting(connection.Protocol):
    """The server's end of a connection, which counts what has arrived."""

    num_received = 0

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self.num_received += len(data)


class Client:
    """A connection over a real socket, and the server's end of it."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, served: Counting) -> None:
        self.reader = reader
        self.writer = writer
        self.served = served
        self._num_sent = 0

    async def send(self, data: bytes) -> None:
        """Return when the server has it, or has closed the connection."""
        self.writer.write(data)
        self._num_sent += len(data)
        await until(lambda: self.served.num_received == self._num_sent or self.served.transport.is_closing())

    async def send_on(self, data: bytes) -> bytes:
        """Send the same bytes every second until the server closes. Return what it has answered."""
        while not self.served.transport.is_closing():
            await self.send(data)
            await skip(1)
        try:
            return await self.reader.read()
        except ConnectionError:
            return b""


@asynccontextmanager
async def connected(*script: Step, keys: tuple[str, ...] = ()) -> AsyncIterator[Client]:
    """Serve a scripted backend and yield a connection to it."""
    config = server_config(App(FakeBackend(*script), settings(access_log=False, api_key=keys)))
    config.http = Counting
    async with connected_to(config) as (reader, writer, served):
        assert isinstance(served, Counting)
        yield Client(reader, writer, served)


def post_stream() -> bytes:
    return post(stream=True, stream_options={"include_obfuscation": False})


def post(**fields: object) -> bytes:
    body = json.dumps({"model": "m", "prompt": "x"} | fields).encode()
    return (
        b"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: "
        + f"{len(body)}\r\n\r\n".encode()
        + body
    )


@pytest.mark.parametrize("sent", [b"", b"\r\n", b"GET", b"GET /health HTTP/1.1\r\nhost: localhost\r\n"])
@in_loop
async def test_a_head_that_does_not_end_closes_the_connection(sent: bytes) -> None:
    async with connected() as client:
        await client.send(sent)
        await skip(connection.HEAD_SECONDS)
        assert await client.reader.read() == b""


@in_loop
async def test_a_head_sent_byte_by_byte_closes_the_connection() -> None:
    async with connected() as client:
        await client.send(b"GET /health HTTP/1.1\r\nx: ")
        assert b"200" not in await client.send_on(b"x")


@pytest.mark.parametrize("sent", [b"\r\n", b"GET /hea"])
@in_loop
async def test_the_next_head_of_a_connection_may_be_as_slow_as_the_first(sent: bytes) -> None:
    async with connected() as client:
        await client.send(HEALTH)
        await client.reader.readuntil(b"}}}")
        await client.send(sent)
        await skip(connection.HEAD_SECONDS)
        assert await client.reader.read() == b""


@in_loop
async def test_an_idle_connection_is_kept_for_the_next_request() -> None:
    async with connected() as client:
        for _ in range(3):
            await client.send(HEALTH)
            await client.reader.readuntil(b"}}}")
            await skip(connection.HEAD_SECONDS + 1)


@in_loop
async def test_a_slow_response_outlives_a_slow_pipelined_head() -> None:
    go = asyncio.Event()
    async with connected(go, delta("late", finish="stop")) as client:
        await client.send(post() + b"GET /hea")
        for _ in range(2):
            await skip(connection.HEAD_SECONDS)
        go.set()
        answer = await client.reader.readuntil(b'"late"')
        assert b"200 OK" in answer
        await skip(connection.HEAD_SECONDS)
        await client.reader.read()


@in_loop
async def test_the_head_timeout_does_not_apply_to_a_body() -> None:
    async with connected() as client:
        await client.send(post()[:-5])
        await skip(connection.HEAD_SECONDS + 1)
        await client.send(post()[-5:])
        assert b"200 OK" in await client.reader.readuntil(b"\r\n")


@in_loop
async def test_the_endless_body_of_a_refused_request_does_not_hold_its_connection() -> None:
    async with connected(keys=("sk-a",)) as client:
        await client.send(b"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-length: 1000000\r\n\r\n")
        assert b"401" in await client.reader.readuntil(b"\r\n")
        answer = await client.send_on(b"x")
        assert answer == b"" or answer.rstrip().endswith(b"}")


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
    async with connected() as client:
        client.writer.write(head)
        answer = await client.reader.read()
    assert answer.startswith(b"HTTP/1.1 431 ")
    assert b"x-request-id: req_" in answer and b"access-control-allow-origin: *" in answer
    assert "over 65536 bytes" in json.loads(answer.partition(b"\r\n\r\n")[2])["error"]["message"]


@in_loop
async def test_a_head_just_below_the_limit_is_accepted() -> None:
    async with connected() as client:
        await client.send(HEALTH[:-2] + b"x: " + b"y" * 60_000 + b"\r\n\r\n")
        assert b" 200 " in await client.reader.readuntil(b"\r\n")


@in_loop
async def test_endless_trailers_close_the_connection() -> None:
    async with connected(asyncio.Event()) as client:
        head, _, body = post().partition(b"\r\n\r\n")
        await client.send(re.sub(rb"content-length: \d+", b"transfer-encoding: chunked", head) + b"\r\n\r\n")
        await client.send(b"%x\r\n" % len(body) + body + b"\r\n0\r\n")
        while not client.served.transport.is_closing():
            await client.send(b"x: y\r\n" * 1000)


@in_loop
async def test_a_client_that_does_not_read_its_response_is_disconnected() -> None:
    async with connected(*(delta(LONG) for _ in range(30)), delta("", finish="stop")) as client:
        client.writer.transport.pause_reading()  # type: ignore[attr-defined]
        await client.send(post_stream())
        await until(lambda: client.served.flow.write_paused)
        for _ in range(2):
            await skip(connection.STALL_SECONDS)
        assert client.served.transport.is_closing()
        client.writer.transport.resume_reading()  # type: ignore[attr-defined]
        try:
            received = await client.reader.read()
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
        """Fire the timer."""
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
    """The remaining output may be too little to pause writing."""
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
