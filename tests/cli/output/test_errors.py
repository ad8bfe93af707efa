"""Every way in which a server fails: the message, the stream that it goes to, and the exit code."""

from __future__ import annotations

import asyncio
import email.utils
import errno
import json
import os
import socket
import time

import httpx2
import pytest

from onward.cli.output.errors import lacks_memory
from onward.cli.session import ServerConnection
from onward.cli.source.http import HttpSource
from onward.cli.source.transport import connection_failed, retry_delay
from onward.runtimes.toy.model import ToyModel

from ..conftest import create, onward
from ..scripted import (
    DONE,
    STREAM_HEAD,
    Scripted,
    answer,
    chunk,
    completion,
    error,
    event,
    scripted,
)

ASK = ("-m", "m", "Once")
ONCE = {"x_should_retry": "false"}


def test_a_request_is_sent_as_the_official_tool_sends_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-secret")
    monkeypatch.setenv("OPENAI_ORG_ID", "org-1")
    monkeypatch.setenv("OPENAI_PROJECT_ID", "proj-1")
    monkeypatch.setenv("OPENAI_CUSTOM_HEADERS", "X-One: 1\nX-Two: a: b")
    with scripted(answer(200, completion(" upon"))) as server:
        monkeypatch.setenv("OPENAI_BASE_URL", server.url + "/")
        result = create(*ASK, "--seed", "7")
    assert json.loads(result.stdout) == completion(" upon")
    (request,) = server.requests
    assert request.line == "POST /v1/completions HTTP/1.1"
    assert request.fields == {"model": "m", "prompt": "Once", "seed": 7}
    headers = request.headers
    assert headers["authorization"] == "Bearer sk-secret"
    assert (headers["openai-organization"], headers["openai-project"]) == ("org-1", "proj-1")
    assert (headers["x-one"], headers["x-two"]) == ("1", "a: b")
    assert headers["x-stainless-retry-count"] == "0"
    assert headers["user-agent"].startswith("Onward/CLI ")


def test_flags_win_over_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_BASE_URL", "http://127.0.0.1:1/v1")
    monkeypatch.setenv("OPENAI_API_KEY", "other")
    with scripted(answer(200, completion("x"))) as server:
        assert onward("--base-url", server.url, "--api-key", "mine", "completions", "create", *ASK).exit_code == 0
    assert server.requests[0].headers["authorization"] == "Bearer mine"


def test_the_keys_of_the_users_server_are_sent_only_to_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ONWARD_API_KEY", "own,other")
    with scripted(answer(200, completion("x"))) as server:
        create(*ASK, "--base-url", server.url)
        monkeypatch.setenv("ONWARD_BASE_URL", server.url)
        create(*ASK)
    assert "authorization" not in server.requests[0].headers
    assert server.requests[1].headers["authorization"] == "Bearer own"


def test_the_old_command_line_is_understood() -> None:
    with scripted(answer(200, completion(" upon"))) as server:
        arguments = ["-b", server.url, "-k", "key", "-o", "org", "api", "completions.create"]
        result = onward(
            *arguments, "-m", "m", "-p", "Once", "-M", "5", "-t", "0.5", "-P", "0.9", "-n", "1", "--best_of", "1"
        )
    assert (result.exit_code, result.stdout) == (0, " upon\n"), result.output
    (request,) = server.requests
    assert request.headers["openai-organization"] == "org"
    assert request.fields == {
        "model": "m", "prompt": "Once", "max_tokens": 5, "temperature": 0.5, "top_p": 0.9, "n": 1, "best_of": 1,
    }  # fmt: skip


def test_debug_logs_headers_without_secrets() -> None:
    with scripted(answer(200, completion("x"), x_request_id="req_9", set_cookie="secret-cookie")) as server:
        result = create(*ASK, "--base-url", server.url, "--api-key", "sk-secret", "--debug")
    assert f"> POST {server.url}/completions" in result.stderr
    assert "authorization: Bearer <REDACTED>" in result.stderr
    assert "x-request-id: req_9" in result.stderr
    assert "secret" not in result.stderr


def test_a_server_requires_a_model() -> None:
    result = create("Once", "--base-url", "http://127.0.0.1:1/v1")
    assert result.exit_code == 2
    assert 'Required flag "model" not set' in result.stderr
    assert "`onward models list --base-url http://127.0.0.1:1/v1` shows" in result.stderr.replace("\n", " ")


def test_required_flags_that_are_missing_are_listed_together() -> None:
    result = create("--base-url", "http://127.0.0.1:1/v1")
    words = " ".join(result.stderr.split())
    assert result.exit_code == 2
    assert "Try 'onward completions create -" in words
    assert 'Required flags "model, prompt" not set. `onward models list' in words
    assert "Pass the text as an argument, with --prompt, or through a pipe" in words
    assert 'Required flag "prompt" not set' in create("--base-url", "http://127.0.0.1:1/v1", "-m", "m").stderr
    piped = create("--base-url", "http://127.0.0.1:1/v1", stdin='{"model": "m"}')
    assert 'Required flag "prompt" not set' in piped.stderr


def test_a_model_in_this_process_has_a_default_and_is_never_missing() -> None:
    assert 'Required flag "prompt" not set' in create().stderr


NOWHERE = ("[::1", "127.0.0.1:port", "127.0.0.1:65536", "127.0.0.1:-1", "h:+80", "h:0", "", "é..example")


@pytest.mark.parametrize("place", NOWHERE)
def test_a_url_that_is_none_is_an_error_of_its_flag(place: str) -> None:
    for flag, command in (("--base-url", ("models", "list")), ("--server", ("doctor",))):
        result = onward(*command, flag, f"http://{place}/v1")
        assert (result.exit_code, result.stdout) == (2, "")
        assert f"{flag} is not a valid URL, such as http://HOST:PORT/v1." in result.stderr


@pytest.mark.parametrize(
    ("variable", "value", "code", "words"),
    [
        ("OPENAI_API_KEY", "schlüssel", 2, "OPENAI_API_KEY contains characters"),
        ("OPENAI_ORG_ID", "schlüssel", 2, "OPENAI_ORG_ID contains characters"),
        ("OPENAI_CUSTOM_HEADERS", "X-Name: né", 2, "OPENAI_CUSTOM_HEADERS contains characters"),
        ("OPENAI_CUSTOM_HEADERS", "X Name: a", 2, "OPENAI_CUSTOM_HEADERS contains a name that"),
        *(("OPENAI_BASE_URL", f"http://{place}/v1", 2, "is not a valid URL") for place in NOWHERE),
        ("OPENAI_BASE_URL", "127.0.0.1:8000", 2, 'OPENAI_BASE_URL "127.0.0.1:8000" is missing a scheme'),
        ("ALL_PROXY", "nonsense://x", 1, "The proxy in ALL_PROXY is not a URL"),
    ],
)
def test_an_unusable_environment_is_an_error(
    variable: str, value: str, code: int, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_BASE_URL", "http://127.0.0.1:1/v1")
    monkeypatch.setenv(variable, os.fsdecode(value.encode()))
    result = create(*ASK)
    assert (result.exit_code, result.stdout) == (code, ""), result.output
    assert words in result.stderr
    assert "schlüssel" not in result.output


def test_white_space_around_a_key_is_not_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-1\n")
    with scripted(answer(200, completion("x"))) as server:
        create(*ASK, "--base-url", server.url)
    assert server.requests[0].headers["authorization"] == "Bearer sk-1"


@pytest.mark.usefixtures("quick")
def test_a_refused_connection_exits_with_code_3() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    result = create(*ASK, "--base-url", f"http://127.0.0.1:{port}/v1")
    assert (result.exit_code, result.stdout) == (3, "")
    assert f"Cannot connect to 127.0.0.1:{port} (Connection refused)." in result.stderr
    assert "`onward serve`" in result.stderr and "leave out --base-url" in result.stderr


@pytest.mark.usefixtures("quick")
def test_a_name_without_a_machine_exits_with_code_3_in_a_clean_sentence() -> None:
    result = create(*ASK, "--base-url", "http://nosuch.invalid/v1")
    assert (result.exit_code, result.stdout) == (3, "")
    assert result.stderr.startswith("onward: The host name nosuch.invalid cannot be resolved (")
    assert "Errno" not in result.stderr


@pytest.mark.parametrize(
    ("reply", "code", "words"),
    [
        (
            error(401, "Incorrect API key provided."),
            4,
            ["Incorrect API key", "HTTP 401", "--api-key or OPENAI_API_KEY"],
        ),
        (error(400, "Bad 'n'."), 4, ["Bad 'n'.", "HTTP 400"]),
        (error(404, "Unknown request URL.", "unknown_url"), 4, ["Unknown request URL.", "/v1"]),
        (error(429, "Slow down.", **ONCE), 4, ["Slow down.", "HTTP 429", "Wait a moment"]),
        (error(429, "No budget is left.", "insufficient_quota", **ONCE), 4, ["No budget is left.", "HTTP 429"]),
        (error(500, "It broke.", x_request_id="req_7", **ONCE), 5, ["It broke.", "HTTP 500", "request req_7"]),
        (answer(502, b"<html>\r\n<h1>Bad gateway</h1><hr></html>", **ONCE), 5, ["onward: Bad gateway (HTTP 502)"]),
        (answer(503, b"", **ONCE), 5, ["HTTP 503"]),
        (answer(422, {"detail": "no such field"}), 4, ["no such field", "HTTP 422"]),
        (answer(400, {"error": "just a string"}), 4, ["just a string"]),
        (answer(301, b"", location="http://elsewhere/"), 4, ["HTTP 301", "moved"]),
        (answer(200, b"<html>hello</html>"), 5, ["is it a Completions API?"]),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 900\r\n\r\n{", 3, ["was lost before the response was complete"]),
    ],
    ids=[
        "401",
        "400",
        "404",
        "429",
        "429 budget",
        "500",
        "html 502",
        "empty 503",
        "fastapi 422",
        "string error",
        "301",
        "html 200",
        "cut",
    ],
)
def test_an_http_error_is_printed_and_has_its_code(reply: bytes, code: int, words: list[str]) -> None:
    with scripted(reply) as server:
        result = create(*ASK, "--base-url", server.url)
    assert (result.exit_code, result.stdout) == (code, ""), result.stderr
    for each in words:
        assert each in result.stderr
    assert "Traceback" not in result.output


def test_advice_is_given_only_where_it_may_help() -> None:
    with scripted(error(429, "No budget is left.", "insufficient_quota", **ONCE)) as server:
        assert "Wait" not in create(*ASK, "--base-url", server.url).stderr
    with scripted(answer(200, b"<html>hello</html>")) as server:
        unusable = create(*ASK, "--base-url", server.url).stderr
    assert "HTTP" not in unusable and "retried" not in unusable and "/v1" in unusable
    with scripted(b"HTTP/1.1 200 OK\r\ncontent-length: 900\r\n\r\n{") as server:
        assert "Start a server" not in create(*ASK, "--base-url", server.url).stderr


def test_a_server_without_tls_is_recognised() -> None:
    """By what OpenSSL 3.0 and 3.2 say about a plain answer."""
    for words in ("[SSL: WRONG_VERSION_NUMBER] wrong version number", "[SSL] record layer failure"):
        failure = connection_failed(httpx2.ConnectError(words), "https://127.0.0.1:8000/v1")
        assert str(failure) == "127.0.0.1:8000 does not use TLS: the URL may have to begin with http://."


def test_an_unknown_model_of_a_server_has_a_suggestion() -> None:
    missing = error(404, "The model `gpt-old` does not exist", "model_not_found")
    listed = answer(200, {"object": "list", "data": [{"id": "gpt-old-1"}, {"id": "other"}]})
    with scripted(missing, listed) as server:
        result = create("-m", "gpt-old", "Once", "--base-url", server.url)
    assert result.exit_code == 4
    assert "Did you mean 'gpt-old-1'?" in result.stderr
    assert server.requests[1].line == "GET /v1/models HTTP/1.1"


def test_the_names_of_a_servers_models_cannot_control_the_terminal() -> None:
    listed = answer(200, {"object": "list", "data": [{"id": "\x1b]0;title\x07other"}]})
    with scripted(error(404, "No such model", "model_not_found"), listed) as server:
        result = create("-m", "gpt-old", "Once", "--base-url", server.url)
    assert f"{server.url} serves: \\x1b]0;title\\x07other. " in result.stderr and "\x1b" not in result.stderr


@pytest.mark.parametrize(
    "reply", [error(500, "Broken.", retry_after_ms="1"), answer(200, {"data": [{}]}), answer(200, {})]
)
def test_a_server_that_does_not_list_its_models_keeps_its_error(reply: bytes) -> None:
    with scripted(error(404, "No such model", "model_not_found"), reply) as server:
        result = create("-m", "gpt-old", "Once", "--base-url", server.url)
    assert result.exit_code == 4
    assert result.stderr.startswith("onward: No such model (code model_not_found, HTTP 404)\n`onward models list")


def test_a_busy_server_is_retried() -> None:
    busy = (error(429, "Busy.", retry_after_ms="1"), error(503, "Busy.", retry_after="0"))
    with scripted(*busy, answer(200, completion("x"))) as server:
        result = create(*ASK, "--base-url", server.url)
    assert result.exit_code == 0
    assert [each.headers["x-stainless-retry-count"] for each in server.requests] == ["0", "1", "2"]


def test_a_request_is_retried_at_most_twice() -> None:
    with scripted(error(500, "Broken.", retry_after_ms="1")) as server:
        assert create(*ASK, "--base-url", server.url).exit_code == 5
    assert len(server.requests) == 3


@pytest.mark.parametrize(
    ("status", "headers", "expected"),
    [
        (429, {"retry-after-ms": "250"}, 0.25),
        (429, {"retry-after": "3"}, 3.0),
        (429, {"retry-after": "3", "retry-after-ms": "5"}, 0.005),
        (503, {"retry-after": "121"}, None),
        (400, {}, None),
        (400, {"x-should-retry": "true", "retry-after": "1"}, 1.0),
        (500, {"x-should-retry": "false"}, None),
        (429, {"retry-after": "-5"}, 0.0),
    ],
)
def test_headers_of_servers_set_the_delay_of_a_retry(
    status: int, headers: dict[str, str], expected: float | None
) -> None:
    assert retry_delay(0, status, headers) == expected


def test_a_retry_after_header_may_be_a_date() -> None:
    delay = retry_delay(0, 429, {"retry-after": email.utils.formatdate(time.time() + 30)})
    assert delay is not None and 20 < delay <= 31


@pytest.mark.parametrize(("attempt", "least", "most"), [(0, 0.375, 0.5), (1, 0.75, 1.0)])
def test_the_delay_doubles_with_jitter(attempt: int, least: float, most: float) -> None:
    for status in (None, 408, 409, 500):
        delay = retry_delay(attempt, status, {"retry-after": "soon"})
        assert delay is not None and least <= delay <= most
    assert retry_delay(2, 500, {}) is None


def test_a_refused_connection_is_retried_after_the_delays() -> None:
    waits: list[float] = []

    async def sleep(seconds: float) -> None:
        waits.append(seconds)

    async def ask() -> None:
        source = HttpSource(ServerConnection(base_url="http://127.0.0.1:1/v1"), sleep=sleep)
        with pytest.raises(Exception, match="Cannot connect"):
            await source.complete({})
        await source.aclose()

    asyncio.run(ask())
    assert len(waits) == 2


def streamed(*parts: bytes, code: int, text: str, words: str = "") -> Scripted:
    with scripted(STREAM_HEAD + b"".join(parts)) as server:
        result = create(*ASK, "--base-url", server.url, "--stream", "--transform", "choices.0.text", "-r")
    assert (result.exit_code, result.stdout) == (code, text), result.stderr
    assert words in result.stderr
    assert "Traceback" not in result.output
    return server


def test_a_stream_is_read_to_its_end() -> None:
    streamed(b": keep-alive\n\n", chunk("a"), chunk("b", "stop"), DONE, b"data: junk\n\n", code=0, text="a\nb\n")


def test_a_stream_without_done_is_complete_when_its_choices_ended() -> None:
    streamed(chunk("a"), chunk("b", "stop"), code=0, text="a\nb\n")


def test_a_stream_that_breaks_off_exits_with_code_3_after_what_came() -> None:
    streamed(chunk("a"), code=3, text="a\n", words="ended before it was complete")


def test_a_disconnect_inside_a_chunked_body_exits_with_code_3() -> None:
    head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
    part = chunk("a")
    with scripted(head + f"{len(part):x}\r\n".encode() + part + b"\r\n5\r\nda") as server:
        result = create(*ASK, "--base-url", server.url, "--stream", "--format", "jsonl")
    assert result.exit_code == 3
    assert len(result.stdout.splitlines()) == 1
    assert "was lost before the response was complete" in result.stderr


@pytest.mark.parametrize(("kind", "code"), [("server_error", 5), ("invalid_request_error", 4)])
@pytest.mark.parametrize("before", [b"", b"event: error\n"])
def test_an_error_event_ends_the_stream(kind: str, code: int, before: bytes) -> None:
    failure = event({"error": {"message": "The engine crashed.", "type": kind, "param": None, "code": None}})
    streamed(chunk("a"), before + failure, code=code, text="a\n", words="The engine crashed.")


def test_an_event_that_is_not_json_is_a_server_error() -> None:
    streamed(chunk("a"), b"data: {oops\n\n", code=5, text="a\n", words="did not return a JSON object")


def test_a_server_that_does_not_stream_is_understood() -> None:
    with scripted(answer(200, completion("whole"), content_type="application/json")) as server:
        result = create(*ASK, "--base-url", server.url, "--stream", "--format", "jsonl")
    assert json.loads(result.stdout) == completion("whole")


def test_a_null_error_in_a_chunk_is_ignored() -> None:
    value = {**completion("a"), "error": None}
    streamed(event(value), DONE, code=0, text="a\n")


def test_stats_ask_a_server_for_the_usage_of_a_stream() -> None:
    usage = {"prompt_tokens": 1, "completion_tokens": 2, "total_tokens": 3}
    last = event({**completion("", finish_reason="stop"), "choices": [], "usage": usage})
    with scripted(STREAM_HEAD + chunk("a", "stop") + last + DONE) as server:
        result = create(*ASK, "--base-url", server.url, "--stream", "--stats", "--format", "text")
        create(*ASK, "--base-url", server.url, "--stream", "--stats", "--stream-options", "{include_usage: false}")
    assert result.stdout == "a\n"
    assert result.stderr.startswith("prompt 1 token · completion 2 tokens")
    assert [each.fields["stream_options"] for each in server.requests] == [
        {"include_usage": True}, {"include_usage": False},
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("failure", "code", "said"),
    [
        (MemoryError(), 1, "onward: There is not enough memory. Close other programs"),
        (RuntimeError("index out of bounds"), 5, "the engine crashed: index out of bounds"),
    ],
)
def test_an_engine_of_this_process_that_fails_says_why(
    monkeypatch: pytest.MonkeyPatch, failure: Exception, code: int, said: str
) -> None:
    def failing(model: ToyModel, *arguments: object) -> None:
        raise failure

    monkeypatch.setattr(ToyModel, "evaluate", failing)
    result = create("--model", "toy", "Once")
    assert result.exit_code == code and said in result.stderr, result.stderr


@pytest.mark.parametrize(
    ("problem", "lacks"),
    [
        (MemoryError(), True),
        (RuntimeError("can't start new thread"), True),
        (OSError(errno.ENOMEM, "x"), True),
        (ImportError("libx.so: failed to map segment from shared object"), True),
        (SystemError("<function _find_and_load at 0x1> returned NULL without setting an exception"), True),
        (SystemError("error return without exception set"), True),
        (SystemError("bad argument to internal function"), False),
        (OSError(errno.ENOSPC, "No space left on device"), False),
    ],
    ids=repr,
)
def test_pythons_errors_for_a_lack_of_memory_are_recognised(problem: Exception, lacks: bool) -> None:
    """The last message is CPython's when there is no memory for the exception itself."""
    assert lacks_memory(problem) is lacks
    outer = ValueError("x")
    outer.__cause__ = problem
    assert lacks_memory(outer) is lacks
