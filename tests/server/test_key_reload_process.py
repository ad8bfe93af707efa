"""A server process reads its key file again when it changes, and on SIGHUP where it has no terminal."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from onward.server.keys import reload_on_hangup
from tests.server.conftest import ROOT, Process
from tests.server.fakes import settings, wait_for

if sys.platform == "win32":
    pytest.skip("needs POSIX signals", allow_module_level=True)


def status(server: Process, key: str) -> int:
    return httpx.get(f"{server.url}/v1/models", headers={"authorization": f"Bearer {key}"}).status_code


def has_terminal() -> bool:
    try:
        os.close(os.open("/dev/tty", os.O_RDONLY | os.O_NOCTTY))
    except OSError:
        return False
    return True


@pytest.mark.slow
@pytest.mark.skipif(signal.getsignal(signal.SIGHUP) is signal.SIG_IGN, reason="nohup: the signal is ignored")
@pytest.mark.skipif(has_terminal(), reason="with a terminal the signal ends the server")
def test_new_keys_are_accepted_and_old_ones_are_not(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    path.write_text("alice = sk-first")
    path.chmod(0o600)
    server = Process(f"api_key_file={path}")
    try:
        assert (status(server, "sk-first"), status(server, "sk-second")) == (200, 401)
        path.write_text("bob = sk-second")
        server.popen.send_signal(signal.SIGHUP)
        wait_for(lambda: status(server, "sk-second") == 200)
        assert status(server, "sk-first") == 401
        path.write_text("a broken line")
        server.popen.send_signal(signal.SIGHUP)
        assert status(server, "sk-second") == 200
        server.popen.send_signal(signal.SIGTERM)
        assert server.popen.wait(10) == 0
    finally:
        said = server.end()
    assert "the keys were read again: 1 accepted" in said
    assert "key=bob" in said
    assert "sk-" not in said


def test_hangup_means_reload_only_with_a_key_file_and_without_a_terminal() -> None:
    assert not reload_on_hangup(settings())
    code = (
        "import os, pty, sys\n"
        "from pathlib import Path\n"
        "from onward.server.keys import reload_on_hangup\n"
        "from onward.settings import Settings\n"
        "given = Settings(api_key_file=Path('/keys'))\n"
        "os.setsid()\n"
        "print(reload_on_hangup(given))\n"
        "leader, follower = pty.openpty()\n"
        "terminal = os.open(os.ttyname(follower), os.O_RDWR)\n"  # a session leader's first terminal controls it
        "print(reload_on_hangup(given))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert done.stdout.split() == ["True", "False"]
