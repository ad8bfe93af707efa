"""Delivers events from an engine client's thread to the answers that wait for them on an event loop."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Collection
from typing import Protocol

from onward.engine.events import Event

MAX_PENDING_STEPS = 8
"""Pending steps of a loop above which the engine's thread yields the interpreter lock to it."""
BLOCKED_PENDING_STEPS = 1000
"""Pending steps from which a loop counts as blocked or stopped: it is not waiting for the interpreter lock, and
yielding would only delay other loops."""
YIELD_SECONDS = 0.001
"""How long the engine's thread sleeps per step between the two limits.

A thread that waits for the interpreter lock starts its wait again whenever another thread took the lock in between, as
the engine does many times per step: with a model whose steps take half a millisecond, a loop would hardly ever run.
"""


class Receiver(Protocol):
    """Receives events: an answer."""

    def feed(self, events: list[Event]) -> None:
        """Process the events of one step. Called on the receiver's event loop."""

    def abandon(self) -> None:
        """Cancel what is running: the receiver's event loop is closed. Called on any thread."""


class EventLoop(Protocol):
    """What a delivery needs of an asyncio event loop. Both methods may be called on any thread."""

    def call_soon_threadsafe(self, callback: Callable[[], None], /) -> object:
        """Schedule a call. Raises RuntimeError when the loop is closed."""

    def is_closed(self) -> bool: ...


Step = Collection[tuple[Receiver, list[Event]]]
"""The events of one engine step, as a pair per receiver."""


class Delivery:
    """Feeds events to the answers of one event loop. At most one call is scheduled on the loop at any time.

    Steps that are posted before that call runs are delivered by it: a loop that has fallen behind a very fast model
    processes many steps per call, instead of waiting for the interpreter lock for each.
    """

    def __init__(self, loop: EventLoop) -> None:
        self._loop = loop
        self._posted: deque[Step] = deque()
        self._is_scheduled = False

    def post(self, step: Step) -> None:
        """Post a step. Called on the engine's thread. Returns at once, or after YIELD_SECONDS if the loop is behind."""
        self._posted.append(step)
        if MAX_PENDING_STEPS < len(self._posted) < BLOCKED_PENDING_STEPS:
            time.sleep(YIELD_SECONDS)
        if self._is_scheduled and not self._loop.is_closed():
            return  # the scheduled call has not begun, as that resets `_is_scheduled`: it will see what was just posted
        self._is_scheduled = True
        try:
            self._loop.call_soon_threadsafe(self._feed)
        except RuntimeError:  # the loop was closed while answers were running
            for receiver in {receiver for step in self._posted for receiver, _ in step}:
                receiver.abandon()
            self._posted.clear()

    def _feed(self) -> None:
        self._is_scheduled = False
        for _ in range(len(self._posted)):  # without steps posted meanwhile, so that other callbacks can run
            for receiver, events in self._posted.popleft():
                receiver.feed(events)
