"""The streams of frames that arrive from replicas: one a replica, whatever the number of calls that it runs.

A replica that says nothing, not even that it lives, has been cut off: its calls go on elsewhere.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import aclosing, suppress
from typing import Any

from onward.cluster.messages import BrokenMessage, Route, decode_frame
from onward.cluster.transport import Refused, ReplicaLost

TICK_SECONDS = 0.5
SILENT_TICKS = 5
"""Ticks without a frame, in which several heartbeats were due, after which a replica is given up. A tick is a turn of
this event loop: one that is held up itself blames nobody."""
ROUTE_SECONDS = 2.5
"""How long a call may wait for a replica, before it is made again: Ray asks some whether they have room, and one that
was cut off does not say."""
END_SECONDS = 10.0
"""How long after the end of a call its last events may arrive."""

Listen = Callable[[str, Route], AsyncGenerator[bytes]]
"""Yields the frames of a replica, by its name, for the face of a route. Raises ReplicaLost."""


class Channels:
    """Sorts frames by calls. Used on one event loop.

    A call carries the name of the listener that its events are for, `Route.face`. It changes when a stream of frames
    breaks: what the old one had taken never arrives, and must not be waited for.
    """

    def __init__(self, listen: Listen) -> None:
        self._listen = listen
        self._face = secrets.token_hex(8)
        self._inboxes: dict[int, _Inbox] = {}
        self._channels: dict[tuple[str, str], _Channel] = {}
        """By face and replica."""
        self._clock: asyncio.Task[None] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    @property
    def silent(self) -> tuple[str, ...]:
        """The replicas that were given up and have not been heard of since."""
        return tuple({channel.replica for channel in self._channels.values() if channel.is_silent})

    async def stream(self, route: Route, call: Callable[[], Coroutine[Any, Any, None]]) -> AsyncGenerator[bytes]:
        """Make a call and yield the events that arrive for it, encoded. `call` runs it to its end at a replica, and
        raises ReplicaLost or Refused, as this does. Whoever routes it has `attach` called.
        """
        self._loop = asyncio.get_running_loop()
        route.face = self._face
        inbox = self._inboxes[route.call] = _Inbox(route)
        running = asyncio.ensure_future(_report(inbox, call))
        try:
            item = await self._first(inbox)
            while item:
                yield item
                item = await inbox.take()
        finally:
            running.cancel()
            del self._inboxes[route.call]

    def attach(self, call: int, replica: str) -> None:
        """A call was given to a replica: listen to it."""
        if (inbox := self._inboxes.get(call)) is None:
            return
        key = inbox.route.face, replica
        if (channel := self._channels.get(key)) is None:
            channel = self._channels[key] = _Channel(inbox.route.face, replica)
            channel.task = asyncio.ensure_future(self._read(channel))
        inbox.channel = channel
        if self._clock is None or self._clock.done():
            self._clock = asyncio.ensure_future(self._watch())

    def close(self) -> None:
        """Stop listening. Any thread."""
        if self._loop is not None:
            with suppress(RuntimeError):  # the loop has ended, and its tasks
                self._loop.call_soon_threadsafe(self._stop)

    def _stop(self) -> None:
        tasks = [channel.task for channel in self._channels.values()] + [self._clock]
        for task in tasks:
            if task is not None:
                task.cancel()

    async def _first(self, inbox: _Inbox) -> bytes:
        """Wait for the first item. It may wait long at a replica, but not for one."""
        with suppress(TimeoutError):
            return await asyncio.wait_for(inbox.take(), ROUTE_SECONDS)
        if inbox.channel is None:
            raise ReplicaLost("no replica took the call", is_strike=False)
        return await inbox.take()

    async def _read(self, channel: _Channel) -> None:
        """Sort the frames of a replica until it has none for this face, or is lost."""
        reason = "the stream of its frames has ended"
        try:
            while True:
                route = Route(0, (), 0, "", only=channel.replica, face=channel.face)
                async with aclosing(self._listen(channel.replica, route)) as frames:
                    async for frame in frames:
                        self._sort(channel, frame)
                if not self._calls_of(channel):  # it ends when there was no call for a while
                    del self._channels[channel.face, channel.replica]
                    return
        except ReplicaLost as lost:
            reason = str(lost)
        except BrokenMessage as broken:
            reason = str(broken)
        finally:
            if self._channels.pop((channel.face, channel.replica), None) is not None:
                if channel.face == self._face:
                    self._face = secrets.token_hex(8)
                self._lose(channel, ReplicaLost(reason))

    def _sort(self, channel: _Channel, frame: bytes) -> None:
        channel.num_ticks = 0
        channel.is_silent = False
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
        """All calls of a channel go on elsewhere."""
        for inbox in self._calls_of(channel):
            inbox.put(lost)


class _Channel:
    """What this process listens to. `num_ticks`: since the last frame."""

    def __init__(self, face: str, replica: str) -> None:
        self.face = face
        self.replica = replica
        self.task: asyncio.Task[None] | None = None
        self.num_ticks = 0
        self.is_silent = False


class _Inbox:
    """What has arrived for a call."""

    def __init__(self, route: Route) -> None:
        self.route = route
        self.channel: _Channel | None = None
        self._items: asyncio.Queue[bytes | Exception] = asyncio.Queue()

    def put(self, item: bytes | Exception) -> None:
        self._items.put_nowait(item)

    async def take(self) -> bytes:
        """Return the next item; nothing at the end. Raises what was put."""
        item = await self._items.get()
        if isinstance(item, Exception):
            raise item
        return item


async def _report(inbox: _Inbox, call: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Make a call. Its end arrives in a frame; a failure does not, and a frame can be lost with its stream."""
    try:
        await call()
        await asyncio.sleep(END_SECONDS)
        raise ReplicaLost("its last events did not arrive", is_strike=False)
    except (ReplicaLost, Refused) as failure:
        inbox.put(failure)
