"""The engine in a thread of this process: commands in through a mailbox, events out in one call per step."""

from __future__ import annotations

import atexit
import logging
import threading
from collections.abc import Sequence as ReadOnly
from concurrent.futures import Future
from pathlib import Path

import msgspec

from onward.engine.client import (
    AdapterLoads,
    Cancel,
    CancelChoice,
    Deliver,
    EngineInfo,
    EngineState,
    LoadAdapter,
    Stop,
    Submit,
    UnloadAdapter,
)
from onward.engine.events import Failed, FailureKind
from onward.engine.job import Job
from onward.engine.loop import EngineLoop
from onward.engine.step import Engine
from onward.engine_load import EngineLoad
from onward.errors import EngineStopped, SetupError

log = logging.getLogger("onward.engine")


class EngineThread:
    """Implements `engine.client.AdaptableClient`. Owns an Engine and the thread that runs it.

    `deliver` (see `start`) is called on the engine thread. If the engine crashes, all its jobs fail, and later ones are
    refused. `fingerprint` is that of `info`.
    """

    def __init__(self, engine: Engine, *, name: str = "engine", fingerprint: str = "") -> None:
        self.engine = engine
        self._loop = EngineLoop(engine)
        self._info = EngineInfo(
            vocab_size=engine.model.vocab_size,
            context_length=engine.model.context_length,
            max_rows=engine.scheduler.rows.max_rows,
            fingerprint=fingerprint,
        )
        self._loads = AdapterLoads()
        self._lock = threading.Lock()
        """Held while jobs are posted, and while the mailbox is drained at the end: so no job is left in it. A cancel is
        posted without it, because the garbage collector may cancel at any moment (`Answer.abandon`)."""
        self._num_submitted = 0
        """Jobs posted to the mailbox. Modified under the lock."""
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
    def info(self) -> EngineInfo:
        return self._info

    @property
    def state(self) -> EngineState:
        return self._state

    @property
    def load(self) -> EngineLoad:
        """The load published last, with the waiting sequences of this moment."""
        return msgspec.structs.replace(self._load, num_waiting=self.num_waiting)

    @property
    def num_waiting(self) -> int:
        """Sequences waiting for admission, including the jobs in the mailbox."""
        num_posted = self._num_submitted - self._loop.num_taken
        return num_posted + len(self.engine.scheduler.admission)

    def submit(self, jobs: ReadOnly[Job]) -> None:
        with self._lock:
            self._raise_if_stopped()
            self._num_submitted += len(jobs)
            self._loop.mailbox.put(Submit(list(jobs)))

    def cancel(self, request: int) -> None:
        self._loop.mailbox.put(Cancel(request))

    def cancel_choice(self, job: int, choice: int) -> None:
        self._loop.mailbox.put(CancelChoice(job, choice))

    def load_adapter(self, adapter: str, path: Path) -> Future[None]:
        with self._lock:
            self._raise_if_stopped()
            future = self._loads.begin(adapter)
            self._loop.mailbox.put(LoadAdapter(adapter, str(path)))
        return future

    def unload_adapter(self, adapter: str) -> None:
        self._loop.mailbox.put(UnloadAdapter(adapter))

    def stop(self) -> None:
        with self._lock:
            self._stopping = self._loop.is_stopping = True
            if self._thread.ident is None and self._state.status == "running":  # never started
                self._state = EngineState("stopped")
                self.engine.close()
        self._loop.mailbox.put(Stop())
        if self._thread.is_alive():
            self._thread.join()
        atexit.unregister(self.stop)

    def _raise_if_stopped(self) -> None:
        if self._state.status == "crashed":
            raise EngineStopped.crashed()
        if self._stopping:
            raise EngineStopped()

    def _run(self) -> None:
        failure: tuple[FailureKind, str] = "stopped", "the engine was stopped"
        state = EngineState("stopped")
        try:
            self._loop.run(self._publish)
        except BaseException as error:  # a panic in a Rust library is not an Exception
            log.exception("the engine crashed")
            failure = "crashed", f"the engine crashed: {error}"
            state = EngineState("crashed", failure[1])
        finally:
            self._state = state
            try:
                self._fail_all(*failure)
                if state.status == "stopped":
                    self._loop.save()
            finally:
                self._load = self.engine.load()
                self.engine.close()
                self._deliver = lambda events: None  # as the supervisor of an engine process does

    def _publish(self) -> None:
        """Publish the load and deliver the last step's events. Called when the next step begins to compute, or if none
        follows: before that, this thread holds the interpreter lock, and threads that it wakes would wait for it."""
        self._load = self.engine.load()
        for outcome in self._loop.take_outcomes():
            self._loads.end(outcome)
        self._deliver_events()

    def _deliver_events(self) -> None:
        events = self._loop.take_events()
        if events:
            self._deliver(events)

    def _fail_all(self, kind: FailureKind, reason: str) -> None:
        """Fail all jobs, including those in the mailbox. `submit` refuses later ones.

        The events of the last step are delivered first, even if it failed half-way: they report the jobs that it
        finished, which do not fail. Commands in the mailbox are not executed: the engine may be in any state.
        """
        with self._lock:
            self._stopping = True
            self._loads.fail_all(SetupError("The engine was stopped while it loaded the adapter."))
            posted = self._loop.drain()
            self._loop.num_taken = self._num_submitted
        jobs = {sequence.job.id: sequence.job for sequence in self.engine.scheduler.sequences()}
        jobs |= self._loop.preparing
        jobs |= {job.id: job for command in posted if isinstance(command, Submit) for job in command.jobs}
        cancelled = {command.request for command in posted if isinstance(command, Cancel)}
        self._deliver_events()
        self._deliver([Failed(job.id, kind, reason) for job in jobs.values() if job.request not in cancelled])
        for request in {job.request for job in jobs.values()}:
            self.engine.cancel(request)
