"""`onward serve` as a separate process on a free port."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import IO

from benchmarks.measure import BenchmarkError

READY = "Onward is ready at "
STOP_SECONDS = 30


@dataclass(frozen=True, slots=True)
class Server:
    """A server that is ready. `url` is its base URL, including /v1."""

    url: str
    pid: int


@contextmanager
def serve(
    model: str | None, *flags: str, program: Sequence[str] = (sys.executable, "-m", "onward")
) -> Iterator[Server]:
    """Start a server, yield it when it is ready, and stop it on exit. `model` None: the flags say what is served.
    Raises BenchmarkError if it does not start."""
    models = [] if model is None else ["--model", model]
    command = [*program, "serve", "--port", "0", "--drain", "1", *models, *flags]
    with tempfile.TemporaryFile("w+", encoding="utf-8") as log:  # a pipe that nobody reads would block when full
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
    raise BenchmarkError(f"the server did not start:\n{log.read()}")


def stop(process: subprocess.Popen[str]) -> None:
    """Terminate a child process; kill it if it does not end in time."""
    process.terminate()
    try:
        process.wait(STOP_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    if process.stdout is not None:
        process.stdout.close()
