"""The engine in a thread of this process: commands in through a mailbox, events out in one call per step."""

from __future__ import annotations

import atexit
import logging
import queue
import threading
from collections.abc import Sequence as ReadOnly

from onward.engine.client import Cancel, Command, Deliver, EngineLoad, EngineState, Stop, Submit
from onward.engine.events import Failed
from onward.engine.job import Job
from onward.engine.step import Engine
from onward.errors import EngineStopped, Overloaded

log = logging.getLogger("onward.engine")


class EngineThread:
    """Implements `engine.client.EngineClient`. Owns an Engine and the thread that runs it.

    `deliver` (see `start`) is called on the engine thread. `max_waiting` limits the waiting sequences; one large
    request may exceed it. If the engine crashes, all its jobs fail, and later ones are refused.
    """

    def __init__(self, engine: Engine, *, max_waiting: int, name: str = "engine") -> None:
        self.engine = engine
        self._max_waiting = max_waiting
        self._mailbox: queue.SimpleQueue[Command] = queue.SimpleQueue()
        self._lock = threading.Lock()
        """Held while jobs are posted, and while the mailbox is emptied at the end: so no job is left in it."""
        self._num_submitted = 0
        """Jobs posted to the mailbox. Modified under the lock."""
        self._num_taken = 0
        """Jobs taken from it. Modified on the engine thread only."""
        self._stopping = False
        self._state = EngineState()
        self._load = engine.load()
        self._deliver: Deliver = lambda events: None
        self._thread = threading.Thread(target=self._run, name=f"onward-{name}", daemon=True)

    def start(self, deliver: Deliver) -> None:
        """Start the thread. It is stopped before the interpreter exits, because exiting during a runtime's step would
        abort the process."""
        self._deliver = deliver
        atexit.register(self.stop)
        self._thread.start()

    @property
    def state(self) -> EngineState:
        return self._state

    @property
    def load(self) -> EngineLoad:
        return self._load

    @property
    def num_waiting(self) -> int:
        """Sequences waiting for admission, including the jobs in the mailbox."""
        return len(self.engine.scheduler.admission) + self._num_submitted - self._num_taken

    def submit(self, jobs: ReadOnly[Job]) -> None:
        with self._lock:
            self._raise_if_stopped()
            if self._is_full():
                raise Overloaded(retry_after=1)
            self._num_submitted += len(jobs)
            self._mailbox.put(Submit(list(jobs)))

    def cancel(self, request: int) -> None:
        self._mailbox.put(Cancel(request))

    def stop(self) -> None:
        with self._lock:
            self._stopping = True
        self._mailbox.put(Stop())
        if self._thread.is_alive():
            self._thread.join()
        atexit.unregister(self.stop)

    def _raise_if_stopped(self) -> None:
        if self._state.status == "crashed":
            message = "The engine has stopped after an internal error; the server must be restarted."
            raise EngineStopped(message, final=True)
        if self._stopping:
            raise EngineStopped()

    def _is_full(self) -> bool:
        """Whether another sequence would have to wait, and the waiting queue is full."""
        rows = self.engine.scheduler.rows
        return self.num_waiting - (rows.max_rows - rows.num_taken) >= self._max_waiting

    def _run(self) -> None:
        reason = "the engine was stopped"
        state = EngineState("stopped")
        try:
            while not self._stopping:
                if self.engine.idle:
                    self._deliver_events()
                    self._load = self.engine.load()
                self._empty_mailbox(wait=self.engine.idle)
                if not self._stopping and not self.engine.idle:
                    self.engine.step(self._deliver_events)
                    self._load = self.engine.load()
        except Exception as error:
            log.exception("the engine crashed")
            reason = f"the engine crashed: {error}"
            state = EngineState("crashed", reason)
        finally:
            self._state = state
            try:
                self._fail_all(reason)
            finally:
                self._load = self.engine.load()
                self.engine.close()

    def _deliver_events(self) -> None:
        """Deliver the last step's events. Called when the next step begins to compute, or if none follows: before that,
        this thread holds the interpreter lock, and threads that it wakes would wait for it."""
        events, self.engine.undelivered = self.engine.undelivered, []
        if events:
            self._deliver(events)

    def _empty_mailbox(self, *, wait: bool) -> None:
        """Execute all commands in the mailbox. With `wait`, wait for the first one."""
        if wait:
            self._execute(self._mailbox.get())
        while True:
            try:
                command = self._mailbox.get_nowait()
            except queue.Empty:
                return
            self._execute(command)

    def _execute(self, command: Command) -> None:
        match command:
            case Submit(jobs):
                for job in jobs:
                    self._num_taken += 1
                    self.engine.add(job)
            case Cancel(request):
                self.engine.cancel(request)
            case Stop():
                self._stopping = True

    def _fail_all(self, reason: str) -> None:
        """Fail all jobs, including those in the mailbox. `submit` refuses later ones.

        The events of the last step are delivered first, even if it failed half-way: they report the jobs that it
        finished, which do not fail.
        """
        with self._lock:
            self._stopping = True
            self._empty_mailbox(wait=False)
        failed = {sequence.job.id: sequence.job for sequence in self.engine.scheduler.sequences()}
        self._deliver_events()
        self._deliver([Failed(job_id, reason) for job_id in failed])
        for job in failed.values():
            self.engine.cancel(job.request)
