"""The process of an engine: the other end of `child`. Its main thread is the engine's, a second one reads commands, and
a third one sends large scores.
"""

from __future__ import annotations

import logging
import math
import os
import queue
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

import msgspec
from msgspec.structs import replace

from onward.engine.client import EngineInfo
from onward.engine.events import Event, Prefilled
from onward.engine.loop import EngineLoop, Mail
from onward.engine_load import ProcessUsage
from onward.engines.child.link import StepReport
from onward.engines.child.messages import (
    Configure,
    CouldNotStart,
    Crashed,
    Describe,
    Logged,
    Progressed,
    Ready,
    Upward,
    decode_downward,
    encode,
    split_report,
)
from onward.errors import ModelFolderError, SetupError
from onward.ipc.frames import BrokenFrame, BrokenMessage, FrameReader, write_frame
from onward.ipc.worker_end import die_with_parent, ignore_server_signals, prefer_as_oom_victim, take_connection
from onward.machine import resident_bytes

if TYPE_CHECKING:  # it imports the sampler, which the loader does at the same time as other work
    from onward.engine.step import Engine

log = logging.getLogger("onward.engine")

MAX_WAITING = 256
"""Steps whose scores may wait; then the engine waits too."""
Send = Callable[[StepReport], None]
"""Sends one report, and may wait while the server does not read."""
EXIT_CRASHED = 70
"""EX_SOFTWARE of sysexits.h."""
EXIT_ORPHANED = 1
USAGE_SECONDS = 1.0
"""How long a measurement of what the process uses is reported."""
_TRACEBACKS = logging.Formatter()


class ReportSender:
    """Sends the events of each job in order. Scores of prompts, and what follows them in the same job, are sent on a
    thread of its own, which starts when it is first needed; the events of other jobs overtake them.

    `report` belongs to the engine's thread. `failed` is called on the other thread if `send` raises there.
    """

    def __init__(self, send: Send, failed: Callable[[BaseException], None]) -> None:
        self._send = send
        self._failed = failed
        self._lock = threading.Lock()
        """Held while a report is sent, so that the last one that is sent says whether the engine is idle."""
        self._waiting: queue.Queue[list[Event]] = queue.Queue(MAX_WAITING)
        self._delayed_jobs: set[int] = set()
        """Jobs with events in the queue, or that had some since it was empty."""
        self._latest: StepReport | None = None
        """That of the latest step, with the engine's load, and whether it is idle."""
        self._thread: threading.Thread | None = None

    def report(self, report: StepReport) -> None:
        """Send the report of a step."""
        if not self._waiting.unfinished_tasks:
            self._delayed_jobs.clear()
        for event in report.events:
            if isinstance(event, Prefilled) and event.scores:
                self._delayed_jobs.add(event.job)
        self._latest = report
        if self._delayed_jobs:
            report = self._delay(report)
        with self._lock:
            self._send(replace(report, is_idle=False) if self._waiting.unfinished_tasks else report)

    def flush(self) -> None:
        """Wait until everything has been sent."""
        self._waiting.join()

    def _delay(self, report: StepReport) -> StepReport:
        """Queue the events of delayed jobs; return the report without them."""
        delayed = [event for event in report.events if event.job in self._delayed_jobs]
        if delayed:
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="onward-scores", daemon=True)
                self._thread.start()
            self._waiting.put(delayed)
        return replace(report, events=[event for event in report.events if event.job not in self._delayed_jobs])

    def _run(self) -> None:
        try:
            while True:
                self._send_delayed(self._waiting.get())
        except BaseException as error:
            self._failed(error)

    def _send_delayed(self, events: list[Event]) -> None:
        """Send events in parts, so that the reports of steps need not wait long for the lock."""
        assert self._latest is not None
        *parts, last = split_report(StepReport(events, self._latest.load))
        for part in parts:
            with self._lock:
                self._send(part)
        with self._lock:
            is_idle = self._latest.is_idle and self._waiting.unfinished_tasks == 1
            self._send(replace(last, load=self._latest.load, is_idle=is_idle))
            self._waiting.task_done()


class Description(Protocol):
    """What the server says about the engine to load. Both methods wait for it, once."""

    def configuration(self) -> bytes:
        """Return what `ChildLauncher.configuration` is."""
        ...

    def vocabulary(self) -> bytes:
        """Return what `ChildLauncher.vocabulary` returned."""
        ...


Load = Callable[[Description, Callable[[str], None]], "tuple[Engine, EngineInfo]"]

"""Loads an engine. The second argument receives a sentence per stage. Raises SetupError."""


def run_worker(load: Load) -> int:
    """Serve one engine until the server stops it, or is gone; return the exit code.

    The connection is standard input (and on Windows, upwards, standard output), which are free afterwards. Never
    returns when the server is gone: then the process ends at once, whatever is being computed.
    """
    ignore_server_signals()
    die_with_parent()
    prefer_as_oom_victim()
    connection = _Connection()
    logging.getLogger("onward").handlers[:] = [_LogFrames(connection.send)]
    logging.getLogger("onward").propagate = False
    try:
        engine, info = load(connection, lambda stage: connection.send(Progressed(stage)))
    except SetupError as error:
        connection.send(CouldNotStart(str(error), isinstance(error, ModelFolderError)))
        return 1
    except MemoryError:
        connection.send(CouldNotStart("The memory does not suffice to load the model."))
        return 1
    except BaseException as error:
        log.exception("the engine could not be loaded")
        connection.send(CouldNotStart(f"The engine could not be loaded: {type(error).__name__}: {error}"))
        return 1
    connection.send(Ready(info))
    return _run(engine, connection)


def _run(engine: Engine, connection: _Connection) -> int:
    loop = EngineLoop(engine, connection.commands)
    try:
        sender = ReportSender(connection.send, connection.end)
        loop.run(Reporter(loop, sender.report).publish)
        sender.flush()
        loop.save()
    except BaseException as error:  # a panic in a Rust library is not an Exception
        log.exception("the engine crashed")
        connection.send(Crashed(f"the engine crashed: {type(error).__name__}: {error}"))
        return EXIT_CRASHED
    engine.close()
    return 0


class _Connection:
    """The frames from and to the server."""

    def __init__(self) -> None:
        self._down, self._up = take_connection()
        self.commands: queue.SimpleQueue[Mail] = queue.SimpleQueue()
        self._configuration: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        self._vocabulary: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        self._lock = threading.Lock()
        threading.Thread(target=self._read, name="onward-commands", daemon=True).start()

    def configuration(self) -> bytes:
        """See Description."""
        return self._configuration.get()

    def vocabulary(self) -> bytes:
        """See Description."""
        return self._vocabulary.get()

    def send(self, message: Upward) -> None:
        """Send a message; waits while the server does not read. May be called on any thread."""
        try:
            with self._lock:
                write_frame(self._up, encode(message))
        except OSError:
            os._exit(EXIT_ORPHANED)

    def end(self, error: BaseException) -> None:
        """End the process because a report could not be sent: without reports the engine is of no use."""
        log.error("a report could not be sent", exc_info=error)
        self.send(Crashed(f"a report could not be sent: {error!r}"))
        os._exit(EXIT_CRASHED)

    def _read(self) -> None:
        """Read messages until the server is gone, which ends the process: `stop` is a message, too."""
        try:
            for payload in FrameReader(self._down):
                message = decode_downward(payload)
                match message:
                    case Configure(payload):
                        self._configuration.put(payload)
                    case Describe(vocabulary):
                        self._vocabulary.put(vocabulary)
                    case _:
                        self.commands.put(message)
        except (BrokenFrame, BrokenMessage) as error:
            log.error("%s", error)
        finally:
            os._exit(EXIT_ORPHANED)


class Reporter:
    """Sends a report per step."""

    def __init__(self, loop: EngineLoop, send: Callable[[StepReport], None]) -> None:
        self._loop = loop
        self._send = send
        self._begun: set[int] = set()
        self._reported_step = -1
        self._usage = ProcessUsage(0.0, 0)
        self._measured = -math.inf

    def publish(self) -> None:
        """See `engine.loop.Publish`. A step calls it at least once; one that computes nothing is not counted."""
        engine = self._loop.engine
        is_idle = engine.idle
        step = engine.counters.num_steps
        if step == self._reported_step and not is_idle and not engine.undelivered:
            return
        self._reported_step = -1 if is_idle else step
        running = {sequence.job.id for sequence in engine.scheduler.running}
        admitted = sorted(running - self._begun)
        self._begun = running
        load = msgspec.structs.replace(engine.load(), process=self._process_usage(is_idle))
        outcomes = self._loop.take_outcomes()
        self._send(StepReport(self._loop.take_events(), load, admitted, is_idle, outcomes))

    def _process_usage(self, is_idle: bool) -> ProcessUsage:
        """Return what this process has used, measured now if it becomes idle, else at most a second ago."""
        now = time.monotonic()
        if is_idle or now - self._measured > USAGE_SECONDS:
            self._usage = ProcessUsage(time.process_time(), resident_bytes())
            self._measured = now
        return self._usage


class _LogFrames(logging.Handler):
    """Sends log records to the server, which writes its log."""

    def __init__(self, send: Callable[[Upward], None]) -> None:
        super().__init__()
        self._send_message = send

    def emit(self, record: logging.LogRecord) -> None:
        try:
            traceback = _TRACEBACKS.formatException(record.exc_info) if record.exc_info else ""
            self._send_message(Logged(record.levelno, record.name, record.getMessage(), traceback))
        except Exception:
            self.handleError(record)
