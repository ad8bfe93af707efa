"""A replica: an engine, the calls of faces, and for each listener the events of all its calls, those of several steps
in one frame. Ray Serve owns it; nothing here knows Ray.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import AsyncGenerator, Callable, Iterable
from collections.abc import Sequence as ReadOnly
from contextlib import suppress
from dataclasses import replace
from typing import Any

from msgspec.structs import replace as replace_struct

from onward.engine.client import EngineClient
from onward.engine.events import Decoded, Event, Failed
from onward.engine.job import Job
from onward.engines.cluster.deployment import CALLS, CALLS_PER_ROW
from onward.engines.cluster.messages import (
    Calls,
    LoadReport,
    ReplicaInfo,
    ReplicaRoute,
    decode_jobs,
    encode,
)
from onward.errors import EngineStopped

log = logging.getLogger("onward.engine")

FRAME_SECONDS = 0.03
"""The least time between frames of tokens: each item of a stream has a cost of its own in Ray, whatever it holds."""
URGENT_SECONDS = 0.004
"""The least time before a frame with what clients wait for: a call's first token, its end, a failure."""
HEARTBEAT_SECONDS = 0.5
"""After which an empty frame is sent, so that the listener knows that the replica lives."""
IDLE_HEARTBEATS = 4
"""Without a call, after which the listener need not stay."""
MAX_CANCELLED = 10_000
"""Cancelled calls that are remembered in case they come later."""
LISTENER_SECONDS = 30.0
"""How long the events of calls that have ended are kept for a face that does not listen yet."""


class Outbox:
    """Used on the replica's event loop only. One listener takes from it at a time.

    `num_calls` counts the calls that have not ended; their owner keeps it. `has_listener`: likewise.
    """

    def __init__(self) -> None:
        self.num_calls = 0
        self.has_listener = False
        self._events: dict[int, list[Event]] = {}
        """By call, in the order of the first."""
        self._ended: list[int] = []
        self._arrived = asyncio.Event()
        self._urgent = asyncio.Event()
        self._last = 0.0
        self._num_idle = 0

    @property
    def is_idle(self) -> bool:
        """Whether there has been no call for so long that the listener may leave."""
        return not self.num_calls and not self._arrived.is_set() and self._num_idle >= IDLE_HEARTBEATS

    def add(self, call: int, event: Event, *, is_first: bool) -> None:
        """Queue an event to be sent. `is_first`: a client may be waiting for it."""
        self._events.setdefault(call, []).append(event)
        self._arrived.set()
        if is_first or not isinstance(event, Decoded) or event.finish_reason:
            self._urgent.set()

    def end(self, call: int) -> None:
        """No more events of a call will come."""
        self._ended.append(call)
        self._arrived.set()
        self._urgent.set()

    async def take(self) -> bytes:
        """Wait until something is due, and return it as a frame; an empty one after HEARTBEAT_SECONDS."""
        try:
            await asyncio.wait_for(self._arrived.wait(), HEARTBEAT_SECONDS)
        except TimeoutError:
            self._num_idle = 0 if self.num_calls else self._num_idle + 1
            return encode([])
        await self._until_due()
        frame = [(call, encode(events)) for call, events in self._events.items()]
        frame += [(call, b"") for call in self._ended]
        self._events, self._ended = {}, []
        self._arrived.clear()
        self._urgent.clear()
        self._num_idle = 0
        self._last = asyncio.get_running_loop().time()
        return encode(frame)

    async def _until_due(self) -> None:
        now = asyncio.get_running_loop().time
        if not self._urgent.is_set() and (left := self._last + FRAME_SECONDS - now()) > 0:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._urgent.wait(), left)
        if (left := self._last + URGENT_SECONDS - now()) > 0:
            await asyncio.sleep(left)


class EngineReplica:
    """Serves calls from an engine that it owns and starts. Its methods run on one event loop, that of the first call;
    events arrive on a thread of the engine.

    `name`: that of the replica where it is addressed. Each face that makes calls listens once to the events of all of
    them. Jobs get ids of the replica's own, because those of different faces are alike. `exit` ends the process when
    the engine has crashed for good: Ray starts another one.
    """

    def __init__(
        self, engine: EngineClient, info: ReplicaInfo, *, name: str, exit: Callable[[], None] = lambda: None
    ) -> None:
        self._engine = engine
        self._info = info
        self._name = name
        self._exit = exit
        self._ids = itertools.count(1)
        self._num_reports = 0
        self._running: dict[int, _Call] = {}
        """By the face's number of the call."""
        self._calls: dict[int, _Call] = {}
        """By the replica's id of each live job."""
        self._cancelled: dict[int, None] = {}
        """Calls that were cancelled and were not there, in order: they have ended, or are on their way."""
        self._outboxes: dict[str, Outbox] = {}
        """By face."""
        self._loop: asyncio.AbstractEventLoop | None = None
        engine.start(self._deliver)

    async def run(self, calls: Calls, route: ReplicaRoute) -> None:
        """Run calls until all have ended; `listen` has their events. Those that are left are cancelled with the task.

        Raises BrokenMessage, and LookupError if another replica is meant.
        """
        self._check(route)
        self._loop = asyncio.get_running_loop()
        jobs = [(call, decode_jobs(payload)) for call, payload in calls if call not in self._cancelled]
        batch = [self._begin(call, list_of, route.face) for call, list_of in jobs]
        try:
            for running in batch:
                await running.wait()
        finally:
            for running in batch:
                self._end(running)
            if (outbox := self._outboxes.get(route.face)) is not None and not outbox.has_listener:
                self._loop.call_later(LISTENER_SECONDS, self._forget, route.face)  # it may be on its way

    async def listen(self, route: ReplicaRoute) -> AsyncGenerator[bytes]:
        """Yield frames with the events of all calls of a face, and empty ones as a sign of life; end when it has had no
        call for a while. A face listens once at a time. Raises LookupError if another replica is meant.
        """
        self._check(route)
        self._loop = asyncio.get_running_loop()
        outbox = self._outboxes.setdefault(route.face, Outbox())
        outbox.has_listener = True
        try:
            while not outbox.is_idle:
                yield await outbox.take()
        finally:
            outbox.has_listener = False
            self._forget(route.face)

    async def cancel(self, calls: list[int], route: ReplicaRoute) -> None:
        """Cancel calls. One that has ended is ignored, one that has not come yet is not begun. Raises LookupError."""
        self._check(route)
        for call in calls:
            if (running := self._running.get(call)) is not None:
                self._end(running)
            else:
                self._cancelled[call] = None
                if len(self._cancelled) > MAX_CANCELLED:
                    del self._cancelled[next(iter(self._cancelled))]

    async def cancel_choice(self, call: int, job: int, choice: int, route: ReplicaRoute) -> None:
        """Cancel a choice of a call's job. Unknown and finished ones are ignored. Raises LookupError."""
        self._check(route)
        if (running := self._running.get(call)) is not None:
            for number in running.numbers_of(job):
                self._engine.cancel_choice(number, choice)
                running.choice_cancelled(number)

    def record_replica_metadata(self) -> dict[str, Any]:
        """Called by Ray Serve, once: returns what its routers receive about this replica."""
        return self._info.encode()

    def record_routing_stats(self) -> dict[str, Any]:
        """Called by Ray Serve from time to time: as `record_replica_metadata`, for what changes."""
        self._num_reports += 1
        return LoadReport(self._num_reports, self._engine.load).encode()

    def record_autoscaling_stats(self) -> dict[str, float]:
        """Called by Ray Serve from time to time, for `replicas_for_calls` and `replicas_for_rows`."""
        num_calls = len(self._running)
        return {CALLS: num_calls, CALLS_PER_ROW: num_calls / self._engine.info.max_rows}

    def check_health(self) -> None:
        """Called by Ray Serve from time to time. Raises if the engine is gone for good."""
        state = self._engine.state
        if state.status == "crashed":
            log.error("%s: the engine has crashed: %s", self._info.model_id, state.crash_reason)
            self._exit()
            raise RuntimeError(state.crash_reason or "the engine has crashed")

    def stop(self) -> None:
        """Stop the engine. Blocks."""
        self._engine.stop()

    def _check(self, route: ReplicaRoute) -> None:
        if route.replica != self._name:
            raise LookupError(f"replica {route.replica} is gone")

    def _begin(self, id: int, jobs: ReadOnly[Job], face: str) -> _Call:
        """Begin a call, whose events are for a face."""
        outbox = self._outboxes.setdefault(face, Outbox())
        outbox.num_calls += 1
        numbers = {next(self._ids): job for job in jobs}
        jobs_of_call = {number: (job.id, len(job.unfinished_choices)) for number, job in numbers.items()}
        call = self._running[id] = _Call(id, next(self._ids), jobs_of_call, outbox, on_end=self._end)
        self._calls.update(dict.fromkeys(numbers, call))
        try:
            self._engine.submit([replace(job, id=number, request=call.request) for number, job in numbers.items()])
        except EngineStopped as stopped:
            call.fail(stopped.message)
        if not jobs:
            self._end(call)
        return call

    def _end(self, call: _Call) -> None:
        """A call has ended, or ends now. Nothing more is sent of it."""
        if self._running.pop(call.id, None) is None:
            return
        for number in call.numbers:
            self._calls.pop(number, None)
        if not call.has_ended or call.has_cancelled:  # an engine may not have had that choice yet
            self._engine.cancel(call.request)
        call.close()

    def _forget(self, face: str) -> None:
        """Drop an outbox that nobody uses any more."""
        outbox = self._outboxes.get(face)
        if outbox is not None and not outbox.num_calls and not outbox.has_listener:
            del self._outboxes[face]

    def _deliver(self, events: ReadOnly[Event]) -> None:
        """Receive the events of one step, on a thread of the engine."""
        if self._loop is not None:
            with suppress(RuntimeError):  # the event loop has ended with the replica
                self._loop.call_soon_threadsafe(self._accept, events)

    def _accept(self, events: ReadOnly[Event]) -> None:
        for event in events:
            call = self._calls.get(event.job)
            if call is not None:
                call.add(event)


class _Call:
    """What is left of a call. `request`: its number in the engine. `jobs`: the face's id and the number of unfinished
    choices of each job, by its number there. `on_end` is called when all have ended."""

    def __init__(
        self,
        id: int,
        request: int,
        jobs: dict[int, tuple[int, int]],
        outbox: Outbox,
        on_end: Callable[[_Call], None],
    ) -> None:
        self.id = id
        self.request = request
        self._outbox = outbox
        self._on_end = on_end
        self._ids = {number: job for number, (job, _) in jobs.items()}
        self._unfinished = {number: choices for number, (_, choices) in jobs.items()}
        self._closed = asyncio.Event()
        self._has_tokens = False
        self.has_cancelled = False

    @property
    def has_ended(self) -> bool:
        return not self._unfinished

    @property
    def numbers(self) -> Iterable[int]:
        """Those of all its jobs in the engine."""
        return self._ids

    async def wait(self) -> None:
        """Wait until the call is closed."""
        await self._closed.wait()

    def close(self) -> None:
        """Note that no more events of this call will come."""
        self._outbox.end(self.id)
        self._outbox.num_calls -= 1
        self._closed.set()

    def numbers_of(self, job: int) -> list[int]:
        """Return the numbers of a job in the engine: one, or none."""
        return [number for number, id in self._ids.items() if id == job]

    def choice_cancelled(self, number: int) -> None:
        """A choice ends without an event. Its face knows."""
        if number in self._unfinished:
            self.has_cancelled = True
            self._end_choices(number, 1)

    def add(self, event: Event) -> None:
        number = event.job
        if number not in self._unfinished:
            return
        self._outbox.add(self.id, replace_struct(event, job=self._ids[number]), is_first=not self._has_tokens)
        if isinstance(event, Decoded):
            self._has_tokens = True
            if event.finish_reason:
                self._end_choices(number, 1)
        elif isinstance(event, Failed):
            self._end_choices(number, self._unfinished[number])

    def fail(self, reason: str) -> None:
        """All jobs end: the engine has stopped."""
        for number in list(self._unfinished):
            self.add(Failed(number, "stopped", reason))

    def _end_choices(self, number: int, num_choices: int) -> None:
        self._unfinished[number] -= num_choices
        if self._unfinished[number] <= 0:
            del self._unfinished[number]
        if self.has_ended:
            self._on_end(self)
