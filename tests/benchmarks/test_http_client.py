"""What the load generator reads from raw bytes, however they were cut."""

from __future__ import annotations

import itertools

import pytest
from benchmarks.http_client import Received, Target, parse
from hypothesis import given, settings
from hypothesis import strategies as st

HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
EVENTS = [b'{"a":1}', b'{"b":"\xc3\xa9"}', b"[DONE]"]


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


STREAM = HEAD + b"".join(chunk(b"data: " + event + b"\n\n") for event in EVENTS) + b"0\r\n\r\n"


def received(pieces: list[bytes]) -> Received:
    return Received(0.0, pieces, [float(number) for number in range(1, len(pieces) + 1)], float(len(pieces)))


@given(st.sets(st.integers(1, len(STREAM) - 1)))
@settings(max_examples=60)
def test_events_are_the_same_however_the_stream_is_cut(cuts: set[int]) -> None:
    places = [0, *sorted(cuts), len(STREAM)]
    pieces = [STREAM[begin:end] for begin, end in itertools.pairwise(places)]
    answered = parse(received(pieces))
    assert (answered.status, [data for _, data in answered.events]) == (200, EVENTS)


def test_an_event_has_the_time_its_last_byte_came() -> None:
    end_of_first = len(HEAD + chunk(b"data: " + EVENTS[0] + b"\n\n"))
    pieces = [STREAM[: end_of_first - 3], STREAM[end_of_first - 3 : end_of_first], STREAM[end_of_first:]]
    assert [moment for moment, _ in parse(received(pieces)).events] == [2.0, 3.0, 3.0]


def test_an_event_split_over_two_http_chunks_is_one_event_of_the_second() -> None:
    first, second = chunk(b'data: {"a"'), chunk(b":1}\n\ndata: [DONE]\n\n") + b"0\r\n\r\n"
    answered = parse(received([HEAD + first, second]))
    assert answered.events == [(2.0, b'{"a":1}'), (2.0, b"[DONE]")]


def test_keep_alive_comments_are_no_events() -> None:
    answered = parse(received([HEAD + chunk(b": keep-alive\n\ndata: [DONE]\n\n") + b"0\r\n\r\n"]))
    assert answered.events == [(1.0, b"[DONE]")]


def test_an_error_with_a_length_is_read_whole() -> None:
    answered = parse(received([b'HTTP/1.1 503 Busy\r\nContent-Length: 12\r\n\r\n{"error":{}}']))
    assert (answered.status, answered.body, answered.events) == (503, b'{"error":{}}', [])


@pytest.mark.parametrize("url", ["http://example.com", "https://127.0.0.1:8000"])
def test_other_machines_and_https_are_refused(url: str) -> None:
    with pytest.raises(ValueError):
        Target.parse(url)


@pytest.mark.parametrize("url", ["127.0.0.1:8000", "http://127.0.0.1:8000/", "http://127.0.0.1:8000/v1"])
def test_a_base_url_may_have_or_lack_scheme_and_version(url: str) -> None:
    target = Target.parse(url)
    assert (target.host, target.port, target.path) == ("127.0.0.1", 8000, "/v1/completions")
