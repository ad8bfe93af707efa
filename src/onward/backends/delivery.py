"""Delivers events from an engine's thread to the answers that wait for them on an event loop."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Collection
from typing import Protocol

from onward.engine.events import Event

MAX_PENDING_STEPS = 8
"""Steps that may be pending on a loop before the engine's thread yields the interpreter lock to it."""
BLOCKED_PENDING_STEPS = 1000
"""Pending steps from which on a loop counts as blocked by its owner, or stopped: it does not wait for the interpreter
lock, and other loops must not wait for it."""
YIELD_SECONDS = 0.001
"""How long the engine's thread sleeps per step between the two.

A thread that waits for the interpreter lock starts to wait anew whenever it was free for an instant, as it is many
times per step: beside a model with steps of half a millisecond a loop would hardly ever get it.
"""


class Receiver(Protocol):
    """What events are delivered to: an answer."""

    def feed(self, events: list[Event]) -> None:
        """Take the events of one step, on the receiver's event loop."""

    def abandon(self) -> None:
        """The receiver's event loop is closed. Called on any thread."""


class EventLoop(Protocol):
    """What a delivery needs of an asyncio event loop. Both methods may be called on any thread."""

    def call_soon_threadsafe(self, callback: Callable[[], None], /) -> object:
        """Schedule a call. Raises RuntimeError when the loop is closed."""

    def is_closed(self) -> bool: ...


Step = Collection[tuple[Receiver, list[Event]]]
"""The events of one engine step: each receiver once, with its events."""


class Delivery:
    """Feeds the answers of one event loop, by at most one scheduled call that has not begun.

    Steps that end before it begins are fed by the same call: a loop that falls behind a very fast model works through
    many at once, instead of one call per step, each of which would wait for the interpreter lock.
    """

    def __init__(self, loop: EventLoop) -> None:
        self._loop = loop
        self._posted: deque[Step] = deque()
        self._called = False

    def post(self, step: Step) -> None:
        """Post a step. Called on the engine's thread; returns at once, or where the loop is far behind, after
        YIELD_SECONDS."""
        self._posted.append(step)
        if MAX_PENDING_STEPS < len(self._posted) < BLOCKED_PENDING_STEPS:
            time.sleep(YIELD_SECONDS)
        if self._called and not self._loop.is_closed():
            return  # the call begins by resetting `_called`, so it has yet to look for what was just posted
        self._called = True
        try:
            self._loop.call_soon_threadsafe(self._feed)
        except RuntimeError:  # the loop was closed under its answers
            for receiver in {receiver for step in self._posted for receiver, _ in step}:
                receiver.abandon()
            self._posted.clear()

    def _feed(self) -> None:
        self._called = False
        for _ in range(len(self._posted)):  # not what arrives meanwhile: other callbacks wait for the loop
            for receiver, events in self._posted.popleft():
                receiver.feed(events)
