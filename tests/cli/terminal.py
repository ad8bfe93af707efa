"""Runs `onward` on a pseudo-terminal and returns what is on its screen."""

from __future__ import annotations

import os
import re
import select
import struct
import subprocess
import sys
import time
from types import TracebackType
from typing import Self

import pytest

from tests.waiting import PATIENCE_SECONDS

if sys.platform == "win32":
    pytest.skip("needs a POSIX terminal", allow_module_level=True)

import fcntl
import pty
import termios

COMMAND = (sys.executable, "-m", "onward")
_CONTROLLED = """
import fcntl, runpy, termios
fcntl.ioctl(1, termios.TIOCSCTTY, 0)
runpy.run_module("onward", run_name="__main__", alter_sys=True)
"""
"""`python -m onward` as the leader of a session that its terminal controls. (A preexec_fn would run in a copy of this
process, in which locks that its other threads held stay locked.)"""
_TAGS = {"0": "}", "1": "{bold:", "2": "{dim:", "31": "{red:", "32": "{green:", "33": "{yellow:"}


class Terminal:
    """One run: its terminal, 100 columns wide, is standard input, output and error, and sends it signals."""

    def __init__(self, *arguments: str, piped: bytes | None = None, **environment: str) -> None:
        self._master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 100, 0, 0))
        stdin = slave if piped is None else subprocess.PIPE
        self.process = subprocess.Popen(
            [sys.executable, "-c", _CONTROLLED, *arguments], stdin=stdin, stdout=slave, stderr=slave,
            env={**os.environ, **environment}, start_new_session=True,
        )  # fmt: skip
        os.close(slave)
        if piped is not None and self.process.stdin is not None:
            self.process.stdin.write(piped)
            self.process.stdin.close()
        self.raw = b""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        os.close(self._master)

    def wait_for(self, text: str, seconds: float = PATIENCE_SECONDS) -> None:
        """Read until the text was written."""
        until = time.monotonic() + seconds
        while text.encode() not in self.raw:
            assert time.monotonic() < until, f"{text!r} never came; there is {self.raw!r}"
            if not self._read(0.1) and self.process.poll() is not None:
                raise AssertionError(f"ended without {text!r}: {self.raw!r}")

    def press(self, keys: bytes) -> None:
        os.write(self._master, keys)

    def read_for(self, seconds: float) -> None:
        """Read for so long, or until the command has ended."""
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0 and self.process.poll() is None:
            self._read(left)

    def end(self, seconds: float = PATIENCE_SECONDS) -> int:
        """Read to the end; return the exit code."""
        until = time.monotonic() + seconds
        while self._read(0.1) or self.process.poll() is None:
            assert time.monotonic() < until, f"does not end; there is {self.raw!r}"
        return self.process.wait()

    def _read(self, seconds: float) -> bool:
        if not select.select([self._master], [], [], seconds)[0]:
            return False
        try:
            data = os.read(self._master, 65536)
        except OSError:  # the other side is closed
            return False
        self.raw += data
        return bool(data)

    @property
    def screen(self) -> str:
        """The text on the screen, with styles as tags: `{dim:Once}`."""
        return screen(self.raw.decode())


def screen(raw: str) -> str:
    text = raw.replace("\r\n", "\n")
    lines = [line.rpartition("\r\x1b[K")[2] for line in text.split("\n")]
    return re.sub(r"\x1b\[([\d;]+)m", lambda found: _TAGS.get(found[1], "{" + found[1] + ":"), "\n".join(lines))
