"""What is common to engine clients that wait for other programs, on an event loop of their own, rather than compute."""

from __future__ import annotations

import atexit
import logging
import threading
from abc import ABC, abstractmethod
from collections.abc import Iterable
from collections.abc import Sequence as ReadOnly
from time import sleep

from onward.engine.client import Deliver, EngineState
from onward.engine.events import Decoded, Event, FailureKind
from onward.engine.job import Job
from onward.engines.book import JobBook
from onward.errors import EngineStopped
from onward.loop_thread import LoopThread

log = logging.getLogger("onward.engine")

GATHER_SECONDS = 0.001
"""How long a token may wait for those of other choices. A server sends the tokens of a step one after the other, and
waking two threads for each takes as much processor time as sending it on."""


class LoopClient(ABC):
    """The base of such a client: its thread, its state, its book of jobs, and the delivery of what the book lets pass.

    A subclass has the rest of `engine.client.EngineClient`, and starts the thread.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._thread = LoopThread(f"onward-{name}")
        self._loop = self._thread.loop
        self._deliver: Deliver = lambda events: None
        self._lock = threading.Lock()
        """Held while jobs are submitted, and while the state changes to one that refuses them."""
        self._state = EngineState()
        # What follows is used on the event loop only.
        self._book = JobBook()
        self._events: list[Event] = []
        self._num_running = 0
        """Choices each of which receives its tokens on its own; none where an engine sends those of a step together."""

    # Any thread.

    def start(self, deliver: Deliver) -> None:
        """`deliver` receives all events, on the thread of the event loop."""
        self._deliver = deliver

    @property
    def state(self) -> EngineState:
        return self._state

    @property
    @abstractmethod
    def is_given_up(self) -> bool:
        """Whether no engine has answered for so long that requests are refused."""

    def submit(self, jobs: ReadOnly[Job]) -> None:
        with self._lock:
            if self._state.status == "crashed":
                raise EngineStopped.crashed()
            if self._state.status == "stopped":
                raise EngineStopped()
            if self.is_given_up:
                raise EngineStopped.lost()
            self._post(list(jobs))

    def cancel(self, request: int) -> None:
        self._thread.call(self._cancel, request)

    def cancel_choice(self, job: int, choice: int) -> None:
        self._thread.call(self._cancel_choice, job, choice)

    def stop(self) -> None:
        with self._lock:
            is_first = self._state.status in ("running", "recovering")
            if is_first:
                self._state = EngineState("stopped")
        if is_first:
            self._stopping()
        self._thread.stop(self._end, self._close)
        self._deliver = lambda events: None  # as the supervisor of an engine process does
        atexit.unregister(self.stop)

    def _set_state(self, state: EngineState) -> None:
        """Publish a state, unless the client has stopped or crashed."""
        with self._lock:
            if self._state.status not in ("stopped", "crashed"):
                self._state = state

    def _stopping(self) -> None:  # noqa: B027
        """Called once by `stop`, when nothing more is submitted."""

    @abstractmethod
    def _post(self, jobs: list[Job]) -> None:
        """Have the event loop begin jobs, which adds them to the book. Called with the lock held."""

    # The event loop.

    @abstractmethod
    def _cancel(self, request: int) -> None:
        """End the jobs of a request, in the book and wherever they are computed."""

    @abstractmethod
    def _cancel_choice(self, job: int, choice: int) -> None:
        """End a choice, likewise."""

    async def _close(self) -> None:  # noqa: B027
        """Called last, when no task runs any more."""

    def _emit(self, events: Iterable[Event]) -> None:
        """Deliver events, which the book has let pass, together with the others of this round of the event loop, or of
        the next ones (`_gather`)."""
        if not self._events:
            self._loop.call_soon(self._gather)
        self._events += events

    def _gather(self) -> None:
        """Deliver the events; where other choices run, and all events are tokens, with what arrives within
        GATHER_SECONDS."""
        if 0 < len(self._events) < self._num_running and all(isinstance(event, Decoded) for event in self._events):
            sleep(GATHER_SECONDS)  # not a timer: the event loop, which does nothing else, is woken less, too
            self._loop.call_soon(self._loop.call_soon, self._deliver_events)  # when the tasks have read what came
        else:
            self._deliver_events()

    def _deliver_events(self) -> None:
        events, self._events = self._events, []
        if events:
            self._deliver(events)

    def _fail(self, jobs: Iterable[int], kind: FailureKind, reason: str) -> None:
        """End those of these jobs that are live, each with an event."""
        if events := self._book.fail(jobs, kind, reason):
            level = logging.INFO if self._state.status == "stopped" else logging.ERROR
            log.log(level, "%s: a request failed: %s", self._name, reason)
            self._emit(events)

    def _end(self) -> None:
        self._fail(list(self._book.jobs), "stopped", "the engine was stopped")
        self._deliver_events()
