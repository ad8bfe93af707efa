"""The other side of `worker`: one disposable process, and what ended it."""

from __future__ import annotations

import logging
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from collections.abc import Sequence as ReadOnly

import msgspec

from onward.constraints.process.messages import Encode, Encoded, WorkerReply, WorkerRequest, decode_reply, encode
from onward.ipc.frames import BrokenFrame, FrameReader, write_frame
from onward.ipc.spawn import Process, how_it_ended, spawn

log = logging.getLogger("onward.engine")

WORKER = (sys.executable, "-P", "-m", "onward.constraints.process.worker")
"""-P: a folder named onward in the working directory is not imported."""
MAX_SECONDS = 20.0
"""How long an answer may take on a busy machine; processor time is limited by `worker`."""
MAX_LOAD_SECONDS = 300.0
EXIT_SECONDS = 2.0
CLOSED = "it was closed"

TOO_SLOW = "it takes too long to compute; make it simpler"
TOO_LARGE = "it is too complex to compute: it exceeds the memory, or the library's stack; make it simpler"


class ProcessLost(Exception):
    """The process ended while it answered. The message says why, for whoever sent the grammar. `was_killed`: from
    outside, so the request need not be the cause."""

    def __init__(self, message: str, *, was_killed: bool = False) -> None:
        super().__init__(message)
        self.was_killed = was_killed


class GrammarProcess:
    """A disposable process, started by the first call. Used on one thread at a time; `kill` on any.

    `answer` returns the tokens of a text, where the process may ask for them.
    """

    def __init__(self, command: ReadOnly[str] = WORKER, answer: Callable[[str], list[int]] | None = None) -> None:
        self._command = command
        self._answer = answer
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

    def call(self, request: WorkerRequest, seconds: float = MAX_SECONDS) -> WorkerReply:
        """Return the answer to a request. Raises ProcessLost: the process is gone then, and the next call starts
        another one."""
        self.start()
        assert self._process is not None and self._reader is not None
        try:
            write_frame(self._process.down, encode(request))
            return self._receive(self._process, self._reader, seconds)
        except TimeoutError:
            self.kill()
            self._end("it did not answer in time")
            raise ProcessLost(TOO_SLOW) from None
        except (OSError, BrokenFrame, msgspec.MsgspecError, UnicodeDecodeError, RecursionError, EOFError) as error:
            status = self._end(str(error))
        if sys.platform == "win32":
            raise ProcessLost(TOO_LARGE)
        raise ProcessLost(TOO_SLOW if status == -signal.SIGPROF else TOO_LARGE, was_killed=status == -signal.SIGKILL)

    def tell(self, request: WorkerRequest) -> None:
        """Send what is not answered; ignored if there is no process."""
        if self._process is not None:
            try:
                write_frame(self._process.down, encode(request))
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
            self._end(CLOSED)

    def _receive(self, process: Process, reader: FrameReader, seconds: float) -> WorkerReply:
        watch = None if reader.can_wait else threading.Timer(seconds, process.popen.kill)
        if watch is not None:
            watch.start()
        try:
            while True:
                payload = reader.receive(seconds)
                if payload is None:
                    raise EOFError("it ended")
                reply: WorkerReply = decode_reply(payload)
                if not isinstance(reply, Encode):
                    return reply
                write_frame(process.down, encode(Encoded(self._answer(reply.text) if self._answer else [])))
        finally:
            if watch is not None:
                watch.cancel()

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
        if reason != CLOSED:
            log.warning("a process that computes grammars is lost: %s (%s)", how_it_ended(status), reason)
        return status
