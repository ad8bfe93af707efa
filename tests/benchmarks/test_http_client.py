"""The load generator parses raw bytes however they were split into reads."""

from __future__ import annotations

import asyncio
import itertools
from contextlib import closing

import pytest
from benchmarks.http_client import Received, Target, parse_response
from benchmarks.load import Bounds, LoadGenerator
from benchmarks.measure import BenchmarkError
from benchmarks.outcome import Outcome
from benchmarks.workload import Workload
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.examples import examples

HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
EVENTS = [b'{"a":1}', b'{"b":"\xc3\xa9"}', b"[DONE]"]


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


STREAM = HEAD + b"".join(chunk(b"data: " + event + b"\n\n") for event in EVENTS) + b"0\r\n\r\n"


def received(reads: list[bytes]) -> Received:
    return Received(0.0, reads, [float(number) for number in range(1, len(reads) + 1)], float(len(reads)))


@given(st.sets(st.integers(1, len(STREAM) - 1)))
@settings(max_examples=examples(60))
def test_events_are_the_same_however_the_stream_is_split(cuts: set[int]) -> None:
    bounds = [0, *sorted(cuts), len(STREAM)]
    reads = [STREAM[begin:end] for begin, end in itertools.pairwise(bounds)]
    response = parse_response(received(reads))
    assert (response.status, [data for _, data in response.events]) == (200, EVENTS)


def test_an_event_has_the_arrival_time_of_its_last_byte() -> None:
    end_of_first = len(HEAD + chunk(b"data: " + EVENTS[0] + b"\n\n"))
    reads = [STREAM[: end_of_first - 3], STREAM[end_of_first - 3 : end_of_first], STREAM[end_of_first:]]
    assert [arrived for arrived, _ in parse_response(received(reads)).events] == [2.0, 3.0, 3.0]


def test_an_event_split_over_two_http_chunks_is_one_event_of_the_second() -> None:
    first, second = chunk(b'data: {"a"'), chunk(b":1}\n\ndata: [DONE]\n\n") + b"0\r\n\r\n"
    response = parse_response(received([HEAD + first, second]))
    assert response.events == [(2.0, b'{"a":1}'), (2.0, b"[DONE]")]


def test_keep_alive_comments_are_not_events() -> None:
    response = parse_response(received([HEAD + chunk(b": keep-alive\n\ndata: [DONE]\n\n") + b"0\r\n\r\n"]))
    assert response.events == [(1.0, b"[DONE]")]


def test_an_error_with_a_content_length_is_complete() -> None:
    response = parse_response(received([b'HTTP/1.1 503 Busy\r\nContent-Length: 12\r\n\r\n{"error":{}}']))
    assert (response.status, response.body, response.events) == (503, b'{"error":{}}', [])


@pytest.mark.parametrize("url", ["http://example.com", "https://127.0.0.1:8000"])
def test_other_machines_and_https_are_refused(url: str) -> None:
    with pytest.raises(BenchmarkError):
        Target.parse(url)


@pytest.mark.parametrize("url", ["127.0.0.1:8000", "http://127.0.0.1:8000/", "http://127.0.0.1:8000/v1"])
def test_scheme_and_version_of_a_base_url_are_optional(url: str) -> None:
    target = Target.parse(url)
    assert (target.host, target.port, target.path) == ("127.0.0.1", 8000, "/v1/completions")


def test_no_request_fails_when_the_server_closes_a_kept_alive_connection() -> None:
    """As llama-server does: it announces keep-alive and closes the connection after each response."""

    async def answer_and_close(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with closing(writer):
            head = await reader.readuntil(b"\r\n\r\n")
            await reader.readexactly(int(head.lower().partition(b"content-length: ")[2].split()[0]))
            body = b'data: {"choices": [{"text": "a"}]}\n\ndata: [DONE]\n\n'
            writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
            writer.write(b"%x\r\n%s\r\n0\r\n\r\n" % (len(body), body))
            await writer.drain()
            await asyncio.sleep(0.001)

    async def load() -> list[Outcome]:
        server = await asyncio.start_server(answer_and_close, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        async with server:
            target = Target.parse(f"http://127.0.0.1:{port}")
            return await LoadGenerator(target, Workload(model="any"), Bounds(40)).closed_loop(4)

    assert [outcome.error for outcome in asyncio.run(load())] == [None] * 40
