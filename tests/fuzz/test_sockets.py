"""Attacks on raw sockets: truncated, slow, huge, deep, pipelined. The server responds or closes, and continues."""

from __future__ import annotations

import json
import random
import socket
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.parity.servers import BASE, COMPLETIONS, Server
from tests.server.wire import receive_all
from tests.waiting import PATIENCE_SECONDS

GOOD = json.dumps(BASE | {"max_tokens": 3}).encode()


@contextmanager
def connected(server: Server) -> Iterator[socket.socket]:
    with socket.create_connection(("127.0.0.1", server.port), timeout=PATIENCE_SECONDS) as connection:
        yield connection


def request(body: bytes, headers: bytes = b"", path: str = COMPLETIONS) -> bytes:
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n".encode()
    return head + headers + b"Content-Length: %d\r\n\r\n" % len(body) + body


def status_of(received: bytes) -> int:
    return int(received.split(b" ", 2)[1])


def answer_to(server: Server, sent: bytes) -> bytes:
    """Return the response to one request, on a connection that then closes."""
    with connected(server) as connection:
        connection.sendall(sent.replace(b"\r\n", b"\r\nConnection: close\r\n", 1))
        return receive_all(connection)


@pytest.mark.parametrize("cut", [1, 10, 40, 90, len(request(GOOD)) - 1])
def test_a_truncated_request_is_dropped(server: Server, cut: int) -> None:
    with connected(server) as connection:
        connection.sendall(request(GOOD)[:cut])


def test_a_body_shorter_than_its_length_is_dropped_when_the_client_closes(server: Server) -> None:
    with connected(server) as connection:
        connection.sendall(request(GOOD).replace(b"Content-Length: ", b"Content-Length: 9"))
        connection.shutdown(socket.SHUT_WR)
        receive_all(connection)


def test_slow_headers_and_slow_bodies_delay_no_other_request(server: Server) -> None:
    sent = request(GOOD)
    with connected(server) as headers, connected(server) as body:
        body.sendall(sent[:-20])
        for place in range(0, 60, 5):
            headers.sendall(sent[place : place + 5])
            assert server.ask(max_tokens=1).status == 200, "it does not wait for what the others have yet to send"
        headers.sendall(sent[60:])
        body.sendall(sent[-20:])
        for connection in (headers, body):
            assert connection.recv(100).startswith(b"HTTP/1.1 200")


def test_a_hundred_idle_connections_delay_no_other_request(server: Server) -> None:
    idle = [socket.create_connection(("127.0.0.1", server.port), timeout=PATIENCE_SECONDS) for _ in range(100)]
    assert server.ask(max_tokens=1).status == 200
    for connection in idle:
        connection.close()


def test_a_huge_body_is_a_413_that_its_sender_can_read(server: Server) -> None:
    received = answer_to(server, request(b'{"prompt":"' + b"x" * 3_000_000 + b'"}'))
    assert status_of(received) == 413 and b'"error"' in received


def test_a_huge_chunked_body_is_a_413_too(server: Server) -> None:
    head = request(b"").replace(b"Content-Length: 0", b"Transfer-Encoding: chunked")
    with connected(server) as connection:
        connection.sendall(head)
        try:
            for _ in range(40):
                connection.sendall(b"10000\r\n" + b"x" * 0x10000 + b"\r\n")
            connection.sendall(b"0\r\n\r\n")
        except OSError:
            pass  # it may close while we still send
        received = receive_all(connection)
    assert not received or status_of(received) == 413


@pytest.mark.parametrize("declared", [b"99999999999999999999", b"-1", b"abc", b"1, 2"])
def test_an_impossible_content_length_is_rejected(server: Server, declared: bytes) -> None:
    sent = request(GOOD).replace(b"Content-Length: %d" % len(GOOD), b"Content-Length: " + declared)
    with connected(server) as connection:
        connection.sendall(sent)
        connection.shutdown(socket.SHUT_WR)
        received = receive_all(connection)
    assert not received or status_of(received) in (400, 413)


def test_two_lengths_or_a_length_and_chunks_smuggle_nothing(server: Server) -> None:
    for headers in (b"Content-Length: 5\r\n", b"Transfer-Encoding: chunked\r\n"):
        with connected(server) as connection:
            connection.sendall(request(GOOD, headers))
            connection.shutdown(socket.SHUT_WR)
            received = receive_all(connection)
        assert received.count(b"HTTP/1.1 ") <= 1
        assert not received or status_of(received) in (200, 400)


@pytest.mark.parametrize(
    "body",
    [
        b"[" * 500_000,
        b'{"a":' * 100_000 + b"1" + b"}" * 100_000,
        b'{"model":"toy","stop":' + b"[" * 1000 + b"]" * 1000 + b"}",
        b'{"model":"toy","prompt":"\xff\xfe\x80"}',
        b'{"model":"toy","prompt":"\\ud800\\ud800"}',
        b'{"model":"toy","prompt":[' + b"1," * 300_000 + b"1]}",
        b'{"model":"toy","max_tokens":' + b"9" * 10_000 + b"}",
        b'{"model":"toy","temperature":1' + b"0" * 400 + b".5}",
        b'{"model":"toy","logit_bias":{' + b",".join(b'"%d":1' % n for n in range(5000)) + b"}}",
        b'{"model":"toy","' + b"x" * 900_000 + b'":1}',
        b'{"model":"toy","stop":["' + b"s" * 900_000 + b'"]}',
        b'{"model":"' + b"m" * 900_000 + b'"}',
    ],
    ids=range(12),
)
def test_a_malicious_body_is_completed_or_rejected(server: Server, body: bytes) -> None:
    received = answer_to(server, request(body))
    assert status_of(received) in (200, 400, 404)


def test_pipelined_requests_are_answered_in_order(server: Server) -> None:
    bodies = [json.dumps(BASE | {"prompt": prompt, "max_tokens": 1, "echo": True}).encode() for prompt in "abcde"]
    with connected(server) as connection:
        connection.sendall(b"".join(map(request, bodies[:-1])))
        connection.sendall(request(bodies[-1], b"Connection: close\r\n"))
        received = receive_all(connection)
    found = [received.index(b'"text": "%s' % prompt) for prompt in (b"a", b"b", b"c", b"d", b"e")]
    assert found == sorted(found) and received.count(b"HTTP/1.1 200") == 5


def test_pipelined_streams_that_the_client_does_not_read_are_cancelled(server: Server) -> None:
    body = json.dumps(BASE | {"stream": True, "max_tokens": 1800, "ignore_eos": True}).encode()
    with connected(server) as connection:
        connection.sendall(request(body) * 3)
        connection.recv(100)


def test_a_client_that_resets_its_connection_is_noticed(server: Server) -> None:
    body = json.dumps(BASE | {"stream": True, "n": 8, "max_tokens": 1800, "ignore_eos": True}).encode()
    for _ in range(5):
        with connected(server) as connection:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\x00\x00\x00\x00\x00\x00\x00")
            connection.sendall(request(body))
            connection.recv(100)


@pytest.mark.parametrize(
    "sent",
    [
        b"\r\n\r\n",
        b"GET\r\n\r\n",
        b"GET / HTTP/9.9\r\n\r\n",
        b"POST " + b"/x" * 50_000 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"GET /\xff\xfe HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"GET /%ff%fe%00 HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: localhost\r\n" + b"X-A: b\r\n" * 5000 + b"\r\n",
        b"GET / HTTP/1.1\r\nX-A: " + b"b" * 200_000 + b"\r\n\r\n",
        b"GET / HTTP/1.1\r\nX\x00Y: b\r\n\r\n",
        b"GET http://127.0.0.1:1/ HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(200),
    ],
    ids=range(13),
)
def test_malformed_http_is_rejected_or_closed(server: Server, sent: bytes) -> None:
    with connected(server) as connection:
        try:
            connection.sendall(sent)
            connection.shutdown(socket.SHUT_WR)
        except OSError:
            pass  # closed while we still sent
        received = receive_all(connection)
    assert not received or status_of(received) < 500


def test_a_request_with_random_bytes_and_cuts_leaves_the_server_alive(server: Server) -> None:
    draw = random.Random(20)
    sent = request(GOOD)
    for _ in range(150):
        damaged = bytearray(sent)
        for _ in range(draw.randint(1, 6)):
            damaged[draw.randrange(len(damaged))] = draw.randrange(256)
        with connected(server) as connection:
            try:
                connection.sendall(bytes(damaged[: draw.randint(1, len(damaged))]))
                connection.shutdown(socket.SHUT_WR)
            except OSError:
                continue
            received = receive_all(connection)
        assert not received or status_of(received) < 500
