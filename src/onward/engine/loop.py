"""The engine's thread: jobs and cancels in by a mailbox, events out by one call a step.

When the engine breaks, every job it has, and every job that comes later, is told.
"""

from __future__ import annotations

import atexit
import logging
import queue
import threading
from collections.abc import Callable
from collections.abc import Sequence as ReadOnly

from onward.engine.events import Event, Failed
from onward.engine.job import Job
from onward.engine.step import Engine
from onward.errors import EngineStopped, Overloaded

log = logging.getLogger("onward.engine")

Deliver = Callable[[ReadOnly[Event]], None]


class EngineThread:
    """Owns an Engine and the thread it lives in. All methods may be called from any thread.

    `deliver` gets the events of one step, called on the engine thread; it must return soon. A job that was
    submitted ends in exactly one of: its choices' last Pieces, Failed, or its own cancel.
    """

    def __init__(self, engine: Engine, deliver: Deliver, *, max_waiting: int, name: str = "engine") -> None:
        self.engine = engine
        self._deliver = deliver
        self._max_waiting = max_waiting
        self._mailbox: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._lock = threading.RLock()
        self._posted = 0
        self._stopping = False
        self._death: str | None = None
        self._thread = threading.Thread(target=self._run, name=f"onward-{name}", daemon=True)

    def start(self) -> None:
        """An interpreter that ends stops the thread first: to end inside a runtime's step would abort the process."""
        atexit.register(self.stop)
        self._thread.start()

    @property
    def death(self) -> str | None:
        """Why the engine is dead, None while it lives."""
        return self._death

    @property
    def waiting(self) -> int:
        """Sequences that wait for a place, those still in the mailbox included."""
        return self.engine.scheduler.waiting + self._posted

    def submit(self, jobs: ReadOnly[Job]) -> None:
        """Queue the jobs of one request. Raises Overloaded when the queue is full, EngineStopped when dead."""
        with self._lock:
            self._raise_if_stopped()
            if self._full():
                raise Overloaded(retry_after=1)
            self._posted += len(jobs)
            self._mailbox.put(lambda: self._add(jobs))

    def cancel(self, request: int) -> None:
        """Stop a request's work before the next step. Unknown and ended requests are ignored."""
        self._mailbox.put(lambda: self.engine.cancel(request))

    def stop(self) -> None:
        """End the thread after the step in progress; what still ran is told Failed. Returns when it has ended."""
        with self._lock:
            self._stopping = True
        self._mailbox.put(lambda: None)
        if self._thread.is_alive():
            self._thread.join()
        atexit.unregister(self.stop)

    def _raise_if_stopped(self) -> None:
        if self._death is not None:
            words = "The engine has stopped after an internal error; the server must be restarted."
            raise EngineStopped(words, final=True)
        if self._stopping:
            raise EngineStopped()

    def _full(self) -> bool:
        """Whether one more sequence would wait, and the queue holds all it may. One large request may overfill it."""
        scheduler = self.engine.scheduler
        free_rows = scheduler.rows - len(scheduler.running)
        return self.waiting - free_rows >= self._max_waiting

    def _add(self, jobs: ReadOnly[Job]) -> None:
        for job in jobs:
            with self._lock:
                self.engine.add(job)
                self._posted -= 1

    def _run(self) -> None:
        reason = "the engine was stopped"
        try:
            while not self._stopping:
                if self.engine.idle:
                    self._tell()
                self._read_mailbox(wait=self.engine.idle)
                if not self._stopping and not self.engine.idle:
                    self.engine.step(self._tell)
        except Exception as error:
            log.exception("the engine died")
            reason = f"the engine died: {error}"
            self._death = reason
        finally:
            try:
                self._end_all(reason)
            finally:
                self.engine.close()

    def _tell(self) -> None:
        """Tell what the last step made ready. Called when the next begins to compute, or none follows: until then the
        interpreter is busy, and whoever is woken would wait for it."""
        events, self.engine.untold = self.engine.untold, []
        if events:
            self._deliver(events)

    def _read_mailbox(self, *, wait: bool) -> None:
        if wait:
            self._mailbox.get()()
        while True:
            try:
                command = self._mailbox.get_nowait()
            except queue.Empty:
                return
            command()

    def _end_all(self, reason: str) -> None:
        """Tell every job there is, also those still in the mailbox; later ones are refused by `submit`.

        Before that, what the last step made ready, though it broke half-way: jobs that it ended are known to nobody
        else.
        """
        with self._lock:
            self._stopping = True
            self._read_mailbox(wait=False)
        doomed = {sequence.job.id: sequence.job for sequence in self.engine.scheduler.sequences()}
        self._tell()
        self._deliver([Failed(job_id, reason) for job_id in doomed])
        for job in doomed.values():
            self.engine.cancel(job.request)
