"""An engine client that survives its engine: it starts another one and resumes every job where its events stopped."""

from __future__ import annotations

import atexit
import logging
import queue
import threading
import time
from collections.abc import Sequence as ReadOnly
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import msgspec

from onward.engine.client import (
    AdapterLoads,
    AdapterOutcome,
    Cancel,
    Command,
    Deliver,
    EngineInfo,
    EngineState,
    LoadAdapter,
    UnloadAdapter,
)
from onward.engine.events import FailureKind
from onward.engine.job import Job
from onward.engine_load import EngineLoad, RecoveryCounts
from onward.engines.child.dispatch import Dispatch
from onward.engines.child.link import EngineLink, Launch, StepReport
from onward.engines.child.recovery import HangWatch, Incident, LoadHistory, RestartPolicy
from onward.errors import EngineStopped, ModelFolderError, SetupError

log = logging.getLogger("onward.engine")

CLOSE_SECONDS = 2.0
"""How long an engine may take for its last step when it is closed. Its jobs have failed already, and the system frees
the memory of a process that is killed."""
START_SECONDS = 0.5
"""How long `stop` waits for an engine that is just being started: a start cannot be interrupted. The engine is closed
as soon as it is ready, or ends with this process."""
MAX_LOAD_LOSSES = 2
"""The loss of this many engines in a row fails the adapter that they were to load. One may be bad luck, as with
jobs."""


@dataclass(slots=True, eq=False)
class _Session:
    """One engine from its launch until it is lost. `link` is set once it is ready, `lost_reason` once it is lost."""

    link: EngineLink | None = None
    lost_reason: str | None = None
    hangs: bool = False
    started: float = 0.0


@dataclass(slots=True)
class _Loading:
    """An adapter that is being loaded, and how many engines were lost meanwhile."""

    command: LoadAdapter
    num_losses: int = 0


class _FingerprintChanged(Exception):
    """An engine computes other results than the one before: it cannot resume jobs of that one."""


class SupervisedEngine:
    """Implements `engine.client.AdaptableClient` over engines that `launch` starts.

    Call `begin` and `wait_until_ready` before all other methods. `engine_timeout`: see `HangWatch`. `save_seconds`: how
    long an engine may write its prefix cache when it is stopped. `name` is for the log.

    Threads: the supervisor's launches engines, watches them and lives as long as they do; reports come on a thread of
    the link, which delivers their events; commands come from anywhere. All of them hold the lock while they use the
    dispatch and send, and never while they deliver. Cancels of requests go through the mailbox of the supervisor's
    thread, because the garbage collector may cancel at any moment (`Answer.abandon`), also on a thread that holds the
    lock.
    """

    def __init__(
        self,
        launch: Launch,
        *,
        name: str = "engine",
        engine_timeout: float = 0.0,
        save_seconds: float = 0.0,
        policy: RestartPolicy | None = None,
    ) -> None:
        self._launch = launch
        self._name = name
        self._close_seconds = CLOSE_SECONDS + save_seconds
        self._policy = policy or RestartPolicy()
        self._watch = HangWatch(engine_timeout)
        self._lock = threading.Lock()
        self._dispatch = Dispatch()
        self._adapters: dict[str, LoadAdapter] = {}
        """Those that were loaded, by id: a new engine loads them before it resumes jobs."""
        self._loading: dict[str, _Loading] = {}
        self._loads = AdapterLoads()
        self._history = LoadHistory()
        self._recoveries = RecoveryCounts()
        self._mailbox: queue.SimpleQueue[Cancel | None] = queue.SimpleQueue()
        """Cancels, and None where the supervisor has to look at the session or at `_stopping`."""
        self._state = EngineState()
        self._stopping = False
        self._session = _Session()
        self._info: EngineInfo | None = None
        self._start_error: Exception | None = None
        self._ready = threading.Event()
        """Set when the first engine is ready, or could not start."""
        self._deliver: Deliver = lambda events: None
        self._thread = threading.Thread(target=self._run, name=f"onward-supervisor-{name}", daemon=True)

    def begin(self) -> None:
        """Begin to start the first engine. Returns at once."""
        atexit.register(self.stop)
        self._thread.start()

    def wait_until_ready(self) -> None:
        """Wait until the first engine is ready. Raises SetupError if it cannot start."""
        self._ready.wait()
        if self._info is None:
            self.stop()
            raise self._start_error or SetupError(f"The engine could not be started: {self._state.crash_reason}.")

    def start(self, deliver: Deliver) -> None:
        """`deliver` receives all events. The engine is running already."""
        self._deliver = deliver

    @property
    def info(self) -> EngineInfo:
        assert self._info is not None, "wait_until_ready has not returned"
        return self._info

    @property
    def state(self) -> EngineState:
        return self._state

    @property
    def load(self) -> EngineLoad:
        """The load published last. While no engine runs, every choice counts as waiting."""
        load = msgspec.structs.replace(self._history.current, recoveries=self._recoveries)
        if self._state.status == "running":
            return load
        with self._lock:
            return msgspec.structs.replace(load, num_waiting=self._dispatch.book.num_choices)

    @property
    def num_requests(self) -> int:
        """Requests that have not ended, running or waiting."""
        return self._dispatch.book.num_requests

    def submit(self, jobs: ReadOnly[Job]) -> None:
        with self._lock:
            self._raise_if_stopped()
            self._send(self._dispatch.add(jobs))

    def load_adapter(self, adapter: str, path: Path) -> Future[None]:
        with self._lock:
            self._raise_if_stopped()
            future = self._loads.begin(adapter)
            self._loading[adapter] = _Loading(LoadAdapter(adapter, str(path)))
            self._send([self._loading[adapter].command])
        return future

    def unload_adapter(self, adapter: str) -> None:
        with self._lock:
            self._adapters.pop(adapter, None)
            self._send([UnloadAdapter(adapter)])

    def _raise_if_stopped(self) -> None:
        if self._state.status == "crashed":
            raise EngineStopped.crashed()
        if self._stopping:
            raise EngineStopped()

    def cancel(self, request: int) -> None:
        self._mailbox.put(Cancel(request))

    def cancel_choice(self, job: int, choice: int) -> None:
        with self._lock:
            self._send(self._dispatch.cancel_choice(job, choice))

    def stop(self) -> None:
        self._stopping = True
        self._mailbox.put(None)
        if self._thread.is_alive():
            self._thread.join(START_SECONDS if self._session.link is None else self._close_seconds)
        if self._thread.is_alive() and (link := self._session.link) is not None:
            link.kill(f"it did not stop within {self._close_seconds:g} seconds")
            self._thread.join()
        atexit.unregister(self.stop)

    # The next two methods run on a thread of the link.

    def _report(self, session: _Session, report: StepReport) -> None:
        """Record what the engine reports, and deliver the events."""
        with self._lock:
            if session is not self._session or session.lost_reason is not None:
                return
            self._watch.reported(time.monotonic())
            accepted = self._dispatch.accept(report)
            self._history.reported(report.load)
            self._send(accepted.commands)
            for outcome in report.outcomes:
                self._loaded(outcome)
        if accepted.events:
            self._deliver(accepted.events)
        if accepted.crash_reason is not None and session.link is not None:
            session.link.kill(accepted.crash_reason)

    def _loaded(self, outcome: AdapterOutcome) -> None:
        """An engine has loaded an adapter, or cannot. Called with the lock held."""
        awaited = self._loading.pop(outcome.adapter, None)
        if awaited is not None and not outcome.problem:
            self._adapters[outcome.adapter] = awaited.command
        elif awaited is None and outcome.problem:  # of an engine that was started again: jobs with the adapter fail
            log.error("%s: an adapter could not be loaded again: %s", self._name, outcome.problem)
        self._loads.end(outcome)

    def _lost(self, session: _Session, reason: str) -> None:
        """Have the supervisor's thread replace the engine."""
        with self._lock:
            session.lost_reason = reason
            self._history.engine_lost()
            if not self._stopping:
                self._state = EngineState("recovering", reason)
        self._mailbox.put(None)

    # The methods below run on the supervisor's thread.

    def _run(self) -> None:
        state = EngineState("stopped")
        try:
            if self._start_first():
                given_up = self._supervise()
                if given_up is not None:
                    state = EngineState("crashed", given_up)
        except BaseException as error:
            log.exception("%s: the supervision of the engine failed", self._name)
            state = EngineState("crashed", f"the supervision of the engine failed: {error!r}")
        finally:
            self._end(state)

    def _start_first(self) -> bool:
        """Start the first engine. Returns whether it is ready."""
        try:
            self._start_engine()
        except Exception as error:
            self._start_error = error
        self._ready.set()
        return self._start_error is None

    def _supervise(self) -> str | None:
        """Replace the engine whenever it is lost, until `stop`. Returns why that was given up, None after `stop`."""
        while self._wait_for_loss():
            incident, delay = self._take_loss()
            given_up = self._replace_engine(incident, delay)
            if given_up is not None:
                log.error("%s", incident.summary(given_up))
                return given_up
        return None

    def _wait_for_loss(self) -> bool:
        """Wait until the engine is lost; kill it if it hangs. Returns False after `stop`."""
        session = self._session
        while session.lost_reason is None and not self._stopping:
            self._work(self._watch.poll_seconds)
            with self._lock:
                hangs = self._watch.poll(time.monotonic(), has_jobs=self._dispatch.num_sent > 0)
            if hangs and not session.hangs and session.link is not None:
                session.hangs = True
                session.link.kill(f"it did not report a step for {self._watch.allowed_silence:.3g} seconds")
        return not self._stopping

    def _take_loss(self) -> tuple[Incident, float | None]:
        """Record that the engine is lost, fail the job that ended it, and free what is left of the engine. Returns the
        seconds until the next start, None if there is to be none."""
        session, now = self._session, time.monotonic()
        with self._lock:
            loss = self._dispatch.engine_lost()
            self._count_load_losses()
            self._watch.engine_lost()  # the next engine reports that it is idle before it is ready here
            incident = Incident(
                self._name, session.lost_reason or "", session.hangs, now, self._dispatch.book.num_requests
            )
            self._recoveries = incident.count_loss(self._recoveries, loss)
        self._deliver([] if loss.failed is None else [loss.failed])
        if session.link is not None:
            session.link.close()
        seconds = now - session.started
        return incident, self._policy.engine_lost(made_progress=loss.made_progress, seconds=seconds)

    def _count_load_losses(self) -> None:
        """Fail the loads during which too many engines were lost; the next engine gets the others. Called with the lock
        held."""
        for adapter, loading in list(self._loading.items()):
            loading.num_losses += 1
            if loading.num_losses == MAX_LOAD_LOSSES:
                problem = "Engines were lost repeatedly while they loaded the adapter; the log says why."
                self._loaded(AdapterOutcome(adapter, problem))

    def _replace_engine(self, incident: Incident, delay: float | None) -> str | None:
        """Start another engine, if need be repeatedly. Returns why that was given up; None after success and `stop`."""
        while delay is not None:
            self._pause(delay)
            if self._stopping:
                return None
            try:
                self._start_engine()
            except _FingerprintChanged:
                return "the engine that was started again computes other results: its model or the machine has changed"
            except ModelFolderError as error:  # waiting does not repair a file
                self._recoveries = incident.count_failed_start(self._recoveries)
                return f"the files of its model have changed since they were loaded: {str(error).rstrip('.')}"
            except Exception as error:
                log.warning("%s: the engine could not be started again: %s", self._name, error)
                self._recoveries = incident.count_failed_start(self._recoveries)
                delay = self._policy.could_not_start()
            else:
                self._recoveries = incident.count_recovery(self._recoveries, time.monotonic())
                log.warning("%s", incident.summary())
                return None
        return "it was lost repeatedly without any progress"

    def _start_engine(self) -> None:
        """Start an engine, and resume all live jobs in it. Raises what `launch` raises, and _FingerprintChanged."""
        session = self._session = _Session()
        session.link = self._launch(partial(self._report, session), partial(self._lost, session))
        info = session.link.info
        if self._info is not None and info.fingerprint != self._info.fingerprint:
            raise _FingerprintChanged
        while not self._mailbox.empty():
            self._work(0)
        with self._lock:
            self._info = info
            session.started = time.monotonic()
            self._watch.engine_started(session.started)
            if session.lost_reason is None:
                self._state = EngineState()
                loading = [each.command for each in self._loading.values()]
                self._send([*self._adapters.values(), *loading, *self._dispatch.engine_ready()])

    def _pause(self, seconds: float) -> None:
        """Execute cancels until the time is over or `stop` was called."""
        deadline = time.monotonic() + seconds
        while not self._stopping and (left := deadline - time.monotonic()) > 0:
            self._work(left)

    def _work(self, timeout: float) -> None:
        """Execute the next cancel, for which it waits at most `timeout` seconds. Returns earlier where there is
        something else to do."""
        try:
            command = self._mailbox.get(timeout=timeout) if timeout else self._mailbox.get_nowait()
        except queue.Empty:
            return
        if command is not None:
            with self._lock:
                self._send(self._dispatch.cancel(command.request))

    def _end(self, state: EngineState) -> None:
        """Fail what is still running, and close the engine. `submit` refuses later jobs."""
        with self._lock:
            self._stopping = True
            self._state = state
            kind: FailureKind = "crashed" if state.status == "crashed" else "stopped"
            events = self._dispatch.fail_all(kind, state.crash_reason or "the engine was stopped")
            self._loads.fail_all(SetupError("The engine was stopped while it loaded the adapter."))
        self._ready.set()
        self._deliver(events)
        if self._session.link is not None:
            self._session.link.close()
        self._deliver = lambda events: None  # frees the receiver, which the collector does not find through this object

    def _send(self, commands: ReadOnly[Command]) -> None:
        """Send commands to the current engine; one that is lost ignores them. Called with the lock held."""
        link = self._session.link
        if link is not None:
            for command in commands:
                link.send(command)
