"""HTTP to an upstream: connections that are used again, answers in every framing, and a sentence for each fault."""

from __future__ import annotations

import asyncio
import math
import re
import shutil
import ssl
import subprocess
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from itertools import accumulate
from pathlib import Path

import pytest

from onward.engines.upstreams import http
from onward.engines.upstreams.answers import UpstreamAnswer
from onward.engines.upstreams.base import UpstreamError
from onward.engines.upstreams.connection import Connection
from onward.engines.upstreams.http import HTTPClient
from onward.loop_thread import fast_event_loop
from tests.server.fakes import in_loop, skip
from tests.waiting import PATIENCE_SECONDS, until

MAX_BYTES = 1000
SILENCE = 10_000.0
"""Seconds, of a clock that tests move: what they take themselves is nothing beside it."""
OK = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"
CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nabcde\r\n3\r\nfgh\r\n0\r\n\r\n"
UNMARKED = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\nabcdefgh"


needs_openssl = pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl makes the certificate")


def self_signed(folder: Path, *, days: int = 2) -> tuple[Path, ssl.SSLContext]:
    """A certificate of 127.0.0.1 that is its own authority, and what a server needs to show it."""
    key, certificate = folder / "key.pem", folder / "certificate.pem"
    words = f"openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -subj /CN=here -days {days}"
    files = ("-keyout", str(key), "-out", str(certificate), "-addext", "subjectAltName=IP:127.0.0.1")
    subprocess.run([*words.split(), *files], check=True, capture_output=True)
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    tls.load_cert_chain(certificate, key)
    return certificate, tls


class Scripted:
    """Answers each request with the next of `answers`: its parts, in writes of their own, and then closes the
    connection if the last part is b"". When no answer is left, it sends nothing."""

    def __init__(self, *answers: list[bytes]) -> None:
        self.answers = list(answers)
        self.requests: list[bytes] = []
        self.num_connections = 0
        self.was_left = asyncio.Event()
        self.pause: Callable[[], Awaitable[object]] = lambda: asyncio.sleep(0.005)
        """What follows each part."""
        self.handlers: set[asyncio.Task[None]] = set()

    def accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.handlers.add(asyncio.create_task(self.handle(reader, writer)))

    async def handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.num_connections += 1
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                _, _, length = head.lower().partition(b"content-length: ")
                self.requests.append(head + await reader.readexactly(int(length.split(b"\r\n")[0] or b"0")))
                answer = self.answers.pop(0) if self.answers else []
                for part in answer:
                    writer.write(part)
                    await writer.drain()
                    await self.pause()
                if answer and not answer[-1]:
                    break
        self.was_left.set()
        writer.close()
        with suppress(OSError):
            await writer.wait_closed()


class Blunt(Scripted):
    """Answers whatever arrives, as a server does that does not understand it."""

    async def handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        writer.close()


@asynccontextmanager
async def serving(
    server: Scripted, *, silence: float = 0.0, scheme: str = "http", tls: ssl.SSLContext | None = None
) -> AsyncGenerator[HTTPClient]:
    listener = await asyncio.start_server(server.accept, "127.0.0.1", 0, ssl=tls)
    url = f"{scheme}://127.0.0.1:{listener.sockets[0].getsockname()[1]}"
    client = HTTPClient(url, {"authorization": "Bearer k"}, silence)
    try:
        yield client
    finally:
        await client.close()
        listener.close()
        await asyncio.gather(*server.handlers)


async def ask(client: HTTPClient, content: bytes = b"{}", *, keep_alive: bool = True) -> tuple[int, bytes]:
    async with client.request("POST", "/path", content, keep_alive=keep_alive) as response:
        return response.status, await response.read(MAX_BYTES)


def run(test: Awaitable[None], new_loop: Callable[[], asyncio.AbstractEventLoop] = fast_event_loop) -> None:
    async def bounded() -> None:
        await asyncio.wait_for(test, PATIENCE_SECONDS)

    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(bounded())


async def fault(server: Scripted) -> UpstreamError:
    async with serving(server) as client:
        with pytest.raises(UpstreamError) as raised:
            await ask(client)
    return raised.value


def test_a_request_is_sent_with_its_headers_and_body() -> None:
    async def test() -> None:
        server = Scripted([OK])
        async with serving(server) as client:
            assert await ask(client, b'{"a":1}') == (200, b"ok")
        head, _, body = server.requests[0].partition(b"\r\n\r\n")
        assert body == b'{"a":1}' and head.startswith(b"POST /path HTTP/1.1\r\nhost: 127.0.0.1:")
        assert b"\r\nauthorization: Bearer k" in head and b"\r\ncontent-type: application/json" in head

    run(test())


@pytest.mark.parametrize(
    "answer",
    [
        [CHUNKED],
        [bytes([byte]) for byte in CHUNKED],
        [CHUNKED.replace(b"HTTP/1.1 200", b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200")],
        [UNMARKED, b""],
        [UNMARKED.replace(b"\r\n\r\n", b"\r\nContent-Length: 8\r\n\r\n")],
    ],
    ids=["chunked", "in single bytes", "after an interim answer", "until the connection ends", "with its length"],
)
def test_a_body_arrives_in_every_framing(answer: list[bytes]) -> None:
    async def test() -> None:
        async with serving(Scripted(answer)) as client:
            assert await ask(client) == (200, b"abcdefgh")

    run(test())


def test_chunks_arrive_before_the_answer_ends() -> None:
    async def test() -> None:
        server = Scripted([CHUNKED.partition(b"3\r\nfgh")[0]])
        async with serving(server) as client, client.request("POST", "/path", b"{}") as response:
            assert await response.chunk() == b"abcde"

    run(test())


def test_whatever_a_server_sends_is_a_sign_of_life() -> None:
    async def test() -> None:
        async with serving(Scripted([b": busy\r\n"])) as client:
            assert client.heard_at == 0
            began = time.monotonic()
            with pytest.raises(UpstreamError):
                await ask(client)
            assert began <= client.heard_at <= time.monotonic()

    run(test())


@pytest.mark.parametrize(
    ("keep_alive", "answers", "connections"),
    [
        (True, [[OK], [CHUNKED], [OK]], 1),
        (False, [[OK], [CHUNKED], [OK]], 3),
        (True, [[OK.replace(b"OK\r\n", b"OK\r\nConnection: close\r\n")], [OK], [OK]], 2),
    ],
    ids=["kept", "not wanted", "not by the server"],
)
def test_connections_are_reused(keep_alive: bool, answers: list[list[bytes]], connections: int) -> None:
    async def test() -> None:
        server = Scripted(*answers)
        async with serving(server) as client:
            for _ in answers:
                assert (await ask(client, keep_alive=keep_alive))[0] == 200
        assert server.num_connections == connections
        assert (b"connection: close" in server.requests[0]) is not keep_alive

    run(test())


def test_a_request_that_meets_a_closing_connection_is_sent_again() -> None:
    async def test() -> None:
        server = Scripted([OK], [b""], [OK])
        async with serving(server) as client:
            assert await ask(client) == await ask(client) == (200, b"ok")
        assert server.num_connections == 2 and len(server.requests) == 3

    run(test())


def test_a_new_connection_that_closes_is_a_loss() -> None:
    async def test() -> None:
        error = await fault(Scripted([b""], [OK]))
        assert error.is_lost and not error.is_unsent and "closed the connection without an answer" in str(error)

    run(test())


def test_an_abandoned_answer_closes_its_connection() -> None:
    async def test() -> None:
        server = Scripted([CHUNKED[:-5]])
        async with serving(server) as client:
            async with client.request("POST", "/path", b"{}") as response:
                assert await response.chunk()
            await server.was_left.wait()
            waiting = asyncio.create_task(ask(client))  # the server says nothing
            await until(lambda: len(server.requests) == 2)
            server.was_left.clear()
            waiting.cancel()
            await server.was_left.wait()

    run(test())


@pytest.mark.parametrize(
    ("answer", "words", "is_lost"),
    [
        ([CHUNKED[:-5], b""], "closed its answer half-way", True),
        ([OK[:-1], b""], "closed its answer half-way", True),
        ([OK[:20], b""], "closed its answer half-way", True),
        ([b"SSH-2.0-OpenSSH_9.6\r\n"], "does not answer as an HTTP server does", False),
        ([b"HTTP/1.1 200 OK\r\nx: " + b"y" * 70_000], "sent headers that are too long", False),
    ],
)
def test_errors_in_an_answer_are_reported(answer: list[bytes], words: str, is_lost: bool) -> None:
    async def test() -> None:
        error = await fault(Scripted(answer))
        assert words in str(error) and error.is_lost is is_lost and not error.is_unsent

    run(test())


async def has_received(client: HTTPClient, num_bytes: int) -> None:
    (connection,) = client._connections
    await until(lambda: connection._num_received == num_bytes)


@pytest.mark.parametrize("answer", [[], [CHUNKED[:-5]]], ids=["before its head", "within its body"])
@in_loop
async def test_silence_ends_a_request(answer: list[bytes], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "BODY_SECONDS", math.inf)
    server = Scripted(answer)
    async with serving(server, silence=SILENCE) as client:
        asking = asyncio.create_task(ask(client))
        await until(lambda: server.requests)
        await has_received(client, sum(map(len, answer)))
        await skip(0.9 * SILENCE)
        assert not asking.done()
        await skip(0.2 * SILENCE)
        with pytest.raises(UpstreamError, match="sent nothing for too long") as raised:
            await asking
        assert raised.value.is_lost


@in_loop
async def test_slowness_does_not_end_a_request(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "BODY_SECONDS", math.inf)
    head, end, body = CHUNKED.partition(b"\r\n\r\n")
    parts = [head + end, *(bytes([byte]) for byte in body)]
    slow, num_sent = Scripted(parts), accumulate(map(len, parts))
    async with serving(slow, silence=SILENCE) as client:

        async def pause() -> None:
            await has_received(client, next(num_sent))
            await skip(0.9 * SILENCE)

        slow.pause = pause
        assert await ask(client) == (200, b"abcdefgh")


@pytest.mark.parametrize(
    ("head", "words"),
    [
        (b"401 Unauthorized", "answered with status 401; ONWARD_UPSTREAM_KEY is sent as its API key."),
        (b"302 Found\r\nlocation: https://elsewhere", "answered with status 302."),
    ],
)
def test_a_status_without_a_body_is_reported(head: bytes, words: str) -> None:
    async def test() -> None:
        async with serving(Scripted([b"HTTP/1.1 " + head + b"\r\ncontent-length: 0\r\n\r\n"])) as client:
            connection = Connection(client._url, None, 0.0)
            with pytest.raises(UpstreamError, match=re.escape(words)):
                await connection.get("/props", UpstreamAnswer)
            await connection.close()

    run(test())


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("http://127.0.0.1:1", "could not be reached: Connection refused"),
        ("http://no-such-host.invalid:80", "could not be reached: its name cannot be resolved"),
        (f"http://{'a' * 70}.invalid:80", "could not be reached: its name cannot be resolved"),
    ],
)
def test_a_server_that_is_not_there_was_sent_nothing(url: str, words: str) -> None:
    async def test() -> None:
        client = HTTPClient(url, {}, 0.0)
        with pytest.raises(UpstreamError, match=words) as raised:
            await ask(client)
        assert raised.value.is_lost and raised.value.is_unsent

    run(test())


def test_a_name_is_tried_at_each_of_its_addresses(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test() -> None:
        server = Scripted([OK], [OK])
        async with serving(server) as found:
            client = HTTPClient(f"http://localhost:{found._port}", {}, 0.0)
            loop = asyncio.get_running_loop()
            tried: list[str] = []
            connect: Callable[..., Awaitable[object]] = loop.create_connection

            async def resolve(*_: object, **__: object) -> list[tuple[object, ...]]:
                return [(2, 1, 6, "", (address, found._port)) for address in ("127.0.0.2", "127.0.0.1", "127.0.0.1")]

            async def watched(new: object, host: str, *others: object, **more: object) -> object:
                tried.append(host)
                return await connect(new, host, *others, **more)

            monkeypatch.setattr(loop, "getaddrinfo", resolve)
            monkeypatch.setattr(loop, "create_connection", watched)
            for _ in range(2):
                assert (await ask(client, keep_alive=False))[0] == 200
            await client.close()
        assert tried == ["127.0.0.2", "127.0.0.1", "127.0.0.1"]  # the one that answered comes first

    run(test(), asyncio.new_event_loop)  # methods of uvloop's cannot be replaced


@needs_openssl
def test_certificates_are_checked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    certificate, tls = self_signed(tmp_path)

    async def test() -> None:
        async with serving(Scripted([OK])) as client:
            assert await ask(client) == (200, b"ok") and client.certificate is None
        async with serving(Scripted([OK]), scheme="https", tls=tls) as client:
            with pytest.raises(UpstreamError, match=r"its certificate is not trusted .self.signed certificate"):
                await ask(client)
            assert client.certificate is not None and client.certificate.expires == 0
            assert "self-signed" in client.certificate.problem or "self signed" in client.certificate.problem
        async with serving(Blunt(), scheme="https") as client:
            with pytest.raises(UpstreamError, match=r"it does not speak TLS .should its address"):
                await ask(client)
        monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
        async with serving(Scripted([OK]), scheme="https", tls=tls) as client:
            assert await ask(client) == (200, b"ok")
            assert client.certificate is not None and client.certificate.problem == ""
            assert 86_400 < client.certificate.expires - time.time() <= 2 * 86_400

    run(test())
