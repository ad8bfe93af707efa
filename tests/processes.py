"""Starts a real `onward serve` on a free port, and stops it."""

from __future__ import annotations

import os
import random
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, NamedTuple

from tests.waiting import PATIENCE_SECONDS, wait_for

ROOT = Path(__file__).parent.parent


class ServerProcess(NamedTuple):
    """A server that is ready. `output` collects the lines that it prints."""

    url: str
    popen: subprocess.Popen[str]
    output: list[str]

    def engines(self) -> list[int]:
        """The processes of its engines. Linux only."""
        return sorted(pid for pid in children_of(self.popen.pid) if not _computes_grammars(pid))

    def engine(self, other_than: int = 0) -> int:
        """Wait until there is one process of an engine, `other_than` one that is lost, and return it. Linux only."""
        found = set[int]()

        def is_one() -> bool:
            found.clear()
            found.update(self.engines())
            found.discard(other_than)
            return len(found) == 1

        wait_for(is_one, "the process of an engine")
        return found.pop()

    def grammar_processes(self) -> list[int]:
        """Its disposable processes. Linux only."""
        return sorted(pid for pid in children_of(self.popen.pid) if _computes_grammars(pid))


def free_port() -> int:
    """A port of 127.0.0.1 on which nobody listens. It is below those that systems choose for clients and for port 0, so
    that nobody takes it before a test's program does, or between two of them."""
    while True:
        port = random.SystemRandom().randrange(20_000, 32_000)
        try:
            socket.create_server(("127.0.0.1", port)).close()
        except OSError:
            continue
        return port


def children_of(pid: int) -> list[int]:
    """Return the processes that a process has started, in whichever of its threads. Linux only."""
    found: list[int] = []
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        with suppress(FileNotFoundError, ProcessLookupError):  # the thread has ended meanwhile
            found += map(int, task.read_text(encoding="utf-8").split())
    return found


def is_running(pid: int) -> bool:
    """Whether a process exists and is not a zombie, whose parent may never reap it. Linux only."""
    try:
        return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def kill(*pids: int) -> None:
    """Kill processes, of which some may have ended meanwhile."""
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def _computes_grammars(pid: int) -> bool:
    try:
        return b"onward.constraints.process.worker" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False


@contextmanager
def served(*flags: str, model: str | None = "toy", module: str = "onward") -> Iterator[str]:
    """The base URL (`http://127.0.0.1:PORT`) of a server that is ready. Ended by SIGTERM.

    `model` None: the flags say which. `module` is a program that takes the arguments of `onward`.
    """
    with server_process(*flags, model=model, module=module) as server:
        yield server.url


@contextmanager
def server_process(*flags: str, model: str | None = "toy", module: str = "onward") -> Iterator[ServerProcess]:
    """As `served`, with the process. It has no controlling terminal, whether or not the tests have one."""
    models = [] if model is None else ["--model", model]  # before those of the flags: the first one is the default
    command = [sys.executable, "-m", module, "serve", "--port", "0", *models, "--drain", "2", *flags]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}  # for modules of the tests
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment, start_new_session=True
    )
    assert process.stdout is not None
    said: list[str] = []
    try:
        for line in process.stdout:
            said.append(line)
            if line.startswith("Onward is ready at "):
                threading.Thread(target=_collect, args=(process.stdout, said), daemon=True).start()
                yield ServerProcess(line.split()[4].removesuffix("/v1"), process, said)
                break
        else:
            raise AssertionError("the server did not start:\n" + "".join(said))
    finally:
        process.terminate()
        process.wait(PATIENCE_SECONDS)


def _collect(lines: IO[str], found: list[str]) -> None:
    with lines:
        for line in lines:
            found.append(line)
