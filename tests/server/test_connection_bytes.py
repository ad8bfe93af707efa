"""The server over real sockets: bytes on the wire, the official client, disconnects."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from typing import Any

import httpx2
import openai
import pytest

from tests.server.conftest import Process
from tests.server.fakes import events
from tests.server.wire import completion_request, talk
from tests.waiting import PATIENCE_SECONDS, wait_for


@pytest.fixture(scope="module")
def client(server: Process) -> Iterator[openai.OpenAI]:
    base_url = f"{server.url}/v1"
    with openai.OpenAI(base_url=base_url, api_key="any", max_retries=0, timeout=PATIENCE_SECONDS) as client:
        yield client


def post(**fields: Any) -> bytes:
    return completion_request("connection: close", **fields)


def gauge(server: Process, name: str) -> float:
    text = httpx2.get(f"{server.url}/metrics", timeout=PATIENCE_SECONDS).text
    return float(next(line for line in text.splitlines() if line.startswith(f"{name} ")).split()[1])


def test_the_ready_line_names_address_and_models(server: Process) -> None:
    named = f"Onward is ready at {server.url}/v1 (model: fake-model:1)."
    assert server.ready_line == f"{named}\n"
    assert httpx2.get(f"{server.url}/health", timeout=PATIENCE_SECONDS).json()["status"] == "ready"


def test_a_stream_is_chunked_and_ends_with_the_last_chunk(server: Process) -> None:
    head, _, body = talk(server, post(stream=True)).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200 OK\r\n")
    assert b"\r\ncontent-type: text/event-stream\r\n" in head + b"\r\n"
    assert b"\r\nserver:" not in head.lower()
    assert body.endswith(b"\r\n0\r\n\r\n")


def test_the_client_completes(client: openai.OpenAI) -> None:
    answer = client.completions.create(model="storyteller", prompt="Once")
    assert answer.choices[0].text == " there was a fox"
    assert answer.usage is not None and answer.usage.total_tokens == 10
    assert answer._request_id is not None and answer._request_id.startswith("req_")


def test_the_strict_client_validates_a_whole_answer(server: Process) -> None:
    strict = openai.OpenAI(base_url=f"{server.url}/v1", api_key="any", _strict_response_validation=True)
    with strict:
        assert strict.completions.create(model="storyteller", prompt="Once").object == "text_completion"
        assert [model.id for model in strict.models.list()] == ["storyteller", "org/tiny"]


def test_the_client_streams(client: openai.OpenAI) -> None:
    stream = client.completions.create(model="storyteller", prompt="Once", stream=True)
    assert "".join(chunk.choices[0].text for chunk in stream) == " there was a fox"


def test_the_client_raises_its_own_errors(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError, match="Unrecognized request argument supplied: foo"):
        client.completions.create(model="storyteller", prompt="x", extra_body={"foo": 1})
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("nope")
    with pytest.raises(openai.NotFoundError, match="Invalid URL"):
        client.embeddings.create(model="m", input="x")


def test_the_client_raises_an_error_from_inside_a_stream(client: openai.OpenAI) -> None:
    stream = client.completions.create(model="storyteller", prompt="fail", stream=True)
    with pytest.raises(openai.APIError, match="The server had an error"):
        list(stream)


def test_an_idle_stream_gets_keep_alive_comments_on_the_wire(server: Process) -> None:
    with httpx2.stream(
        "POST",
        f"{server.url}/v1/completions",
        json={"model": "m", "prompt": "slow", "stream": True},
        timeout=PATIENCE_SECONDS,
    ) as answer:
        received = b""
        for chunk in answer.iter_raw():
            received += chunk
            if received.count(b"\n\n") >= 2:
                break
    assert set(events(received)) == {None}


def num_cancelled(server: Process) -> float:
    """How many requests were cancelled, after those that other tests have left are counted."""
    wait_for(lambda: gauge(server, "onward_requests_in_flight") == 1)
    return gauge(server, "onward_requests_cancelled_total")


@pytest.mark.parametrize(
    "fields", [{"prompt": "slow"}, {"prompt": "slow", "stream": True}, {"prompt": "hang", "stream": True}]
)
def test_a_closed_connection_cancels_the_work(server: Process, fields: dict[str, object]) -> None:
    cancelled = num_cancelled(server)
    with socket.create_connection(("127.0.0.1", server.port)) as connection:
        connection.sendall(post(**fields))
        wait_for(lambda: gauge(server, "onward_requests_in_flight") == 2)
    wait_for(lambda: gauge(server, "onward_requests_in_flight") == 1)
    assert gauge(server, "onward_requests_cancelled_total") == cancelled + 1


def test_closing_the_stream_of_the_client_cancels_the_work(server: Process, client: openai.OpenAI) -> None:
    with client.completions.create(model="storyteller", prompt="hang", stream=True) as stream:
        assert next(iter(stream)).choices[0].text == "a"
    wait_for(lambda: gauge(server, "onward_requests_in_flight") == 1)


@pytest.mark.parametrize("chunked", [False, True])
def test_a_body_over_the_limit_is_answered_while_it_is_sent(server: Process, chunked: bool) -> None:
    body = b"x" * 50_000
    answer = httpx2.post(
        f"{server.url}/v1/completions",
        content=iter([body]) if chunked else body,
        headers={"content-type": "application/json"},
        timeout=PATIENCE_SECONDS,
    )
    assert answer.status_code == 413
    assert answer.json()["error"]["type"] == "invalid_request_error"


def test_disconnecting_during_a_pipeline_cancels_the_work(server: Process) -> None:
    cancelled = num_cancelled(server)
    hanging = post(prompt="hang", stream=True).replace(b"connection: close\r\n", b"")
    with socket.create_connection(("127.0.0.1", server.port)) as connection:
        connection.sendall(hanging + b"GET /health HTTP/1.1\r\nhost: localhost\r\n\r\n")
        wait_for(lambda: gauge(server, "onward_requests_in_flight") == 2)
    wait_for(lambda: gauge(server, "onward_requests_in_flight") == 1)
    assert gauge(server, "onward_requests_cancelled_total") == cancelled + 1


def test_malformed_http_is_a_400_in_the_envelope(server: Process) -> None:
    head, _, body = talk(server, b"nonsense\r\n\r\n").partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 400")
    assert set(json.loads(body)["error"]) == {"message", "type", "param", "code"}


def test_one_connection_serves_many_requests(server: Process) -> None:
    with httpx2.Client(base_url=server.url, timeout=PATIENCE_SECONDS) as connection:
        for _ in range(3):
            stream = connection.post("/v1/completions", json={"model": "m", "prompt": "x", "stream": True})
            assert events(stream.content)[-1] == "[DONE]"
            assert connection.post("/v1/completions", json={"model": "m", "prompt": "x"}).status_code == 200
            assert connection.head("/health").status_code == 200
            assert connection.options("/v1/completions").status_code == 204
