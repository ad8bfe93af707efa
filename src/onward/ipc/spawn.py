"""Starts a process with a connection of its own, and says how one ended."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Sequence as ReadOnly
from dataclasses import dataclass
from typing import Protocol

from onward.ipc.worker_end import server_signals_blocked

_HINTS = {
    "SIGKILL": "memory runs out",
    "SIGBUS": "a mapped file was cut short or its disk failed: check the model's files",
}
"""When the system sends a signal, and why."""
SECRET_VARIABLES = ("ONWARD_API_KEY", "ONWARD_UPSTREAM_KEY", "ONWARD_DATABASE", "OPENAI_API_KEY")
"""Variables that no process of Onward inherits."""
_DEFAULT_VARIABLES = {"OPENBLAS_NUM_THREADS": "1"}
"""Variables that every process of Onward has, unless they are set: numpy's library would start a thread per core, of
which nothing makes use, and which count for a limit of memory."""


class Process(Protocol):
    """A running process and its connection. `down` and `up` are file descriptors, maybe the same one."""

    popen: subprocess.Popen[bytes]

    @property
    def down(self) -> int: ...

    @property
    def up(self) -> int: ...

    def close(self) -> None: ...


def spawn(command: ReadOnly[str]) -> Process:
    """Start a process with a connection: its standard input is a socket for both directions, on Windows standard input
    and output are pipes. `worker_end.take_connection` is the other end. Raises OSError."""
    inherited = {name: value for name, value in os.environ.items() if name not in SECRET_VARIABLES}
    environment = _DEFAULT_VARIABLES | inherited
    if sys.platform == "win32":
        pipe = subprocess.PIPE
        return _PipeProcess(subprocess.Popen(command, stdin=pipe, stdout=pipe, bufsize=0, env=environment))
    return _spawn_on_socket(command, environment)


def how_it_ended(status: int) -> str:
    """Return how a process ended, for the log. `status` is as Popen's `returncode`."""
    if status >= 0:
        return f"its process ended with exit code {status}"
    try:
        name = signal.Signals(-status).name
    except ValueError:
        name = f"signal {-status}"
    hint = _HINTS.get(name)
    return f"its process was ended by {name}" + (f"; the system does this when {hint}" if hint else "")


@dataclass(slots=True)
class _SocketProcess:
    """A process whose standard input is a socket for both directions."""

    popen: subprocess.Popen[bytes]
    connection: socket.socket

    @property
    def down(self) -> int:
        return self.connection.fileno()

    up = down

    def close(self) -> None:
        self.connection.close()


@dataclass(slots=True)
class _PipeProcess:
    """A process whose standard input and output are pipes: Windows has no Unix sockets."""

    popen: subprocess.Popen[bytes]

    @property
    def down(self) -> int:
        assert self.popen.stdin is not None
        return self.popen.stdin.fileno()

    @property
    def up(self) -> int:
        assert self.popen.stdout is not None
        return self.popen.stdout.fileno()

    def close(self) -> None:
        for pipe in (self.popen.stdin, self.popen.stdout):
            if pipe is not None:
                pipe.close()


def _spawn_on_socket(command: ReadOnly[str], environment: dict[str, str]) -> Process:
    ours, theirs = socket.socketpair()
    try:
        with theirs, server_signals_blocked():
            # A session of its own, so that Ctrl-C in a terminal reaches the server only.
            popen = subprocess.Popen(
                command, stdin=theirs.fileno(), stdout=_stderr(), env=environment, start_new_session=True
            )
    except BaseException:
        ours.close()
        raise
    return _SocketProcess(popen, ours)


def _stderr() -> int:
    """Return a descriptor for what libraries print in the process."""
    try:
        os.fstat(2)
    except OSError:
        return subprocess.DEVNULL
    return 2
