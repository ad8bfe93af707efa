"""The log: never blocks, never loses its order, in text or JSON; what clients send cannot forge a line."""

from __future__ import annotations

import fcntl
import json
import logging
import os
import select
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator

import pytest

from onward.server import logs
from onward.server.logs import FIELDS, JsonFormatter, LogWriter, TextFormatter, one_line


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


def test_flushing_ends_also_if_nobody_reads(pipe: tuple[int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "FLUSH_SECONDS", 0.01)
    handler = LogWriter(pipe[1])
    handler.handle(record("x" * 1_000_000))
    handler.flush()
    assert os.read(pipe[0], 10) == b"x" * 10


def test_a_descriptor_that_cannot_be_written_is_no_error(pipe: tuple[int, int]) -> None:
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
def test_a_server_whose_log_nobody_reads_goes_on() -> None:
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
            with urllib.request.urlopen(request, timeout=30) as answer:
                assert answer.status == 200
        server.terminate()
        deadline = time.monotonic() + 30
        while server.poll() is None:
            assert time.monotonic() < deadline, "the server does not end"
            time.sleep(0.01)
        assert server.returncode == 0
        lines = server.stderr.read().splitlines()
        accessed = [json.loads(line) for line in lines[:-1]]
        (request,) = [each for each in accessed if each["logger"] == "onward.access" and each.get("status") == 200][:1]
        assert request["message"] == "request" and request["method"] == "POST"
    finally:
        server.kill()
        server.wait()
        server.stdout.close()
        server.stderr.close()
