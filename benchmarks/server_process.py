"""`onward serve` as a separate process on a free port, and its resident memory."""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
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
def serve(model: str, *flags: str, program: Sequence[str] = (sys.executable, "-m", "onward")) -> Iterator[Server]:
    """Start a server, yield it when it is ready, and stop it on exit. Raises BenchmarkError if it does not start."""
    command = [*program, "serve", "--port", "0", "--drain", "1", "--model", model, *flags]
    with tempfile.TemporaryFile("w+") as log:  # a pipe that nobody reads would block the server when full
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


def resident_memory(pid: int) -> dict[str, int] | None:
    """Return resident bytes: `peak` so far, and now `kv` (KV cache), `anonymous` (without it) and `file`.

    None where the system does not report them.
    """
    process = Path(f"/proc/{pid}")
    try:
        status = process.joinpath("status").read_text(encoding="ascii")
        kv = kv_cache_bytes(process.joinpath("smaps").read_text(encoding="utf-8", errors="replace"))
    except OSError:
        return None
    names = {"peak": "VmHWM", "anonymous": "RssAnon", "file": "RssFile"}
    sizes = {name: _kib(status, field) * 1024 for name, field in names.items()}
    return sizes | {"kv": kv, "anonymous": max(0, sizes["anonymous"] - kv)}


def kv_cache_bytes(smaps: str) -> int:
    """Return the resident bytes of the KV cache, from the text of /proc/PID/smaps; 0 on a kernel without huge pages.

    It is the only memory for which a server requests huge pages ("hg" in proc(5)), except large numpy arrays, which a
    server does not keep; the heap stays marked where one was.
    """
    mappings = re.split(r"^(?=[0-9a-f]+-[0-9a-f]+ )", smaps, flags=re.MULTILINE)
    huge = [each for each in mappings if re.search(r"^VmFlags:.* hg\b", each, re.MULTILINE) and not _is_named(each)]
    return sum(_kib(each, "Rss") for each in huge) * 1024


def _is_named(mapping: str) -> bool:
    """Return whether a mapping is of a file or the heap: its first line has a sixth field."""
    return len(mapping.partition("\n")[0].split()) > 5


def _kib(text: str, field: str) -> int:
    found = re.search(rf"^{field}:\s+(\d+) kB", text, re.MULTILINE)
    return int(found[1]) if found else 0
