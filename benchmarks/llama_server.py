"""llama-server as a separate process, and the settings to try for a number of clients."""

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
    """Slots for `clients` concurrent requests of `tokens` tokens each, prompt and output together.

    `unified`: one KV cache for all slots instead of one per slot. `threads`: compute threads. `caching`: prompts are
    kept for later ones, as by default.
    """

    clients: int
    tokens: int
    threads: int
    unified: bool = False
    caching: bool = False

    def flags(self) -> list[str]:
        """Return the flags. What they do not set is llama-server's automatic choice (flash attention, batch sizes)."""
        return [
            *("--parallel", str(self.clients)),
            *("--ctx-size", str(self.clients * self.tokens)),
            "--kv-unified" if self.unified else "--no-kv-unified",
            *("--threads", str(self.threads)),
            *(() if self.caching else ("--cache-ram", "0", "--no-cache-prompt")),
            *("--no-webui", "--no-slots", "--offline"),
            *("--log-verbosity", "1"),
        ]

    @property
    def name(self) -> str:
        return f"{self.threads} threads, {'shared' if self.unified else 'separate'} caches"


def candidates(clients: int, tokens: int, *, caching: bool = False) -> list[Slots]:
    """Return the settings to try: one thread per core or half as many, KV caches separate or shared. The first are
    one thread per core and separate caches."""
    cores = os.cpu_count() or 1
    threads = sorted({cores, max(1, cores // 2)}, reverse=True)
    caches = (False, True) if clients > 1 else (False,)
    return [Slots(clients, tokens, count, unified, caching) for count in threads for unified in caches]


@contextmanager
def serve_peer(program: Path, gguf: Path, slots: Slots, extra: Sequence[str] = ()) -> Iterator[Server]:
    """Start llama-server, yield it when it is ready, and stop it on exit. `extra` flags take precedence.

    Raises PeerError if it does not become ready.
    """
    port = _free_port()
    address = ("--model", str(gguf), "--host", "127.0.0.1", "--port", str(port))
    command = [str(program), *address, *slots.flags(), *extra]
    with tempfile.TemporaryFile("w+", encoding="utf-8") as log:
        process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, text=True)
        try:
            _wait_ready(process, f"http://127.0.0.1:{port}/health", log)
            yield Server(f"http://127.0.0.1:{port}/v1", process.pid)
        finally:
            stop(process)


def version(program: Path) -> str:
    """Return the output of `--version` on one line."""
    result = subprocess.run([str(program), "--version"], capture_output=True, text=True)
    lines = [line for line in (result.stdout + result.stderr).splitlines() if line.startswith(("version", "built"))]
    return "; ".join(lines) or "unknown version"


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _wait_ready(process: subprocess.Popen[str], url: str, log: IO[str]) -> None:
    deadline = time.monotonic() + START_SECONDS
    while process.poll() is None and time.monotonic() < deadline:
        try:
            with urllib.request.urlopen(url, timeout=5) as response:
                if response.status == 200:
                    return
        except (urllib.error.URLError, OSError):
            time.sleep(0.1)
    log.seek(0)
    state = "is not ready" if process.poll() is None else f"ended with status {process.returncode}"
    raise PeerError(f"llama-server {state}: {process.args!r}\n{log.read()[-4000:]}")
