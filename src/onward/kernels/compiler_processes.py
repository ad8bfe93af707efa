"""Compiles the modules of a model that is new to a machine in several processes at once: llvmlite lets one thread of a
process into LLVM at a time. `python -m onward.kernels.compiler_processes` is one of the others: it answers each
module's text with its object, and ends with the connection.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import msgspec

from onward.ipc.frames import BrokenFrame, FrameReader, write_frame
from onward.ipc.spawn import Process, spawn
from onward.ipc.worker_end import die_with_parent, ignore_server_signals, prefer_as_oom_victim, take_connection
from onward.kernels.compiler import compile_object
from onward.kernels.isa import Isa
from onward.kernels.targets import Target
from onward.machine import compute_threads

WORKER = (sys.executable, "-P", "-m", "onward.kernels.compiler_processes")
"""-P: a folder named onward in the working directory is not imported."""
MIN_JOBS = 4
"""For each process that is started: a start takes as long as a small module."""
MAX_PROCESSES = 4
_SECONDS = 60.0
"""Within which a module is compiled, even where a processor has much else to do."""


class _Job(msgspec.Struct, array_like=True):
    text: str
    triple: str
    cpu: str
    features: str


class _Lost(Exception):
    """A process could not be started, or has ended, or what it said is no object."""


class _Helper:
    """A process that compiles. One thread at a time."""

    def __init__(self) -> None:
        """Raises OSError."""
        self._process: Process = spawn(WORKER)
        self._reader = FrameReader(self._process.up)
        self._is_lost = False

    def compile(self, text: str, target: Target) -> bytes:
        """Return the object, as compile_object. Raises _Lost, and from then on: an object that comes late would be
        taken for that of another module."""
        job = _Job(text, target.triple, target.cpu, target.features)
        data: bytes | None = None
        with suppress(OSError, BrokenFrame):  # TimeoutError is an OSError
            if not self._is_lost:
                write_frame(self._process.down, msgspec.msgpack.encode(job))
                data = self._reader.receive(_SECONDS)
        if not data:
            self._is_lost = True
            raise _Lost
        return data

    def close(self) -> None:
        self._process.close()
        self._process.popen.kill()
        self._process.popen.wait()


CompileText = Callable[[str, Target], bytes]


def share(jobs: Sequence[Callable[[CompileText], None]], compile_text: CompileText) -> None:
    """Do jobs, each on a thread, with a function that compiles a text: `compile_text`, or the same in a process of its
    own. Raises what a job raises."""
    waiting = deque(jobs)

    def work(compile_text: CompileText) -> None:
        while True:
            try:
                job = waiting.popleft()
            except IndexError:
                return
            job(compile_text)

    count = min(compute_threads() - 1, len(jobs) // MIN_JOBS, MAX_PROCESSES)
    with ThreadPoolExecutor(max(1, count), thread_name_prefix="onward-compile") as pool:
        helping = [pool.submit(_help, work, compile_text) for _ in range(count)]
        work(compile_text)
        for each in helping:
            each.result()


def _help(work: Callable[[CompileText], None], compile_here: CompileText) -> None:
    """Work with a process of its own, as long as that lives; what it does not compile, this one does."""
    try:
        helper = _Helper()
    except OSError:
        return

    def compile_text(text: str, target: Target) -> bytes:
        try:
            return helper.compile(text, target)
        except _Lost:
            return compile_here(text, target)

    try:
        work(compile_text)
    finally:
        helper.close()


def main() -> None:
    """Compile what comes, until the connection is closed. An invalid module ends the process: whoever sent it compiles
    it again, and learns what is wrong."""
    ignore_server_signals()
    die_with_parent()
    prefer_as_oom_victim()
    down, up = take_connection()
    for payload in FrameReader(down):
        job = msgspec.msgpack.decode(payload, type=_Job)
        data = compile_object(job.text, Target(job.triple, job.cpu, job.features, Isa()))
        try:
            write_frame(up, data)
        except OSError:  # nobody wants it any more
            return


if __name__ == "__main__":
    main()
