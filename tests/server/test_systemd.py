"""The service manager is notified when the server is ready, and when it begins to stop."""

from __future__ import annotations

import logging
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from onward.server.process import READY, STOPPING, notify

pytestmark = pytest.mark.skipif(not hasattr(socket, "AF_UNIX"), reason="needs Unix sockets")


def manager(address: str) -> socket.socket:
    """A socket that listens where `address` says."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    listener.bind(address)
    listener.settimeout(30)
    return listener


def test_a_state_is_one_datagram(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with manager(str(tmp_path / "notify")) as listener:
        monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
        notify(READY)
        assert listener.recv(100) == b"READY=1"


@pytest.mark.skipif(sys.platform != "linux", reason="abstract sockets are Linux's")
def test_an_address_may_be_an_abstract_socket(monkeypatch: pytest.MonkeyPatch) -> None:
    with manager("\0onward-test-notify") as listener:
        monkeypatch.setenv("NOTIFY_SOCKET", "@onward-test-notify")
        notify(STOPPING)
        assert listener.recv(100) == b"STOPPING=1"


@pytest.mark.parametrize("address", [None, "", "vsock:2:1234"])
def test_nothing_is_sent_where_no_manager_listens(
    address: str | None, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.delenv("NOTIFY_SOCKET", raising=False)
    if address is not None:
        monkeypatch.setenv("NOTIFY_SOCKET", address)
    notify(READY)
    assert not caplog.records


def test_a_manager_that_is_gone_is_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "gone"))
    with caplog.at_level(logging.WARNING):
        notify(READY)
    assert "could not be notified of READY=1: No such file or directory" in caplog.text


@pytest.mark.slow
def test_a_server_reports_ready_and_stopping(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
    command = [sys.executable, "-m", "onward", "serve", "--port", "0", "--model", "toy"]
    with manager(str(tmp_path / "notify")) as listener:
        with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as server:
            assert listener.recv(100) == b"READY=1"
            server.send_signal(signal.SIGTERM)
            assert server.wait(30) == 0
        listener.setblocking(False)
        assert listener.recv(100) == b"STOPPING=1"
        with pytest.raises(BlockingIOError):
            listener.recv(100)
