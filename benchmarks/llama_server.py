"""llama-server as a process of its own, with the settings that serve a number of clients fastest."""

from __future__ import annotations

import os
import socket
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from benchmarks.peer_build import PeerError
from benchmarks.server_process import Server, stop

START_SECONDS = 120


@dataclass(frozen=True, slots=True)
class Slots:
    """Room for `clients` requests at once of `tokens` tokens each, prompt and output together.

    `unified`: one cache that all requests share, instead of a part for each. `threads` compute.
    """

    clients: int
    tokens: int
    threads: int
    unified: bool = False

    def flags(self) -> list[str]:
        """The command line. Its own automatic choices stand where nothing is said (flash attention, batch sizes)."""
        return [
            *("--parallel", str(self.clients)),
            *("--ctx-size", str(self.clients * self.tokens)),
            "--kv-unified" if self.unified else "--no-kv-unified",
            *("--threads", str(self.threads)),
            *("--cache-ram", "0", "--no-cache-prompt"),
            *("--no-webui", "--no-slots", "--offline"),
            *("--log-verbosity", "1"),
        ]

    @property
    def name(self) -> str:
        return f"{self.threads} threads, {'shared' if self.unified else 'separate'} caches"


def candidates(clients: int, tokens: int) -> list[Slots]:
    """Settings of which one may be fastest: a thread a core or half as many, caches separate or shared."""
    cores = os.cpu_count() or 1
    threads = sorted({cores, max(1, cores // 2)}, reverse=True)
    caches = (False, True) if clients > 1 else (False,)
    return [Slots(clients, tokens, count, unified) for count in threads for unified in caches]


@contextmanager
def serve_peer(program: Path, gguf: Path, slots: Slots, extra: Sequence[str] = ()) -> Iterator[Server]:
    """Started when entered, told to end by SIGTERM when left; `extra` flags win. Raises PeerError when it does not
    become ready."""
    port = _free_port()
    where = ("--model", str(gguf), "--host", "127.0.0.1", "--port", str(port))
    command = [str(program), *where, *slots.flags(), *extra]
    with tempfile.TemporaryFile("w+") as log:
        process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, text=True)
        try:
            _wait_ready(process, f"http://127.0.0.1:{port}/health", log)
            yield Server(f"http://127.0.0.1:{port}/v1", process.pid)
        finally:
            stop(process)


def version(program: Path) -> str:
    """What the program says it is, on one line."""
    said = subprocess.run([str(program), "--version"], capture_output=True, text=True)
    lines = [line for line in (said.stdout + said.stderr).splitlines() if line.startswith(("version", "built"))]
    return "; ".join(lines) or "unknown version"


def _free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def _wait_ready(process: subprocess.Popen[str], url: str, log: IO[str]) -> None:
    deadline = time.monotonic() + START_SECONDS
    while process.poll() is None and time.monotonic() < deadline:
        try:
            with urllib.request.urlopen(url, timeout=5) as answer:
                if answer.status == 200:
                    return
        except (urllib.error.URLError, OSError):
            time.sleep(0.1)
    log.seek(0)
    raise PeerError(f"llama-server did not start: {process.args!r}\n{log.read()[-4000:]}")
