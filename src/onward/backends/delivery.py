"""The way of events from an engine's thread to the answers that wait for them on an event loop."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Collection
from typing import Protocol

from onward.engine.events import Event

MOST_BEHIND = 8
"""Steps that a loop may have left untaken before the engine's thread lets it have the interpreter."""
BLOCKED = 1000
"""Untaken steps from which on a loop counts as blocked by its owner, or stopped: it does not wait for the interpreter,
and other loops shall not wait for it."""
MOMENT = 0.001
"""Seconds that the engine's thread sleeps in each step between the two.

A thread that waits for the interpreter lock starts to wait anew whenever it was free for an instant, as it is many
times in a step: beside a model of half a millisecond a step a loop would hardly ever have it.
"""


class Receiver(Protocol):
    """An answer, as far as it is delivered to."""

    def feed(self, events: list[Event]) -> None:
        """Take the events of one step, on the receiver's event loop."""

    def abandon(self) -> None:
        """Nobody reads any more. Called on any thread."""


Step = Collection[tuple[Receiver, list[Event]]]
"""What one step of the engine made ready: each receiver once, with its events."""


class Delivery:
    """Feeds the answers of one event loop, by at most one call that has been posted and has not begun.

    Steps that end until then are fed by that call as well: a loop that falls behind a very fast model works through
    many at once, instead of one call a step, each of which would wait for the interpreter lock.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._posted: deque[Step] = deque()
        self._called = False

    def post(self, step: Step) -> None:
        """On the engine's thread. Returns at once, or where the loop is far behind, after a moment."""
        self._posted.append(step)
        if MOST_BEHIND < len(self._posted) < BLOCKED:
            time.sleep(MOMENT)
        if self._called and not self._loop.is_closed():
            return  # the call begins by taking back `_called`: it has yet to look for what was just posted
        self._called = True
        try:
            self._loop.call_soon_threadsafe(self._feed)
        except RuntimeError:  # the loop was closed under its answers: nobody is left to read them
            for receiver in {receiver for step in self._posted for receiver, _ in step}:
                receiver.abandon()
            self._posted.clear()

    def _feed(self) -> None:
        self._called = False
        for _ in range(len(self._posted)):  # not what comes meanwhile: others want to be served too
            for receiver, events in self._posted.popleft():
                receiver.feed(events)
