"""A replica: an engine, and the calls of faces. Ray Serve owns it; nothing here knows Ray."""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import AsyncGenerator, Callable
from collections.abc import Sequence as ReadOnly
from contextlib import suppress
from dataclasses import replace
from typing import Any

from msgspec.structs import replace as replace_struct

from onward.cluster.messages import ReplicaInfo, Route, decode_jobs, encode_load
from onward.cluster.outbox import Outbox
from onward.engine.client import EngineClient
from onward.engine.events import Decoded, Event, Failed
from onward.errors import EngineStopped

log = logging.getLogger("onward.engine")


LISTENER_SECONDS = 30.0
"""How long the events of calls that have ended are kept for a face that does not listen yet."""


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
        self._calls: dict[int, _Call] = {}
        """By the replica's id of each live job."""
        self._outboxes: dict[str, Outbox] = {}
        """By face."""
        self._loop: asyncio.AbstractEventLoop | None = None
        engine.start(self._deliver)

    async def run(self, payload: bytes, route: Route) -> None:
        """Run the jobs of a call until they have ended; `listen` has their events. They are cancelled with the task.

        Raises BrokenMessage.
        """
        self._loop = asyncio.get_running_loop()
        jobs = decode_jobs(payload)
        request = next(self._ids)
        numbers = {next(self._ids): job for job in jobs}
        outbox = self._outboxes.setdefault(route.face, Outbox())
        outbox.num_calls += 1
        jobs_of_call = {number: (job.id, len(job.unfinished_choices)) for number, job in numbers.items()}
        call = _Call(route.call, jobs_of_call, outbox)
        self._calls.update(dict.fromkeys(numbers, call))
        try:
            self._engine.submit([replace(job, id=number, request=request) for number, job in numbers.items()])
            await call.wait()
        except EngineStopped as stopped:
            call.fail(stopped.message)
        finally:
            for number in numbers:
                self._calls.pop(number, None)
            if not call.has_ended or call.has_cancelled:  # an engine may not have had that choice yet
                self._engine.cancel(request)
            outbox.end(route.call)
            outbox.num_calls -= 1
            if not outbox.has_listener:  # it may be on its way
                self._loop.call_later(LISTENER_SECONDS, self._forget, route.face)

    async def listen(self, route: Route) -> AsyncGenerator[bytes]:
        """Yield frames with the events of all calls of a face, and empty ones as a sign of life; end when it has had no
        call for a while. A face listens once at a time. Raises LookupError if another replica is meant.
        """
        if route.only != self._name:
            raise LookupError(f"replica {route.only} is gone")
        self._loop = asyncio.get_running_loop()
        outbox = self._outboxes.setdefault(route.face, Outbox())
        outbox.has_listener = True
        try:
            while not outbox.is_idle:
                yield await outbox.take()
        finally:
            outbox.has_listener = False
            self._forget(route.face)

    async def cancel_choice(self, call: int, job: int, choice: int, route: Route) -> None:
        """Cancel a choice of a call's job. Unknown and finished ones are ignored. `route` has led to this replica."""
        for number, running in self._calls.items():
            if running.id == call and running.job_of(number) == job:
                self._engine.cancel_choice(number, choice)
                running.choice_cancelled(number)

    def record_replica_metadata(self) -> dict[str, Any]:
        """Called by Ray Serve, once: what its routers get to know of this replica."""
        return self._info.encode()

    def record_routing_stats(self) -> dict[str, Any]:
        """Called by Ray Serve from time to time: as `record_replica_metadata`, for what changes."""
        return encode_load(self._engine.load)

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
    """What is left of a call. `jobs`: the face's id and the number of unfinished choices of each job, by the replica's
    id."""

    def __init__(self, id: int, jobs: dict[int, tuple[int, int]], outbox: Outbox) -> None:
        self.id = id
        self._outbox = outbox
        self._ids = {number: job for number, (job, _) in jobs.items()}
        self._unfinished = {number: choices for number, (_, choices) in jobs.items()}
        self._ended = asyncio.Event()
        self._has_tokens = False
        self.has_cancelled = False
        if not jobs:
            self._ended.set()

    @property
    def has_ended(self) -> bool:
        return not self._unfinished

    async def wait(self) -> None:
        """Wait until all jobs have ended."""
        await self._ended.wait()

    def job_of(self, number: int) -> int:
        """Return the face's id of a job."""
        return self._ids[number]

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
            self._ended.set()
