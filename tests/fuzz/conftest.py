"""A server to attack, and the check after every test that it works and holds nothing."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from tests.parity.servers import Server
from tests.waiting import PATIENCE_SECONDS


@pytest.fixture(scope="session")
def abused() -> Iterator[Server]:
    server = Server("--max-body", "1MB", "--max-parallel", "64")
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
