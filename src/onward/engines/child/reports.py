"""Sends the reports of an engine: megabytes of scores beside its thread, and behind what other jobs wait for."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable

from msgspec.structs import replace

from onward.engine.events import Event, Prefilled
from onward.engines.child.link import StepReport
from onward.engines.child.messages import split_report

MAX_WAITING = 256
"""Steps whose scores may wait; then the engine waits too."""

Send = Callable[[StepReport], None]
"""Sends one report, and may wait while the server does not read."""


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
