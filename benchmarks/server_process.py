"""A real `onward serve` on a free port, its resident memory, and its end."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

READY = "Onward is ready at "
STOP_SECONDS = 30


@dataclass(frozen=True, slots=True)
class Server:
    """A server that is ready. `url` is its base URL, with /v1."""

    url: str
    pid: int


@contextmanager
def serve(model: str, *flags: str) -> Iterator[Server]:
    """Started when entered, told to end by SIGTERM when left. RuntimeError when it does not become ready."""
    command = [sys.executable, "-m", "onward", "serve", "--port", "0", "--drain", "1", "--model", model, *flags]
    with tempfile.TemporaryFile("w+") as log:  # a pipe that nobody reads would stop the server when full
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True)
        try:
            yield Server(_ready(process, log), process.pid)
        finally:
            stop(process)


def _ready(process: subprocess.Popen[str], log: IO[str]) -> str:
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith(READY):
            return line.removeprefix(READY).split()[0]
    log.seek(0)
    raise RuntimeError(f"the server did not start:\n{log.read()}")


def stop(process: subprocess.Popen[str]) -> None:
    """End a process that we started, by force if it does not listen."""
    process.terminate()
    try:
        process.wait(STOP_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    if process.stdout is not None:
        process.stdout.close()


def resident(pid: int) -> dict[str, int] | None:
    """Bytes: `peak` resident so far, and now `anonymous`, `file` and `shared` (the KV cache: it is the only
    shared anonymous memory a server has). None where the system does not tell."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text(encoding="ascii").splitlines()
    except OSError:
        return None
    sizes = {name: value.split()[0] for name, _, value in (line.partition(":") for line in lines) if "kB" in value}
    names = {"peak": "VmHWM", "anonymous": "RssAnon", "file": "RssFile", "shared": "RssShmem"}
    return {name: int(sizes[field]) * 1024 for name, field in names.items()}
