"""Real servers for the tests of this folder."""

from __future__ import annotations

import os
import re
import ssl
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from unittest.mock import patch

import httpcore2
import pytest

ROOT = Path(__file__).parents[2]


class Process:
    """A server process that is ready. `port` is the free port that it bound."""

    def __init__(self, *flags: str, port: int = 0, terminal: str = "") -> None:
        self.popen = start_process(str(port), *flags, terminal=terminal)
        assert self.popen.stdout is not None
        self.ready_line = self.popen.stdout.readline()
        found = re.search(r":(\d+)/v1", self.ready_line)
        assert found, self.popen.communicate()[1]
        self.port = int(found[1])

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def end(self) -> str:
        """Kill the process if it is running; return what it wrote to stderr."""
        if self.popen.poll() is None:
            self.popen.kill()
        return self.popen.communicate()[1]


def start_process(*arguments: str, terminal: str = "") -> subprocess.Popen[str]:
    """Start a server with this controlling terminal, or with none."""
    return subprocess.Popen(
        [sys.executable, "-m", "tests.server.served", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        env={**os.environ, "SERVED_TERMINAL": terminal},
        start_new_session=True,
    )


@pytest.fixture(scope="package", autouse=True)
def unencrypted() -> Iterator[None]:
    """Clients know no certificates: to read those of all authorities takes longer than most of these tests."""
    with patch.object(httpcore2, "default_ssl_context", lambda **_: ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)):
        yield


@pytest.fixture(scope="session")
def server() -> Iterator[Process]:
    """One server for all tests that do not stop it. It sends keep-alive comments every 50 ms."""
    process = Process("keep_alive=0.05", "max_body=10000")
    yield process
    process.end()


@pytest.fixture
def start() -> Iterator[Callable[..., Process]]:
    """A function that starts servers, which stop after the test."""
    with ExitStack() as stack:

        def begin(*flags: str, port: int = 0, terminal: str = "") -> Process:
            process = Process(*flags, port=port, terminal=terminal)
            stack.callback(process.end)
            return process

        yield begin
