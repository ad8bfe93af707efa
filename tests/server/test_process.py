"""The process: garbage collection between requests, and messages to the service manager."""

from __future__ import annotations

import asyncio
import gc
import logging
import signal
import socket
import subprocess
import sys
import weakref
from collections.abc import Iterator
from pathlib import Path

import pytest

from onward.server import process
from onward.server.process import (
    MAX_YOUNG_COLLECTIONS,
    MIN_YOUNG_COLLECTIONS,
    NEW_OBJECTS,
    READY,
    STOPPING,
    collect_when_idle,
    notify,
)
from tests.toy_backend import complete, make_backend


@pytest.fixture(autouse=True)
def thresholds() -> Iterator[None]:
    before = gc.get_threshold()
    yield
    gc.set_threshold(*before)


class Cycle:
    """Garbage that only a collection frees."""

    def __init__(self) -> None:
        self.itself = self


def test_garbage_is_freed_after_so_many_new_objects_and_full_collections_are_delayed() -> None:
    process.delay_collections()
    if sys.version_info < (3, 14):  # which ignores it
        assert gc.get_threshold()[2] == MAX_YOUNG_COLLECTIONS
    garbage = weakref.ref(Cycle())
    kept: list[list[int]] = []
    while garbage() is not None and len(kept) < 2 * NEW_OBJECTS:
        kept.append([])
    assert garbage() is None and len(kept) <= NEW_OBJECTS + 1


@pytest.mark.parametrize(
    ("num_running", "num_young", "expected"),
    [(0, MIN_YOUNG_COLLECTIONS, 1), (1, MIN_YOUNG_COLLECTIONS, 0), (0, MIN_YOUNG_COLLECTIONS - 1, 0)],
)
def test_it_collects_when_that_is_due_and_no_request_runs(
    num_running: int, num_young: int, expected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    collected: list[int] = []
    polls = 0

    async def sleep(seconds: float) -> None:
        nonlocal polls
        polls += 1
        if polls == 2:
            raise asyncio.CancelledError

    monkeypatch.setattr("asyncio.sleep", sleep)
    monkeypatch.setattr("gc.get_count", lambda: (0, 0, num_young))
    monkeypatch.setattr("gc.collect", lambda: collected.append(1))
    with pytest.raises(asyncio.CancelledError):
        asyncio.run(collect_when_idle(lambda: num_running))
    assert sum(collected) == expected


def test_a_completion_leaves_no_cycles() -> None:
    """Otherwise they would pile up on a server that is never idle."""

    async def run() -> int:
        backend = make_backend()
        for fields in ({}, {"n": 2, "logprobs": 3}, {"stop": ["q"], "best_of": 2}):
            await complete(backend, max_tokens=5, **fields)
        gc.collect()
        gc.disable()
        try:
            for _ in range(20):
                for fields in ({}, {"n": 2, "logprobs": 3}, {"stop": ["q"], "best_of": 2}):
                    await complete(backend, max_tokens=5, **fields)
            return gc.collect()
        finally:
            gc.enable()
            await backend.aclose()

    assert asyncio.run(run()) < 60, "fewer than one object per completion"


NEEDS_UNIX_SOCKETS = pytest.mark.skipif(not hasattr(socket, "AF_UNIX"), reason="needs Unix sockets")


def manager(address: str) -> socket.socket:
    """A socket that listens where `address` says."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    listener.bind(address)
    listener.settimeout(30)
    return listener


@NEEDS_UNIX_SOCKETS
def test_a_state_is_one_datagram(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with manager(str(tmp_path / "notify")) as listener:
        monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
        notify(READY)
        assert listener.recv(100) == b"READY=1"


@pytest.mark.skipif(sys.platform != "linux", reason="abstract sockets are Linux's")
@NEEDS_UNIX_SOCKETS
def test_an_address_may_be_an_abstract_socket(monkeypatch: pytest.MonkeyPatch) -> None:
    with manager("\0onward-test-notify") as listener:
        monkeypatch.setenv("NOTIFY_SOCKET", "@onward-test-notify")
        notify(STOPPING)
        assert listener.recv(100) == b"STOPPING=1"


@pytest.mark.parametrize("address", [None, "", "vsock:2:1234"])
@NEEDS_UNIX_SOCKETS
def test_nothing_is_sent_where_no_manager_listens(
    address: str | None, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.delenv("NOTIFY_SOCKET", raising=False)
    if address is not None:
        monkeypatch.setenv("NOTIFY_SOCKET", address)
    notify(READY)
    assert not caplog.records


@NEEDS_UNIX_SOCKETS
def test_a_manager_that_is_gone_is_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "gone"))
    with caplog.at_level(logging.WARNING):
        notify(READY)
    assert "could not be notified of READY=1: No such file or directory" in caplog.text


@pytest.mark.slow
@NEEDS_UNIX_SOCKETS
def test_a_server_reports_ready_and_stopping(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
    command = [sys.executable, "-m", "onward", "serve", "--port", "0", "--model", "toy"]
    with manager(str(tmp_path / "notify")) as listener:
        with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as server:
            assert listener.recv(100) == b"READY=1"
            server.send_signal(signal.SIGTERM)
            assert server.wait(60) == 0
        listener.setblocking(False)
        assert listener.recv(100) == b"STOPPING=1"
        with pytest.raises(BlockingIOError):
            listener.recv(100)
