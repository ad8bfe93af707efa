"""A server to attack, and the check after every test that it works and holds nothing."""

from __future__ import annotations

import io
import logging
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import httpx2
import pytest

from tests.listening import served_here
from tests.parity.servers import Server
from tests.waiting import PATIENCE_SECONDS


class ServerHere(Server):
    """The same server on a thread of this process, without the second that a process takes to start."""

    def __init__(self, *flags: str) -> None:
        self._running, self._log = ExitStack(), io.StringIO()
        handler = logging.StreamHandler(self._log)
        logging.getLogger().addHandler(handler)
        self._running.callback(logging.getLogger().removeHandler, handler)
        self.url = self._running.enter_context(served_here(*flags))
        self.port, self.data_dir, self._key = int(self.url.rpartition(":")[2]), Path(), {}
        self.http = httpx2.Client(base_url=self.url, timeout=self.answer_seconds)

    def close(self) -> str:
        """Stop the server and return what was logged meanwhile."""
        self.http.close()
        self._running.close()
        return self._log.getvalue()


@pytest.fixture(
    scope="module", params=[ServerHere, pytest.param(Server, marks=pytest.mark.slow)], ids=["here", "process"]
)
def abused(request: pytest.FixtureRequest) -> Iterator[Server]:
    server: Server = request.param("--max-body", "1MB", "--max-parallel", "64")
    yield server
    log = server.close()
    assert "Traceback" not in log, log


@pytest.fixture
def server(abused: Server) -> Iterator[Server]:
    """Check that the next request succeeds, that no response was a 5xx, and that no KV block is held."""
    yield abused
    assert abused.ask(max_tokens=2).status == 200
    wait_until_idle(abused)
    metrics = abused.send("GET", "/metrics").raw.decode()
    ours = [line for line in metrics.splitlines() if line.startswith("onward_requests_total") and 'status="5' in line]
    assert not ours, ours


def wait_until_idle(server: Server) -> None:
    """Wait until no sequence runs or waits and no KV block is held, with a time limit."""
    names = ("onward_kv_blocks_used", "onward_engine_running", "onward_engine_waiting")
    end = time.monotonic() + PATIENCE_SECONDS
    while held := {name: value for name in names if (value := server.metric(name))}:
        assert time.monotonic() < end, held
        time.sleep(0.01)
