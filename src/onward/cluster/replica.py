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

from onward.cluster.messages import ReplicaInfo, Route, decode_jobs, encode_events, encode_load
from onward.engine.client import EngineClient
from onward.engine.events import Decoded, Event, Failed
from onward.errors import EngineStopped

log = logging.getLogger("onward.engine")

FRAME_SECONDS = 0.03
"""How long events of a call are collected before they are sent: each item of a stream has a cost of its own in
Ray, whatever it holds. The first events of a call are sent at once."""
FRAME_TOKENS = 32
"""Tokens with which an item is sent earlier."""


class EngineReplica:
    """Serves calls from an engine that it owns and starts. Its methods run on one event loop, that of the first call;
    events arrive on a thread of the engine.

    Jobs get ids of the replica's own, because those of different faces are alike. `exit` ends the process when the
    engine has crashed for good: Ray starts another one.
    """

    def __init__(self, engine: EngineClient, info: ReplicaInfo, exit: Callable[[], None] = lambda: None) -> None:
        self._engine = engine
        self._info = info
        self._exit = exit
        self._ids = itertools.count(1)
        self._calls: dict[int, _Call] = {}
        """By the replica's id of each live job."""
        self._loop: asyncio.AbstractEventLoop | None = None
        engine.start(self._deliver)

    async def run(self, payload: bytes, route: Route) -> AsyncGenerator[bytes]:
        """Run the jobs of a call; yield their events, several steps' at a time. They are cancelled with the iterator.

        Raises BrokenMessage.
        """
        self._loop = asyncio.get_running_loop()
        jobs = decode_jobs(payload)
        request = next(self._ids)
        numbers = {next(self._ids): job for job in jobs}
        jobs_of_call = {number: (job.id, len(job.unfinished_choices)) for number, job in numbers.items()}
        call = _Call(route.call, jobs_of_call)
        self._calls.update(dict.fromkeys(numbers, call))
        try:
            self._engine.submit([replace(job, id=number, request=request) for number, job in numbers.items()])
            while events := await call.take():
                yield encode_events(events)
        except EngineStopped as stopped:
            yield encode_events([Failed(job.id, "stopped", stopped.message) for job in jobs])
        finally:
            for number in numbers:
                self._calls.pop(number, None)
            if not call.has_ended or call.has_cancelled:  # an engine may not have had that choice yet
                self._engine.cancel(request)

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
    """The events of one call that were not sent yet. `jobs`: the face's id and the number of unfinished choices of
    each job, by the replica's id."""

    def __init__(self, id: int, jobs: dict[int, tuple[int, int]]) -> None:
        self.id = id
        self._ids = {number: job for number, (job, _) in jobs.items()}
        self._unfinished = {number: choices for number, (_, choices) in jobs.items()}
        self._events: list[Event] = []
        self._num_tokens = 0
        self._arrived = asyncio.Event()
        self._is_due = asyncio.Event()
        self._is_first = True
        self.has_cancelled = False

    @property
    def has_ended(self) -> bool:
        return not self._unfinished

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
        self._events.append(replace_struct(event, job=self._ids[number]))
        self._arrived.set()
        if isinstance(event, Decoded):
            self._num_tokens += len(event.tokens)
            if event.finish_reason:
                self._end_choices(number, 1)
        elif isinstance(event, Failed):
            self._end_choices(number, self._unfinished[number])
        if self._num_tokens >= FRAME_TOKENS:
            self._is_due.set()

    def _end_choices(self, number: int, num_choices: int) -> None:
        self._unfinished[number] -= num_choices
        if self._unfinished[number] <= 0:
            del self._unfinished[number]
        if self.has_ended:
            self._arrived.set()
            self._is_due.set()

    async def take(self) -> list[Event]:
        """Wait for events, and return those that are due together; nothing after the last ones."""
        if self.has_ended and not self._events:
            return []
        await self._arrived.wait()
        if not self._is_first:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._is_due.wait(), FRAME_SECONDS)
        self._is_first = self._is_first and self._num_tokens == 0
        events, self._events = self._events, []
        self._num_tokens = 0
        self._arrived.clear()
        self._is_due.clear()
        return events
