"""Servers that answer the command line with something other than completions: one sentence, never a traceback."""

from __future__ import annotations

import socket
from typing import Any

import pytest

from onward.cli.source import http, stream
from onward.cli.source.stream import resume_window
from onward.cli.source.transport import next_delay

from ..conftest import create, onward
from ..scripted import DONE, STREAM_HEAD, Scripted, answer, completion, scripted

OTHER = "sent something that is not part of the Completions API"
NO_OBJECT = "did not return a JSON object; is it a Completions API?"
HOSTILE = {
    b"null": NO_OBJECT,
    b"[]": NO_OBJECT,
    b"{": NO_OBJECT,
    b'{"a":' + b"[" * 50_000: NO_OBJECT,
    b'{"choices":5}': OTHER,
    b'{"choices":[5]}': OTHER,
    b'{"choices":[{"text":5}]}': OTHER,
    b'{"choices":[{"finish_reason":5}]}': OTHER,
    b'{"choices":[{"text":"a","index":[]}]}': OTHER,
    b'{"choices":[{"text":"a","index":"0"}]}': OTHER,
    b'{"choices":[{"text":"a","index":true}]}': OTHER,
    b'{"choices":[],"usage":5}': OTHER,
    b'{"choices":[],"usage":{"completion_tokens":"5"}}': OTHER,
    b'{"id":{},"choices":[]}': OTHER,
}
BATCH = {
    "id": "b", "status": "failed", "request_counts": {"total": 1, "completed": 0, "failed": 0},
    "errors": {"data": [{"line": 1, "message": "\x1b]0;x\x07"}]},
}  # fmt: skip


@pytest.mark.parametrize("body", HOSTILE)
@pytest.mark.parametrize("streamed", [False, True])
def test_other_objects_are_reported_as_not_a_completion(body: bytes, streamed: bool) -> None:
    reply = STREAM_HEAD + b"data: " + body + b"\n\n" + DONE if streamed else answer(200, body)
    with scripted(reply) as server:
        result = create("-m", "x", "Once", "--base-url", server.url, *(["--stream"] if streamed else []))
    assert result.exit_code == 5 and HOSTILE[body] in result.stderr and "Traceback" not in result.stderr


@pytest.mark.parametrize(
    ("command", "body"),
    [
        (("models", "list"), {"data": 5}),
        (("models", "list"), {"data": [5]}),
        (("models", "list"), {}),
        (("models", "show", "m"), {"id": 5}),
        (("tokenize", "a", "-m", "m"), {"tokens": [1.5], "count": 1}),
        (("tokenize", "a", "-m", "m"), {"tokens": "12345", "count": 5}),
        (("tokenize", "a", "-m", "m"), {"count": 5}),
        (("batch", "status"), {"data": [{"id": "b", "status": "failed", "request_counts": {"total": 1}}]}),
        (("batch", "status", "b"), BATCH | {"errors": {"data": [5]}}),
        (("batch", "download", "b", "-o", "out"), BATCH | {"output_file_id": 5}),
    ],
)
def test_answers_of_other_commands_are_checked_too(command: tuple[str, ...], body: dict[str, Any]) -> None:
    with scripted(answer(200, body)) as server:
        result = onward(*command, "--base-url", server.url)
    assert result.exit_code == 5 and OTHER in result.stderr


@pytest.mark.parametrize(
    ("command", "reply"),
    [
        (("models", "show", "m", "--format", "text"), answer(200, {"id": "m", "owned_by": "\x1b]0;x\x07"})),
        (("batch", "status", "b", "--format", "text"), answer(200, BATCH)),
        (
            ("completions", "create", "-m", "m", "a", "--stats"),
            answer(200, completion("", finish_reason="\x1b]0;x\x07")),
        ),
        (("completions", "create", "-m", "m", "a", "--debug"), answer(200, completion(""), x_name="\x9b31m")),
    ],
    ids=["model", "faults", "finish reason", "headers"],
)
def test_what_a_server_says_does_not_control_the_terminal(command: tuple[str, ...], reply: bytes) -> None:
    with scripted(reply) as server:
        result = onward(*command, "--base-url", server.url)
    shown = result.stdout + result.stderr
    assert "\x1b" not in shown and "\x9b" not in shown and ("\\x1b]0;x\\x07" in shown or "\\x9b31m" in shown)


def endlessly(head: bytes, content: bytes) -> Any:
    def reply(server: Scripted, connection: socket.socket) -> None:
        connection.sendall(head)
        try:
            while True:
                connection.sendall(content)
        except OSError:
            server.departed.set()

    return reply


HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n\r\n"


@pytest.mark.parametrize(
    ("head", "content", "flags"),
    [
        (HEAD, b" " * 65_536, ()),
        (STREAM_HEAD, b"x" * 65_536, ("--stream",)),
        (STREAM_HEAD, b"data: " + b"x" * 1000 + b"\n", ("--stream",)),
    ],
    ids=["a body", "a line", "an event"],
)
def test_an_answer_without_an_end_is_given_up(
    head: bytes, content: bytes, flags: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http, "MAX_ANSWER_BYTES", 1 << 20)
    monkeypatch.setattr(stream, "MAX_ANSWER_BYTES", 1 << 20)
    with scripted(endlessly(head, content)) as server:
        result = create("-m", "x", "Once", "--base-url", server.url, *flags)
        assert server.departed.wait(30)
    assert result.exit_code == 5 and "sent more than a completion takes" in result.stderr


def test_an_error_without_an_end_is_not_read() -> None:
    head = b"HTTP/1.1 400 Bad\r\ncontent-type: text/plain\r\n\r\n"
    with scripted(endlessly(head, b"no " * 9_000)) as server:
        result = create("-m", "x", "Once", "--base-url", server.url)
        assert server.departed.wait(30)
    assert result.exit_code == 4 and "no no no" in result.stderr and len(result.stderr) < 2_000


@pytest.mark.parametrize(
    ("value", "delay"), [("nan", None), ("inf", "never"), ("-5", 0.0), ("2", 2.0), ("1e9", "never")]
)
@pytest.mark.parametrize("name", ["retry-after", "retry-after-ms"])
def test_a_delay_is_a_number(name: str, value: str, delay: float | str | None) -> None:
    found = next_delay(0, 503, {name: value})
    if delay is None:  # as if it were not there
        assert found is not None and 0.3 < found <= 0.5
    elif delay == "never":
        assert found is None
    else:
        assert found == (delay / 1000 if name.endswith("ms") else delay)  # type: ignore[operator]


@pytest.mark.parametrize("window", ["nan", "inf", "-inf"])
def test_a_window_is_a_number(window: str) -> None:
    assert resume_window({"preference-applied": f"resumable; window={window}"}) is None
