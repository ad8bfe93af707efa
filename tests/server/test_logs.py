"""Log lines: a request is one line, nothing that a client sends forges another, and writing never blocks."""

from __future__ import annotations

import asyncio
import fcntl
import json
import logging
import os
import select
import subprocess
import sys
import urllib.request
from collections.abc import Iterator

import pytest

from onward.errors import EngineStopped, InvalidRequest, Overloaded
from onward.server import logs
from onward.server.app import App
from onward.server.logs import FIELDS, JsonFormatter, LogWriter, TextFormatter, one_line
from tests.server.fakes import Call, FakeBackend, completion, delta, in_loop, settings
from tests.waiting import PATIENCE_SECONDS, until


@in_loop
async def test_a_request_is_one_line_of_the_access_log(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "onward.access")
    app = App(FakeBackend(), settings())
    call = await completion(app, user="eve\nstatus=500 " + "x" * 100, stream=True).done()
    await Call(app, "GET", "/health").done()
    (record,) = [record for record in caplog.records if record.name == "onward.access"]
    line = record.getMessage()
    pairs = dict(pair.split("=") for pair in line.split(" "))
    assert pairs["id"] == call.headers["x-request-id"]
    assert pairs["user"] == "eve_status_500_" + "x" * 49 + "…"
    assert {
        "status": "200",
        "prompt": "7",
        "completion": "3",
        "cached": "4",
        "stream": "true",
    }.items() <= pairs.items()
    assert (pairs["client"], pairs["route"], pairs["model"]) == ("192.0.2.7", "/v1/completions", "fake-model:1")
    assert pairs["cancelled"] == "false"
    assert float(pairs["ttft_ms"]) <= float(pairs["ms"])


@in_loop
async def test_the_log_marks_cancelled_and_failed_streams(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "onward.access")
    backend = FakeBackend(asyncio.Event())
    app = App(backend, settings())
    call = completion(app)
    await until(lambda: backend.answers)
    call.leave()
    await call.done()
    await completion(App(FakeBackend(delta("a"), RuntimeError()), settings()), stream=True).done()
    cancelled, failed = [one.getMessage() for one in caplog.records if one.name == "onward.access"]
    assert "status=499" in cancelled and "cancelled=true" in cancelled
    assert "status=200" in failed and "error=server_error" in failed


@in_loop
async def test_the_access_log_can_be_turned_off(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    await completion(App(FakeBackend(), settings(access_log=False))).done()
    assert not [record for record in caplog.records if record.name == "onward.access"]


@pytest.mark.parametrize("value", ["", " ", "\x00\x1b[31m", "a=b", 'a"b', "a\u2028b"])
def test_a_logged_value_is_one_word_of_printable_characters(value: str) -> None:
    cleaned = logs.clean(value)
    assert cleaned and cleaned.isprintable()
    assert not set(cleaned) & set(' ="\n')


@pytest.mark.parametrize(
    ("error", "status"), [(Overloaded(), 503), (EngineStopped(), 503), (InvalidRequest("Too long."), 400)]
)
@in_loop
async def test_a_refused_request_is_logged_with_its_model_and_user(
    error: Exception, status: int, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "onward.access")
    backend = FakeBackend()
    backend.error_to_raise = error
    await completion(App(backend, settings()), model="a model=" + "x" * 99, user="eve").done()
    (record,) = [record for record in caplog.records if record.name == "onward.access"]
    pairs = dict(pair.split("=") for pair in record.getMessage().split(" "))
    assert pairs["model"] == "a_model_" + "x" * 56 + "…"
    assert (pairs["user"], pairs["status"]) == ("eve", str(status))


@in_loop
async def test_a_request_with_an_invalid_parameter_is_logged_with_its_model_and_user(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "onward.access")
    for fields in ({"temperature": 9}, {"user": 5}, {"model": 7}, {"model": ""}):
        await completion(App(FakeBackend(), settings()), **{"model": "one", "user": "eve"} | fields).done()
    lines = [record.getMessage() for record in caplog.records if record.name == "onward.access"]
    logged = [dict(pair.split("=") for pair in line.split(" ")) for line in lines]
    expected = [("one", "eve"), ("one", "-"), ("-", "eve"), ("-", "eve")]
    assert [(pairs["model"], pairs["user"]) for pairs in logged] == expected
    assert {pairs["status"] for pairs in logged} == {"400"}


@in_loop
async def test_a_forwarded_client_address_cannot_forge_a_pair(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "onward.access")
    call = completion(App(FakeBackend(), settings()))
    call.scope["client"] = ("evil status=500\tmodel=x\x85", 0)
    await call.done()
    (line,) = [record.getMessage() for record in caplog.records if record.name == "onward.access"]
    assert " client=evil_status_500_model_x_ " in line


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    reader, writer = os.pipe()
    yield reader, writer
    for fd in (reader, writer):
        try:
            os.close(fd)
        except OSError:
            pass


def record(message: str, **extra: object) -> logging.LogRecord:
    return logging.getLogger("onward.test").makeRecord(
        "onward.test", logging.WARNING, "file", 1, message, (), None, extra=extra
    )


def test_lines_are_written_at_once_where_that_does_not_block(pipe: tuple[int, int]) -> None:
    handler = LogWriter(pipe[1])
    handler.handle(record("héllo"))
    assert os.read(pipe[0], 100) == "héllo\n".encode()
    assert handler._thread is None


def test_a_pipe_that_nobody_reads_blocks_nobody_and_what_is_lost_is_counted(
    pipe: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logs, "MAX_QUEUED_LINES", 50)
    fcntl.fcntl(pipe[1], fcntl.F_SETPIPE_SZ, 4096)
    handler = LogWriter(pipe[1])
    for number in range(200):
        handler.handle(record(f"{number} " + "x" * 500))
    written, dropped = read_until(pipe[0], 200)
    assert written == sorted(written) and written[:50] == list(range(50)), "the order is kept"
    assert dropped > 0 and len(written) + dropped == 200
    handler.flush()
    handler.handle(record("later"))
    assert os.read(pipe[0], 100) == b"later\n"


def read_until(reader: int, count: int) -> tuple[list[int], int]:
    """Read until `count` lines were written or reported as dropped: numbers of the former, how many of the latter."""
    data, dropped = b"", 0
    written: list[int] = []
    while len(written) + dropped < count:
        assert select.select([reader], [], [], 30)[0], "nothing more is written"
        data += os.read(reader, 4096)
        lines = data.decode().split("\n")[:-1]
        reports = [line for line in lines if line.endswith(" log lines were dropped here, because nobody read them")]
        written = [int(line.split()[0]) for line in lines if line not in reports]
        dropped = sum(int(line.split()[0]) for line in reports)
    return written, dropped


def test_flushing_ends_even_if_nobody_reads(pipe: tuple[int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "FLUSH_SECONDS", 0.01)
    handler = LogWriter(pipe[1])
    handler.handle(record("x" * 1_000_000))
    handler.flush()
    assert os.read(pipe[0], 10) == b"x" * 10


def test_a_descriptor_that_cannot_be_written_is_not_an_error(pipe: tuple[int, int]) -> None:
    handler = LogWriter(pipe[1])
    os.close(pipe[0])
    handler.handle(record("lost"))
    handler.handle(record("y" * 10_000))
    handler.flush()


def test_a_message_stays_on_one_line() -> None:
    line = TextFormatter().format(record("a\nINFO forged\x1b[31m\u2028end é"))
    assert line.endswith(r"WARNING onward.test: a\nINFO forged\x1b[31m\u2028end é") and "\n" not in line
    assert one_line("plain é") == "plain é"


def test_json_has_one_object_per_line() -> None:
    entry = record("a\nb", **{FIELDS: {"status": 200, "ttft_ms": None}})
    entry.created, entry.msecs = 0.25, 250
    assert json.loads(JsonFormatter().format(entry)) == {
        "time": "1970-01-01T00:00:00.250Z",
        "level": "warning",
        "logger": "onward.test",
        "message": "a\nb",
        "status": 200,
        "ttft_ms": None,
    }


@pytest.mark.parametrize("formatter", [TextFormatter(), JsonFormatter()])
def test_an_exception_is_logged_with_its_traceback(formatter: logging.Formatter) -> None:
    entry = record("why")
    try:
        raise ValueError("the cause")
    except ValueError:
        entry.exc_info = sys.exc_info()
    line = formatter.format(entry)
    assert "ValueError: the cause" in line and "Traceback" in line
    if isinstance(formatter, JsonFormatter):
        assert "\n" not in line and json.loads(line)["exception"].startswith("Traceback")


@pytest.mark.slow
def test_a_server_whose_log_nobody_reads_continues() -> None:
    """Its pipe is full after a few requests."""
    command = [sys.executable, "-m", "onward", "serve", "--port", "0", "--model", "toy", "--log-format", "json"]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert server.stdout is not None and server.stderr is not None
    try:
        fcntl.fcntl(server.stderr.fileno(), fcntl.F_SETPIPE_SZ, 4096)
        url = server.stdout.readline().split()[4].decode()
        body = json.dumps({"model": "toy", "prompt": "a", "max_tokens": 1}).encode()
        for _ in range(40):
            request = urllib.request.Request(f"{url}/completions", body, {"content-type": "application/json"})
            with urllib.request.urlopen(request, timeout=PATIENCE_SECONDS) as answer:
                assert answer.status == 200
        server.terminate()
        assert server.wait(PATIENCE_SECONDS) == 0
        lines = server.stderr.read().splitlines()
        accessed = [json.loads(line) for line in lines[:-1]]
        (request,) = [each for each in accessed if each["logger"] == "onward.access" and each.get("status") == 200][:1]
        assert request["message"] == "request" and request["method"] == "POST"
    finally:
        server.kill()
        server.wait()
        server.stdout.close()
        server.stderr.close()
