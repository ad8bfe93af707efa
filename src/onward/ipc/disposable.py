"""Processes for what may take any time and memory, or end a process: one question is answered after the other."""

from __future__ import annotations

import logging
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence as ReadOnly

from onward.ipc.frames import BrokenFrame, FrameReader, write_frame
from onward.ipc.spawn import Process, how_it_ended, spawn

log = logging.getLogger("onward.engine")

EXIT_SECONDS = 2.0
_CLOSED = "it was closed"


class ProcessLost(Exception):
    """The process ended while it answered. `was_slow`: it took too long; `was_killed`: from outside, so the question
    need not be the cause. Otherwise it exceeded its memory, or overflowed a stack."""

    def __init__(self, message: str = "", *, was_slow: bool = False, was_killed: bool = False) -> None:
        super().__init__(message)
        self.was_slow = was_slow
        self.was_killed = was_killed


class DisposableProcess:
    """A process of a command whose main module uses `ipc.worker_end`. It is started by the first question, and again
    by the first one after it ended. Used on one thread at a time; `kill` on any.

    `purpose` says in the log what it does ("computes grammars").
    """

    def __init__(self, command: ReadOnly[str], purpose: str) -> None:
        self._command = command
        self._purpose = purpose
        self._process: Process | None = None
        self._reader: FrameReader | None = None
        self.starts = 0
        """How often a process was started."""

    @property
    def pid(self) -> int | None:
        """Of the process, None if there is none."""
        return None if self._process is None else self._process.popen.pid

    def start(self) -> None:
        """Start the process unless it runs. Raises OSError."""
        if self._process is not None and self._process.popen.poll() is not None:
            self._end("it had ended")
        if self._process is None:
            self._process = spawn(self._command)
            self._reader = FrameReader(self._process.up)
            self.starts += 1

    def ask(self, question: bytes, seconds: float) -> bytes:
        """Return the answer to a question. Raises ProcessLost, also where there is none within so many seconds: the
        process is gone then. Raises OSError if none can be started."""
        self.start()
        return self.go_on(question, seconds)

    def go_on(self, message: bytes, seconds: float) -> bytes:
        """As `ask`, of the process that answered last with a question of its own: no other one is started."""
        if self._process is None or self._reader is None:
            raise ProcessLost
        try:
            write_frame(self._process.down, message)
            return self._receive(self._process, self._reader, seconds)
        except TimeoutError:
            self.kill()
            self._end("it did not answer in time")
            raise ProcessLost(was_slow=True) from None
        except (OSError, BrokenFrame, EOFError) as error:
            status = self._end(str(error))
        if sys.platform == "win32":
            raise ProcessLost
        raise ProcessLost(was_slow=status == -signal.SIGPROF, was_killed=status == -signal.SIGKILL)

    def send(self, message: bytes) -> None:
        """Send what is not answered; ignored if there is no process."""
        if self._process is not None:
            try:
                write_frame(self._process.down, message)
            except (OSError, BrokenFrame) as error:
                self._end(str(error))

    def kill(self) -> None:
        """End the process, whatever it does."""
        process = self._process
        if process is not None:
            process.popen.kill()

    def close(self) -> None:
        """End the process, if there is one, and wait for it."""
        if self._process is not None:
            self._end(_CLOSED)

    def _receive(self, process: Process, reader: FrameReader, seconds: float) -> bytes:
        watch = None if reader.can_wait else threading.Timer(seconds, process.popen.kill)
        if watch is not None:
            watch.start()
        try:
            payload = reader.receive(seconds)
        finally:
            if watch is not None:
                watch.cancel()
        if payload is None:
            raise EOFError("it ended")
        return payload

    def _end(self, reason: str) -> int:
        """Forget the process, which ends with its connection at the latest. Returns how, as Popen does."""
        process, self._process, self._reader = self._process, None, None
        assert process is not None
        process.close()
        try:
            status = process.popen.wait(EXIT_SECONDS)
        except subprocess.TimeoutExpired:
            process.popen.kill()
            status = process.popen.wait()
        if reason != _CLOSED:
            log.warning("a process that %s is lost: %s (%s)", self._purpose, how_it_ended(status), reason)
        return status
