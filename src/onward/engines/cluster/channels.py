"""What passes between this process and replicas: one channel per replica, whatever the number of calls that it runs.

Calls that begin at about the same time go out together: a call of Ray costs each side one to two milliseconds of
processor time, whatever it holds. The events of all calls come back in one stream of frames. A replica that sends
nothing, not even that it is alive, has been cut off: its calls are resumed elsewhere.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterable
from contextlib import aclosing, suppress
from typing import Any, Protocol

from onward.engines.cluster.messages import Calls, ReplicaRoute, decode_frame
from onward.engines.cluster.transport import Refused, ReplicaLost
from onward.ipc.frames import BrokenMessage

BATCH_SECONDS = 0.02
"""The least time between two batches for a replica: about half a step of an engine. The first call does not wait."""
END_SECONDS = 10.0
"""How long after the end of all calls of a batch their last events may arrive."""

TICK_SECONDS = 0.5
SILENT_TICKS = 5
"""Ticks without a frame, in which several heartbeats were due, after which a replica is given up. A tick is a turn of
this event loop: an event loop that is delayed itself gives up no replica."""
LOST_SECONDS = 10.0
"""How long a replica whose frames ended gets no new calls: the cluster takes seconds to notice that a machine is gone,
and a call to it would wait for that."""


class Caller(Protocol):
    """Calls methods of `EngineReplica` on the replica of a route. All raise ReplicaLost and Refused."""

    async def run(self, calls: Calls, route: ReplicaRoute) -> None:
        """Run calls until all have ended; cancel those that are left with the task."""
        ...

    async def cancel(self, calls: list[int], route: ReplicaRoute) -> None: ...


class Batches:
    """The calls of one face for one replica. Used on one event loop.

    `on_failure` receives each call that has failed, or whose end ought to have arrived, with ReplicaLost or Refused; it
    ignores those that nobody waits for.
    """

    def __init__(self, caller: Caller, route: ReplicaRoute, on_failure: Callable[[int, Exception], None]) -> None:
        self._caller = caller
        self._route = route
        self._on_failure = on_failure
        self._begun: dict[int, bytes] = {}
        self._cancelled: list[int] = []
        self._last = 0.0
        self._tasks: set[asyncio.Task[None]] = set()

    def begin(self, call: int, payload: bytes) -> None:
        """Send a call, soon."""
        if not self._begun:
            loop = asyncio.get_running_loop()
            loop.call_at(max(loop.time(), self._last + BATCH_SECONDS), self._send)
        self._begun[call] = payload

    def cancel(self, call: int) -> None:
        """Cancel a call that may not have ended, once this event loop has processed what is due."""
        if self._begun.pop(call, None) is None:
            if not self._cancelled:
                asyncio.get_running_loop().call_soon(self._send_cancelled)
            self._cancelled.append(call)

    def close(self) -> None:
        """Cancel all calls."""
        self._begun.clear()
        self._cancelled.clear()
        for task in list(self._tasks):
            task.cancel()

    def _send(self) -> None:
        calls, self._begun = self._begun, {}
        if calls:
            self._last = asyncio.get_running_loop().time()
            self._start(self._run(list(calls.items())))

    def _send_cancelled(self) -> None:
        calls, self._cancelled = self._cancelled, []
        if calls:
            self._start(self._cancel(calls))

    def _start(self, coroutine: Coroutine[Any, Any, None]) -> None:
        task = asyncio.ensure_future(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _run(self, calls: Calls) -> None:
        """Have a batch run. The ends of its calls arrive in frames; failures do not, and a frame can be lost."""
        names = [call for call, _ in calls]
        try:
            await self._caller.run(calls, self._route)
        except (ReplicaLost, Refused) as failure:
            self._fail(names, failure)
        else:
            calls.clear()
            await asyncio.sleep(END_SECONDS)
            self._fail(names, ReplicaLost("its last events did not arrive", is_strike=False))

    async def _cancel(self, calls: list[int]) -> None:
        with suppress(ReplicaLost, Refused):
            await self._caller.cancel(calls, self._route)

    def _fail(self, calls: Iterable[int], failure: Exception) -> None:
        for call in calls:
            self._on_failure(call, failure)


class Listener(Caller, Protocol):
    """A `Caller` that listens too."""

    def listen(self, route: ReplicaRoute) -> AsyncGenerator[bytes]:
        """Yield the frames of a replica for a face. Raises ReplicaLost."""
        ...


class Channels:
    """Sorts frames by calls. Used on one event loop."""

    def __init__(self, replicas: Listener) -> None:
        self._replicas = replicas
        self._inboxes: dict[int, _Inbox] = {}
        """By call."""
        self._channels: dict[str, _Channel] = {}
        """By replica."""
        self._lost: dict[str, float] = {}
        """When replicas were lost that have not sent anything since, on the monotonic clock."""
        self._clock: asyncio.Task[None] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    @property
    def silent(self) -> tuple[str, ...]:
        """The replicas that were given up, or lost recently, and have not sent anything since."""
        given_up = {name for name, channel in self._channels.items() if channel.is_silent}
        return tuple(given_up | self._recently_lost().keys())

    def _recently_lost(self) -> dict[str, float]:
        oldest = time.monotonic() - LOST_SECONDS
        return {name: when for name, when in self._lost.items() if when > oldest}

    async def stream(self, call: int, replica: str, payload: bytes) -> AsyncGenerator[bytes]:
        """Have a replica run a call, and yield the events that arrive for it, encoded. Raises ReplicaLost, Refused."""
        channel = self._open(replica)
        inbox = self._inboxes[call] = _Inbox(channel)
        channel.batches.begin(call, payload)
        try:
            while item := await inbox.take():
                yield item
        finally:
            del self._inboxes[call]
            if not inbox.has_ended and self._channels.get(replica) is channel:
                channel.batches.cancel(call)

    def close(self) -> None:
        """Stop listening, and cancel all calls. Any thread."""
        if self._loop is not None:
            with suppress(RuntimeError):  # the loop has ended, and its tasks
                self._loop.call_soon_threadsafe(self._stop)

    def _stop(self) -> None:
        if self._clock is not None:
            self._clock.cancel()
        for channel in list(self._channels.values()):
            channel.close()

    def _open(self, replica: str) -> _Channel:
        """Return the channel of a replica, a new one if there is none."""
        self._loop = asyncio.get_running_loop()
        if (channel := self._channels.get(replica)) is None:
            channel = self._channels[replica] = _Channel(self._replicas, replica, self._fail)
            channel.task = asyncio.ensure_future(self._read(channel))
        if self._clock is None or self._clock.done():
            self._clock = asyncio.ensure_future(self._watch())
        return channel

    async def _read(self, channel: _Channel) -> None:
        """Sort the frames of a replica until it has none for this face, or is lost."""
        reason = "the stream of its frames has ended"
        try:
            while True:
                async with aclosing(self._replicas.listen(channel.route)) as frames:
                    async for frame in frames:
                        self._sort(channel, frame)
                if not self._calls_of(channel):  # it ends when there was no call for a while
                    del self._channels[channel.route.replica]
                    return
        except ReplicaLost as lost:
            reason = str(lost)
        except BrokenMessage as broken:
            reason = str(broken)
        finally:
            # What a broken stream had taken never arrives: the next channel has another face.
            if self._channels.get(channel.route.replica) is channel:
                del self._channels[channel.route.replica]
                self._lost = {**self._recently_lost(), channel.route.replica: time.monotonic()}
                self._lose(channel, ReplicaLost(reason))
                channel.batches.close()

    def _sort(self, channel: _Channel, frame: bytes) -> None:
        channel.num_ticks = 0
        channel.is_silent = False
        self._lost.pop(channel.route.replica, None)
        for call, events in decode_frame(frame):
            if (inbox := self._inboxes.get(call)) is not None:
                inbox.put(events)

    async def _watch(self) -> None:
        """Count the time without frames while there are channels."""
        while self._channels:
            await asyncio.sleep(TICK_SECONDS)
            for channel in list(self._channels.values()):
                channel.num_ticks += 1
                if channel.num_ticks >= SILENT_TICKS:
                    channel.is_silent = True
                    seconds = SILENT_TICKS * TICK_SECONDS
                    self._lose(channel, ReplicaLost(f"it has been silent for {seconds:g} s", is_strike=False))

    def _calls_of(self, channel: _Channel) -> list[_Inbox]:
        return [inbox for inbox in self._inboxes.values() if inbox.channel is channel]

    def _lose(self, channel: _Channel, lost: ReplicaLost) -> None:
        """All calls of a channel are resumed elsewhere."""
        for inbox in self._calls_of(channel):
            inbox.put(lost)

    def _fail(self, call: int, failure: Exception) -> None:
        if (inbox := self._inboxes.get(call)) is not None:
            inbox.put(failure)


class _Channel:
    """What this process sends to a replica and receives from it, as a face of its own. `num_ticks`: since the last
    frame."""

    def __init__(self, replicas: Listener, replica: str, on_failure: Callable[[int, Exception], None]) -> None:
        self.route = ReplicaRoute(replica, face=secrets.token_hex(8))
        self.batches = Batches(replicas, self.route, on_failure)
        self.task: asyncio.Task[None] | None = None
        self.num_ticks = 0
        self.is_silent = False

    def close(self) -> None:
        """Stop listening, and cancel all calls."""
        self.batches.close()
        if self.task is not None:
            self.task.cancel()


class _Inbox:
    """What has arrived for a call. `has_ended`: there is nothing to cancel."""

    def __init__(self, channel: _Channel) -> None:
        self.channel = channel
        self.has_ended = False
        self._items: asyncio.Queue[bytes | Exception] = asyncio.Queue()

    def put(self, item: bytes | Exception) -> None:
        self.has_ended = self.has_ended or not item
        self._items.put_nowait(item)

    async def take(self) -> bytes:
        """Return the next item; nothing at the end. Raises an exception that was put."""
        item = await self._items.get()
        if isinstance(item, Exception):
            raise item
        return item
