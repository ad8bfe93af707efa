"""Requests of a run of many: what to do when the queue is full, or the server is busy, restarts or is lost."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

from onward.cli.output.terminal import note
from onward.cli.source.base import ConnectionFailed, Document, RemoteError, Source
from onward.errors import EngineStopped, Overloaded

FULL_QUEUE_DELAY_SECONDS = 0.2
"""How long a request waits if the queue of this process is full; running requests make room."""
BUSY_STATUSES = (429, 502, 503)
"""Statuses of a server that is overloaded or temporarily down; they say nothing about the request."""
MAX_SILENCE_SECONDS = 600.0
"""The run ends if a busy or lost server completes nothing for this long; a single completion may take that long."""
MAX_LOST = 2
"""A request is given up after its connection was lost this many times although the server answered in between. Each
time it was sent as often as the source retries."""
RECONNECT_SECONDS = 2.0
"""How long a request waits for a server that has completed something of this run and can no longer be reached."""


class RequestLost(Exception):
    """The server closed the connection whenever a request was sent, and answered others."""


class Patience:
    """Completes the requests of one run, of which many run at a time on one event loop."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._num_running = 0
        self._last_finished = time.monotonic()
        """When the last request finished; before that, when the run started."""
        self._has_finished = False
        self._has_waited = False

    def finished(self) -> None:
        """Note that a request has finished: the server is making progress."""
        self._last_finished, self._has_finished = time.monotonic(), True

    async def complete(self, send: Callable[[], Awaitable[Document]]) -> Document:
        """Return what `send` returns, which is tried again while this process's queue is full or the server is busy.

        Raises RequestLost, and what `send` raises where another attempt is pointless.
        """
        num_lost = 0
        self._num_running += 1
        try:
            while True:
                try:
                    return await send()
                except EngineStopped:
                    raise
                except Overloaded:
                    if self._num_running == 1:
                        raise
                    delay = FULL_QUEUE_DELAY_SECONDS
                except RemoteError as problem:
                    delay = self._retry_delay(problem)
                except ConnectionFailed as problem:
                    if await self._server_answers():
                        num_lost += 1
                        if num_lost == MAX_LOST:
                            raise RequestLost(str(problem)) from None
                        delay = RECONNECT_SECONDS
                    else:
                        delay = self._retry_delay(problem)
                await asyncio.sleep(delay)
        finally:
            self._num_running -= 1

    async def _server_answers(self) -> bool:
        """Return whether the server answers a request other than the one whose connection was lost."""
        answers = getattr(self._source, "answers", None)
        return answers is not None and await answers()

    def _retry_delay(self, problem: RemoteError | ConnectionFailed) -> float:
        """Return the seconds until the next attempt. Raises the problem if another attempt is pointless."""
        delay = self._reconnect_delay() if isinstance(problem, ConnectionFailed) else _busy_delay(problem)
        if delay is None or time.monotonic() - self._last_finished > MAX_SILENCE_SECONDS:
            raise problem
        if not self._has_waited:
            self._has_waited = True
            note(f"{problem} Waiting; requests will be retried.")
        return delay

    def _reconnect_delay(self) -> float | None:
        """None for a server that has not completed anything: its address may be wrong."""
        return RECONNECT_SECONDS if self._has_finished else None


def _busy_delay(problem: RemoteError) -> float | None:
    """Return the seconds that a server which is busy or temporarily down asks for; None for other errors."""
    return problem.retry_in_seconds if problem.status in BUSY_STATUSES else None
