"""An engine in a child process: starts it, carries commands and reports, and knows how it ended."""

from __future__ import annotations

import logging
import subprocess
import threading
from collections.abc import Callable
from collections.abc import Sequence as ReadOnly
from contextlib import suppress
from dataclasses import dataclass

from onward.engine.client import Command, EngineInfo, Stop
from onward.engines.child.link import OnLost, OnReport, StepReport
from onward.engines.child.messages import (
    Configure,
    CouldNotStart,
    Crashed,
    Describe,
    Logged,
    Progressed,
    Ready,
    Upward,
    decode_upward,
    encode,
    is_large,
    split_command,
)
from onward.errors import ModelFolderError, SetupError
from onward.ipc.frames import BrokenFrame, BrokenMessage, FrameReader, FrameWriter, write_frame
from onward.ipc.spawn import Process, how_it_ended, spawn

log = logging.getLogger("onward.engine")

CLOSE_SECONDS = 20.0
"""How long an engine that was stopped may take for its last step and for freeing its memory."""
EXIT_SECONDS = 2.0
"""How long a process may live after it closed its connection."""


@dataclass(frozen=True, slots=True)
class ChildLauncher:
    """Implements `link.Launch`: each call starts `command`, a program that calls `worker.run_worker`.

    `configuration` describes the engine to that program, and so does what `vocabulary` returns, which may wait; what it
    raises ends the start. `name` is for the log, and `progress` receives a sentence per stage of loading, on a thread
    of the link. `spare` may have a process of that command that was started before.
    """

    command: ReadOnly[str]
    configuration: bytes
    vocabulary: Callable[[], bytes]
    name: str = "engine"
    progress: Callable[[str], None] = lambda stage: None
    spare: SpareProcess | None = None

    def __call__(self, on_report: OnReport, on_lost: OnLost) -> ChildEngine:
        process = self.spare.take(self.configuration) if self.spare is not None else None
        if process is not None:
            try:
                return self._start(ChildEngine(process, self.name, self.progress, on_report, on_lost))
            except ModelFolderError:
                log.debug("A spare process may have read the files of %s before all were there", self.name)
        child = ChildEngine(_spawn(self.command), self.name, self.progress, on_report, on_lost)
        child.configure(self.configuration)
        return self._start(child)

    def _start(self, child: ChildEngine) -> ChildEngine:
        """Return the engine once it is ready; one that cannot start has ended."""
        try:
            child.describe(self.vocabulary())
        except BaseException:
            child.kill("its tokenizer could not be loaded")
            child.close()
            raise
        child.wait_until_ready()
        return child


class SpareProcess:
    """A process that is started before it is known for certain what it is to load, so that both import at the same
    time.

    A context manager: a process that was not taken ends with the context. Create it on a thread that lives as long as
    the process. Raises SetupError.
    """

    def __init__(self, command: ReadOnly[str]) -> None:
        self._process: Process | None = _spawn(command)
        self._configuration: bytes | None = None
        """The engine that it was configured to load."""

    @property
    def pid(self) -> int | None:
        """The id of the process, None once it was taken or has ended."""
        return None if self._process is None else self._process.popen.pid

    def configure(self, configuration: bytes) -> None:
        """Have it load an engine, which is described as by `ChildLauncher.configuration`."""
        assert self._process is not None and self._configuration is None, "it is configured once"
        self._configuration = configuration
        with suppress(OSError):  # it has ended, which `take` finds
            write_frame(self._process.down, encode(Configure(configuration)))

    def take(self, configuration: bytes) -> Process | None:
        """Return the process, which loads this engine, and which the caller owns from now on; None if it was taken
        before, loads another one, which ends it, or has ended: a download may have completed the files since then."""
        if self._configuration is None and self._process is not None:
            self.configure(configuration)
        if self._configuration != configuration or self._has_ended:
            self._end()
        process, self._process = self._process, None
        return process

    @property
    def _has_ended(self) -> bool:
        return self._process is not None and self._process.popen.poll() is not None

    def _end(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.popen.kill()
            process.popen.wait()
            process.close()

    def __enter__(self) -> SpareProcess:
        return self

    def __exit__(self, *_: object) -> None:
        self._end()


class ChildEngine:
    """Implements `link.EngineLink`. Owns the process and the connection.

    A thread reads what comes up, and notices the end; small commands are written on the thread that sends them.
    """

    def __init__(
        self,
        process: Process,
        name: str,
        progress: Callable[[str], None],
        on_report: OnReport,
        on_lost: OnLost,
    ) -> None:
        self._process, self._name = process, name
        self._writer = FrameWriter(process.down, name=f"commands-{name}")
        self._progress = progress
        self._on_report = on_report
        self._on_lost = on_lost
        self._info: EngineInfo | None = None
        self._reason: str | None = None
        self._blames_files = False
        """Why the engine ends, if that is known before its process has ended."""
        self._is_closing = False
        self._is_closed = False
        self._lock = threading.Lock()
        self._ready = threading.Event()
        """Set when the engine is ready, or could not start."""
        self._thread = threading.Thread(target=self._read, name=f"onward-reports-{name}", daemon=True)
        self._thread.start()

    @property
    def info(self) -> EngineInfo:
        assert self._info is not None, "the engine is not ready"
        return self._info

    @property
    def pid(self) -> int:
        return self._process.popen.pid

    def configure(self, payload: bytes) -> None:
        """Send which engine to load."""
        self._writer.write(lambda: [encode(Configure(payload))])

    def describe(self, vocabulary: bytes) -> None:
        """Send the bytes of the tokens. May be called before or after the model is loaded."""
        self._writer.write(lambda: [encode(Describe(vocabulary))], is_large=True)

    def wait_until_ready(self) -> None:
        """Wait until the engine takes commands. Raises SetupError if it cannot start, ModelFolderError if the model's
        files are why; the process has ended then."""
        try:
            self._ready.wait()
        except BaseException:  # Ctrl-C
            self.kill("the start was interrupted")
            raise
        if self._info is None:
            self._thread.join()
            self.close()
            kind = ModelFolderError if self._blames_files else SetupError
            raise kind(self._reason or "The engine could not be started.")

    def send(self, command: Command) -> None:
        self._writer.write(lambda: [encode(part) for part in split_command(command)], is_large=is_large(command))

    def kill(self, reason: str) -> None:
        with self._lock:
            self._reason = self._reason or reason
        self._process.popen.kill()

    def close(self) -> None:
        with self._lock:
            if self._is_closed:
                return
            self._is_closed = self._is_closing = True
        self.send(Stop())
        self._thread.join(CLOSE_SECONDS)
        if self._thread.is_alive():
            self.kill(f"it did not stop within {CLOSE_SECONDS:.0f} seconds")
            self._thread.join()
        self._writer.close()
        self._writer.join()
        self._process.close()

    def _read(self) -> None:
        """Receive messages until the connection ends; then wait for the process, and say why it ended."""
        try:
            for payload in FrameReader(self._process.up):
                self._receive(decode_upward(payload))
        except (BrokenFrame, BrokenMessage) as error:
            self.kill(str(error))
        except BaseException as error:
            log.exception("a report of the engine could not be processed")
            self.kill(f"a report of the engine could not be processed: {error!r}")
        ended = how_it_ended(self._wait())
        if self._info is None:
            ended = f"The engine of {self._name} could not be loaded: {ended}."
        self._reason = self._reason or ended
        if self._info is not None and not self._is_closing:
            self._on_lost(self._reason)
        self._ready.set()

    def _receive(self, message: Upward) -> None:
        match message:
            case StepReport():
                self._on_report(message)
            case Progressed(stage):
                self._progress(stage)
            case Ready(info):
                self._info = info
                self._ready.set()
            case Logged():
                _log(message)
            case CouldNotStart(reason):
                self._reason = self._reason or reason
                self._blames_files = message.blames_files
            case Crashed(reason):
                self._reason = self._reason or reason

    def _wait(self) -> int:
        """Wait for the end of the process whose connection has ended; return its status as Popen does."""
        try:
            return self._process.popen.wait(EXIT_SECONDS)
        except subprocess.TimeoutExpired:
            self.kill("it closed its connection and kept running")
            return self._process.popen.wait()


def _log(message: Logged) -> None:
    """Log what the engine's process has logged."""
    logger = logging.getLogger(message.logger)
    if logger.isEnabledFor(message.level):
        record = logger.makeRecord(message.logger, message.level, "", 0, message.message, (), None)
        record.exc_text = message.exception or None
        logger.handle(record)


def _spawn(command: ReadOnly[str]) -> Process:
    """Start a process with a connection. Raises SetupError.

    On Linux it is killed when the calling thread ends.
    """
    try:
        return spawn(command)
    except OSError as error:
        raise SetupError(f"The engine's process cannot be started: {error.strerror}.") from None
