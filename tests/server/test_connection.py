"""HTTP/1.0 and pipelines, and what is required of the installed uvicorn."""

from __future__ import annotations

import asyncio
import json
import socket

import pytest
import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from onward.errors import SetupError
from onward.server.connection import UVICORN_HOOKS, HeadWithBody, Protocol, check_uvicorn
from onward.server.run import serve
from tests.server.conftest import Process
from tests.server.fakes import FakeBackend, events, in_loop, settings
from tests.server.wire import completion_request, receive_all, split_response, talk


def request_1_0(path: str, *headers: str, method: str = "GET") -> bytes:
    return "\r\n".join([f"{method} {path} HTTP/1.0", *headers, "", ""]).encode()


@pytest.mark.parametrize("headers", [(), ("connection: keep-alive",), ("connection: close",)])
def test_a_stream_to_an_http_1_0_client_is_not_chunked_and_ends_with_the_connection(
    server: Process, headers: tuple[str, ...]
) -> None:
    response = talk(server, completion_request(*headers, version="1.0", stream=True))
    status, received, body = split_response(response)
    assert status == 200
    assert "transfer-encoding" not in received and "content-length" not in received
    assert received["connection"] == "close"
    *chunks, done = events(body)
    assert done == "[DONE]"
    assert "".join(chunk["choices"][0]["text"] for chunk in chunks) == " there was a fox"


def test_an_error_inside_a_stream_to_an_http_1_0_client_is_its_last_event(server: Process) -> None:
    _, _, body = split_response(talk(server, completion_request(version="1.0", stream=True, prompt="fail")))
    chunk, error = events(body)
    assert chunk["choices"][0]["text"] == "a"
    assert error["error"]["type"] == "server_error"


def test_a_json_response_to_an_http_1_0_client_has_its_length_and_closes(server: Process) -> None:
    status, headers, body = split_response(talk(server, completion_request(version="1.0")))
    assert (status, headers["content-length"], headers["connection"]) == (200, str(len(body)), "close")
    assert json.loads(body)["choices"][0]["text"] == " there was a fox"


def test_an_http_1_0_client_that_asks_for_keep_alive_gets_it_for_json_responses(server: Process) -> None:
    keep = completion_request("Connection: Keep-Alive", version="1.0")
    with socket.create_connection(("127.0.0.1", server.port), timeout=60) as connection:
        for _ in range(2):
            connection.sendall(keep)
            response = b""
            while b"\r\n\r\n" not in response:
                response += connection.recv(65536)
            status, headers, body = split_response(response)
            assert (status, headers["connection"]) == (200, "keep-alive")
            while len(body) < int(headers["content-length"]):
                body += connection.recv(65536)
            assert json.loads(body)["choices"]
        connection.sendall(completion_request("Connection: Keep-Alive", version="1.0", stream=True))
        _, headers, body = split_response(receive_all(connection))
        assert headers["connection"] == "close" and events(body)[-1] == "[DONE]"


def test_other_methods_of_http_1_0_are_answered_and_closed(server: Process) -> None:
    status, headers, body = split_response(talk(server, request_1_0("/health", method="HEAD")))
    assert (status, body, headers["connection"]) == (200, b"", "close")
    status, headers, body = split_response(talk(server, request_1_0("/v1/completions", method="OPTIONS")))
    assert (status, body) == (204, b"") and "transfer-encoding" not in headers
    status, headers, body = split_response(talk(server, request_1_0("/nope")))
    assert (status, headers["content-length"]) == (404, str(len(body)))


def test_an_http_1_0_client_never_gets_100_continue(server: Process) -> None:
    response = talk(server, completion_request("expect: 100-continue", version="1.0"))
    assert response.startswith(b"HTTP/1.1 200 ")


def test_a_chunked_body_of_an_http_1_0_client_closes_the_connection(server: Process) -> None:
    head = request_1_0("/v1/completions", "connection: keep-alive", "transfer-encoding: chunked", method="POST")
    body = b'{"model": "m", "prompt": "x"}'
    response = talk(server, head + b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body))
    status, headers, _ = split_response(response)
    assert (status, headers["connection"]) == (200, "close")


@pytest.mark.parametrize(
    ("head", "num_hosts"),
    [
        (b"GET /health HTTP/1.1\r\n\r\n", 0),
        (b"GET /health HTTP/1.1\r\nhost: x\r\nhost: x\r\n\r\n", 2),
        (b"GET /health HTTP/1.1\r\nHost: x\r\nx: y\r\nHOST: z\r\n\r\n", 2),
        (b"GET /health HTTP/1.0\r\nhost: x\r\nhost: y\r\n\r\n", 2),
    ],
)
def test_a_request_without_exactly_one_host_is_refused(server: Process, head: bytes, num_hosts: int) -> None:
    status, headers, body = split_response(talk(server, head))
    assert (status, headers["connection"]) == (400, "close")
    error = json.loads(body)["error"]
    assert error["message"] == f"An HTTP/1.1 request must have exactly one Host header; this one has {num_hosts}."
    assert set(error) == {"message", "type", "param", "code"}


def test_the_host_may_be_missing_in_http_1_0_and_empty_in_http_1_1(server: Process) -> None:
    assert split_response(talk(server, request_1_0("/health")))[0] == 200
    assert split_response(talk(server, b"GET /health HTTP/1.1\r\nhost:\r\nconnection: close\r\n\r\n"))[0] == 200


def test_a_pipelined_request_without_host_is_refused_after_the_response_to_the_first(server: Process) -> None:
    first = completion_request(stream=True)
    response = talk(server, first + b"GET /health HTTP/1.1\r\n\r\n")
    status, _, body = split_response(response)
    assert status == 200
    assert b"[DONE]" in body and body.endswith(b"0\r\n\r\n")


def test_the_installed_uvicorn_has_every_hook() -> None:
    check_uvicorn()


@pytest.mark.parametrize("hook", UVICORN_HOOKS)
def test_an_uvicorn_without_a_hook_is_reported_before_anything_starts(
    hook: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(HttpToolsProtocol, hook)
    monkeypatch.setattr(uvicorn, "__version__", "0.44.0")
    with pytest.raises(SetupError) as raised:
        serve(settings(), lambda *_: FakeBackend())
    assert str(raised.value) == (
        f"uvicorn 0.44.0 does not work with Onward: it has no HttpToolsProtocol.{hook}. "
        "Install a version that does, 0.45 or newer: pip install --upgrade 'uvicorn>=0.45'."
    )


def test_the_hooks_are_all_methods_that_are_overridden() -> None:
    own = Protocol.__mro__[: Protocol.__mro__.index(HttpToolsProtocol)]
    overridden = {name for one in own for name in vars(one) if name in vars(HttpToolsProtocol)}
    of_asyncio = set(dir(asyncio.Protocol))
    assert overridden - of_asyncio <= set(UVICORN_HOOKS)


class Recorded:
    """A transport that keeps each of its writes. It has no `writelines`, which pauses nobody in some versions of
    Python."""

    def __init__(self) -> None:
        self.writes: list[bytes] = []
        self.is_closed = False

    def write(self, data: bytes) -> None:
        assert not self.is_closed
        self.writes.append(data)

    def close(self) -> None:
        self.is_closed = True

    def is_closing(self) -> bool:
        return self.is_closed


def response_to(transport: Recorded) -> HeadWithBody:
    return HeadWithBody(transport, asyncio.get_running_loop())  # type: ignore[arg-type]


@in_loop
async def test_a_head_leaves_with_the_first_bytes_of_its_body() -> None:
    transport = Recorded()
    response = response_to(transport)
    response.write(b"head ")
    response.write(b"one")
    response.write(b"two")
    assert transport.writes == [b"head one", b"two"]
    await asyncio.sleep(0)
    assert transport.writes == [b"head one", b"two"]


@in_loop
async def test_a_head_that_nothing_follows_leaves_in_the_next_turn() -> None:
    transport = Recorded()
    response = response_to(transport)
    response.write(b"head ")
    assert not transport.writes
    await asyncio.sleep(0)
    assert transport.writes == [b"head "]
    response.write(b"one")
    assert transport.writes == [b"head ", b"one"]


@in_loop
async def test_a_head_leaves_before_its_connection_is_closed() -> None:
    transport = Recorded()
    response = response_to(transport)
    response.write(b"head ")
    response.close()
    assert transport.writes == [b"head "] and response.is_closing()


@in_loop
async def test_a_head_is_dropped_where_the_client_is_gone() -> None:
    transport = Recorded()
    response = response_to(transport)
    response.write(b"head ")
    transport.close()
    await asyncio.sleep(0)
    assert not transport.writes


def test_a_response_without_a_body_is_followed_by_the_next_one(server: Process) -> None:
    head = b"/health HTTP/1.1\r\nhost: localhost\r\n"
    answers = talk(server, b"HEAD " + head + b"\r\nGET " + head + b"connection: close\r\n\r\n")
    _, first, second = answers.split(b"HTTP/1.1 ")
    assert first.endswith(b"\r\n\r\n") and b'"status"' in second
