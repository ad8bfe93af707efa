"""Requests within limits, however their bytes arrive."""

from __future__ import annotations

import asyncio
import itertools
import json
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from onward.server.app import App
from onward.server.connection import Protocol, server_config
from tests.listening import connected_to
from tests.server.fakes import FakeBackend, in_loop, settings
from tests.server.wire import completion_request, split_response

HEAD = (
    b"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\n"
    b"content-type: application/json\r\ntransfer-encoding: chunked\r\n"
)
BODY = b'{"model": "m", "prompt": "x"}'
SMALL_READ = 1000


class Connection:
    """A connection to a server in the test's event loop, and the server's end of it."""

    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, protocol: Protocol, backend: FakeBackend
    ) -> None:
        self.reader = reader
        self.writer = writer
        self.protocol = protocol
        self.backend = backend

    async def send(self, data: bytes, *, read_bytes: int) -> None:
        """Let the server receive `data` in reads of `read_bytes` each (0: all in one)."""
        for start in range(0, len(data), read_bytes or len(data)):
            if self.protocol.transport.is_closing():
                return
            self.protocol.data_received(data[start : start + (read_bytes or len(data))])
            await asyncio.sleep(0)

    async def response(self) -> tuple[int, dict[str, str], bytes]:
        """Receive until the server closes."""
        return split_response(await self.reader.read())


@asynccontextmanager
async def connected(*keys: str) -> AsyncIterator[Connection]:
    backend = FakeBackend()
    async with connected_to(server_config(App(backend, settings(api_key=keys)))) as (reader, writer, protocol):
        assert isinstance(protocol, Protocol)
        yield Connection(reader, writer, protocol, backend)


def chunk(data: bytes, extension: bytes = b"") -> bytes:
    return b"%x%b\r\n%b\r\n" % (len(data), extension, data)


reads = pytest.mark.parametrize("read_bytes", [0, SMALL_READ], ids=["one read", "many reads"])


@pytest.mark.parametrize(
    "head",
    [
        b"\r\n" * 50_000,
        b"GET /" + b"x" * 100_000 + b" HTTP/1.1\r\nhost: localhost\r\n\r\n",
        b"GET /health HTTP/1.1\r\nhost: localhost\r\nx:" + b" " * 100_000 + b"y\r\n\r\n",
        b"GET /health HTTP/1.1\r\nhost: localhost\r\n" + b"x:\r\n" * 25_000 + b"\r\n",
    ],
    ids=["empty lines", "URL", "spaces", "empty headers"],
)
@reads
@in_loop
async def test_a_head_over_the_limit_is_a_431(head: bytes, read_bytes: int) -> None:
    async with connected() as connection:
        await connection.send(head, read_bytes=read_bytes)
        status, headers, body = await connection.response()
        assert (status, headers["connection"]) == (431, "close")
        assert json.loads(body)["error"]["message"] == "The request's URL and headers are over 65536 bytes."


@pytest.mark.parametrize(
    "body",
    [
        chunk(BODY, b";x=" + b"y" * 100_000) + b"0\r\n\r\n",
        b"".join(chunk(BODY[i : i + 1], b";x=" + b"y" * 5_000) for i in range(len(BODY))) + b"0\r\n\r\n",
        chunk(BODY) + b"0\r\n" + b"x: y\r\n" * 20_000 + b"\r\n",
        chunk(BODY) + b"0\r\nx: " + b"y" * 100_000 + b"\r\n\r\n",
        b"0" * 100_000 + chunk(BODY) + b"0\r\n\r\n",
    ],
    ids=["one extension", "many extensions", "trailers", "one trailer", "zeros"],
)
@reads
@in_loop
async def test_chunk_extensions_and_trailers_over_the_limit_are_a_413(body: bytes, read_bytes: int) -> None:
    async with connected() as connection:
        await connection.send(HEAD + b"\r\n" + body, read_bytes=read_bytes)
        status, headers, answer = await connection.response()
        assert (status, headers["connection"]) == (413, "close")
        assert "chunk extensions and trailers" in json.loads(answer)["error"]["message"]
        assert connection.backend.requests == []


@reads
@in_loop
async def test_small_chunks_with_short_extensions_are_accepted(read_bytes: int) -> None:
    fields = {"model": "m", "prompt": "x" * 20_000}
    encoded = json.dumps(fields).encode()
    single = b"".join(chunk(encoded[i : i + 1]) for i in range(len(encoded)))
    async with connected() as connection:
        trailers = b"0;last\r\nx-checksum: 1\r\n\r\n"
        data = HEAD + b"connection: close\r\n\r\n" + single + chunk(b" ", b";signature=" + b"a" * 64) + trailers
        await connection.send(data, read_bytes=read_bytes)
        assert (await connection.response())[0] == 200


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b"zz\r\n", "invalid character in chunk size"),
        (chunk(BODY) + b"5 x\r\n", "invalid character in chunk size"),
        (b"1\r\nab\r\n", "expected LF after chunk data"),
        (b"fffffffffffffffff\r\n", "chunk size overflow"),
        (chunk(BODY) + b"0\r\nbad trailer\r\n\r\n", "invalid header token"),
    ],
)
@reads
@in_loop
async def test_a_malformed_chunk_is_a_400_and_logged_with_the_clients_address(
    body: bytes, reason: str, read_bytes: int, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "onward")
    async with connected() as connection:
        await connection.send(HEAD + b"\r\n" + body, read_bytes=read_bytes)
        status, headers, answer = await connection.response()
        assert (status, headers["connection"]) == (400, "close")
        error = json.loads(answer)["error"]
        assert error["message"] == f"Malformed HTTP request: {reason}."
        assert (error["type"], error["param"], error["code"]) == ("invalid_request_error", None, None)
        assert connection.backend.requests == []
        warning, access = [record.getMessage() for record in caplog.records if record.name.startswith("onward")]
    assert warning == f"rejected a request from 127.0.0.1: {error['message']}"
    assert "client=127.0.0.1" in access and "status=400" in access
    assert f"id={headers['x-request-id']}" in access


@pytest.mark.parametrize(
    ("head", "reason"),
    [
        (b"GET /\xff" + b"x" * 5000 + b" HTTP/1.1\r\nhost: localhost\r\n\r\n", "invalid char in url path"),
        (b"CONNECT a:1 HTTP/1.1\r\nhost: localhost\r\n\r\n", "invalid URL"),
        (b"nonsense\r\n\r\n", "invalid method encountered"),
        (b"GET / HTTP/9.9\r\nhost: localhost\r\n\r\n", "invalid HTTP version"),
    ],
)
@in_loop
async def test_a_malformed_head_is_a_400_and_logged(head: bytes, reason: str, caplog: pytest.LogCaptureFixture) -> None:
    async with connected() as connection:
        await connection.send(head, read_bytes=0)
        status, headers, answer = await connection.response()
    assert (status, headers["connection"]) == (400, "close")
    assert json.loads(answer)["error"]["message"] == f"Malformed HTTP request: {reason}."
    assert f"rejected a request from 127.0.0.1: Malformed HTTP request: {reason}." in caplog.messages


@in_loop
async def test_a_malformed_chunk_in_the_second_part_of_a_body_is_a_400() -> None:
    async with connected() as connection:
        await connection.send(HEAD + b"\r\n" + chunk(BODY[:5]), read_bytes=0)
        await asyncio.sleep(0.01)
        await connection.send(b"no chunk\r\n", read_bytes=0)
        assert (await connection.response())[0] == 400


@in_loop
async def test_a_malformed_chunk_after_a_response_closes_the_connection_without_another() -> None:
    async with connected("sk-a") as connection:
        await connection.send(HEAD + b"\r\n" + chunk(BODY[:5]), read_bytes=0)
        assert (await connection.reader.readuntil(b"\r\n")).startswith(b"HTTP/1.1 401 ")
        await asyncio.sleep(0.01)
        await connection.send(b"no chunk\r\n", read_bytes=0)
        assert b"HTTP/1.1" not in await connection.reader.read()


@in_loop
async def test_malformed_bytes_after_a_request_do_not_cut_off_its_response() -> None:
    async with connected() as connection:
        fields = json.dumps({"model": "m", "prompt": "x", "stream": True}).encode()
        request = HEAD + b"\r\n" + chunk(fields) + b"0\r\n\r\n"
        await connection.send(request + b"nonsense\r\n\r\n", read_bytes=0)
        status, _, body = await connection.response()
        assert status == 200
        assert b"data: [DONE]" in body and body.endswith(b"0\r\n\r\n")


@in_loop
async def test_a_trailer_does_not_pass_for_a_header() -> None:
    async with connected("sk-a") as connection:
        trailer = b"0\r\nauthorization: Bearer sk-a\r\n\r\n"
        await connection.send(HEAD + b"connection: close\r\n\r\n" + chunk(BODY) + trailer, read_bytes=0)
        assert (await connection.response())[0] == 401


UPGRADE_HEADERS = b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAEAAEAAAAIAAAABAAMAAABk\r\n"


def post_with_upgrade(headers: bytes = b"", **fields: Any) -> bytes:
    head, _, body = completion_request("connection: close", **fields).partition(b"\r\n\r\n")
    return head.replace(b"connection: close\r\n", b"") + b"\r\n" + headers + b"connection: close\r\n\r\n" + body


async def answer_to(request: bytes, *cuts: int) -> bytes:
    """Return all that is answered to a request that the server receives in these parts."""
    async with connected() as connection:
        for start, end in itertools.pairwise([0, *cuts, len(request)]):
            await connection.send(request[start:end], read_bytes=0)
        return await connection.reader.read()


@in_loop
async def test_text_like_an_upgrade_header_in_a_body_is_unchanged_wherever_it_is_split() -> None:
    request = completion_request("connection: close", **{"Upgrade: now": "1"})  # the response lists unknown fields
    at = request.index(b"Upgrade")
    for cuts in ([], [at], [at, at + 3], [request.index(b"{"), at]):
        answer = await answer_to(request, *cuts)
        assert answer.startswith(b"HTTP/1.1 400") and b"Upgrade: now" in answer, cuts


@pytest.mark.parametrize("name", [b"Upgrade", b"UPGRADE", b"upgrade"])
@in_loop
async def test_an_upgrade_header_is_ignored_wherever_its_line_is_split(name: bytes) -> None:
    request = post_with_upgrade(UPGRADE_HEADERS.replace(b"Upgrade: h2c", name + b": h2c"))
    at = request.index(b"\r\n" + name + b":")
    for cut in range(at, at + 14):
        assert (await answer_to(request, cut)).startswith(b"HTTP/1.1 200"), cut


@in_loop
async def test_upgrade_headers_of_two_requests_on_one_connection_are_ignored() -> None:
    first = post_with_upgrade(UPGRADE_HEADERS).replace(b"connection: close\r\n", b"")
    answers = await answer_to(first + post_with_upgrade(UPGRADE_HEADERS), len(first))
    assert answers.count(b"HTTP/1.1 200") == 2


@in_loop
async def test_a_header_that_only_begins_like_upgrade_is_unchanged() -> None:
    request = post_with_upgrade(b"Upgrade-Insecure-Requests: 1\r\n")
    for cut in (2, 7, 8):
        assert (await answer_to(request, request.index(b"Upgrade-") + cut)).startswith(b"HTTP/1.1 200")


@in_loop
async def test_a_head_of_upgrade_headers_only_gets_a_response() -> None:
    assert (await answer_to(post_with_upgrade(b"Upgrade: a\r\n" * 2000))).startswith(b"HTTP/1.1 ")
