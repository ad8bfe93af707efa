"""Calls on their way to a replica: those that begin at about the same time go together.

A call of Ray costs each side one to two milliseconds of processor time, whatever it holds.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable
from contextlib import suppress
from typing import Any, Protocol

from onward.engines.cluster.messages import Calls, Route
from onward.engines.cluster.transport import Refused, ReplicaLost

BATCH_SECONDS = 0.02
"""The least time between two batches for a replica: about half a step of an engine. The first call does not wait."""
END_SECONDS = 10.0
"""How long after the end of all calls of a batch their last events may arrive."""


class Caller(Protocol):
    """Has the replica of a route do something: methods of `EngineReplica`. All raise ReplicaLost and Refused."""

    async def run(self, calls: Calls, route: Route) -> None:
        """Run calls until all have ended; cancel those that are left with the task."""
        ...

    async def cancel(self, calls: list[int], route: Route) -> None: ...


class Batches:
    """The calls of one face for one replica. Used on one event loop.

    `on_failure` receives each call that has failed, or whose end ought to have arrived, with ReplicaLost or Refused; it
    ignores those that nobody waits for.
    """

    def __init__(self, caller: Caller, route: Route, on_failure: Callable[[int, Exception], None]) -> None:
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
        """Cancel a call that may not have ended, as soon as this event loop has done what is due."""
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
