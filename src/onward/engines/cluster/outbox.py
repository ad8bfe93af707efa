"""The events that a replica has for one listener: those of all its calls, several steps' in one frame."""

from __future__ import annotations

import asyncio
from contextlib import suppress

from onward.engine.events import Decoded, Event
from onward.engines.cluster.messages import encode_events, encode_frame

FRAME_SECONDS = 0.03
"""The least time between frames of tokens: each item of a stream has a cost of its own in Ray, whatever it holds."""
URGENT_SECONDS = 0.004
"""The least time before a frame with what clients wait for: a call's first token, its end, a failure."""
HEARTBEAT_SECONDS = 0.5
"""After which an empty frame is sent, so that the listener knows that the replica lives."""
IDLE_HEARTBEATS = 4
"""Without a call, after which the listener need not stay."""


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
        """Have an event sent. `is_first`: a client may wait for it."""
        self._events.setdefault(call, []).append(event)
        self._arrived.set()
        if is_first or not isinstance(event, Decoded) or event.finish_reason:
            self._urgent.set()

    def end(self, call: int) -> None:
        """Nothing more will come of a call."""
        self._ended.append(call)
        self._arrived.set()
        self._urgent.set()

    async def take(self) -> bytes:
        """Wait until something is due, and return it as a frame; an empty one after HEARTBEAT_SECONDS."""
        try:
            await asyncio.wait_for(self._arrived.wait(), HEARTBEAT_SECONDS)
        except TimeoutError:
            self._num_idle = 0 if self.num_calls else self._num_idle + 1
            return encode_frame([])
        await self._until_due()
        frame = [(call, encode_events(events)) for call, events in self._events.items()]
        frame += [(call, b"") for call in self._ended]
        self._events, self._ended = {}, []
        self._arrived.clear()
        self._urgent.clear()
        self._num_idle = 0
        self._last = asyncio.get_running_loop().time()
        return encode_frame(frame)

    async def _until_due(self) -> None:
        now = asyncio.get_running_loop().time
        if not self._urgent.is_set() and (left := self._last + FRAME_SECONDS - now()) > 0:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._urgent.wait(), left)
        if (left := self._last + URGENT_SECONDS - now()) > 0:
            await asyncio.sleep(left)
