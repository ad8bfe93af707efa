"""Completions in progress: each runs until it is done or its client disconnects, and a drain waits for all of them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from onward.api.reply import Reply, forward
from onward.backends.base import Backend
from onward.completions.request import CompletionRequest
from onward.server.exchange import ClientDisconnected, Exchange
from onward.server.metrics import Metrics, accept
from onward.server.sink import ConnectionSink


class Running:
    """A count that can be waited for. Belongs to one event loop."""

    def __init__(self) -> None:
        self.count = 0
        self._is_idle = asyncio.Event()
        self._is_idle.set()

    def begin(self) -> None:
        """Count one more."""
        self.count += 1
        self._is_idle.clear()

    def end(self) -> None:
        """Count one less."""
        self.count -= 1
        if not self.count:
            self._is_idle.set()

    @contextmanager
    def one(self) -> Iterator[None]:
        """Count one for as long as the context lasts."""
        self.begin()
        try:
            yield
        finally:
            self.end()

    async def wait_until_idle(self) -> None:
        """Return when the count is zero."""
        await self._is_idle.wait()


async def run_while_connected(
    exchange: Exchange,
    work: Coroutine[object, object, None],
    keep_alive_seconds: float,
    send_keep_alive: Callable[[], Awaitable[None]],
) -> None:
    """Await `work`; cancel it and raise ClientDisconnected as soon as the client disconnects.

    Calls `send_keep_alive` whenever nothing was sent for `keep_alive_seconds` (0: never). The request's body must
    have been read before, because this reads the connection to notice the disconnect. Re-raises what `work` raises.
    """
    running = asyncio.create_task(work)
    disconnected = asyncio.create_task(exchange.wait_until_disconnected())
    try:
        while not (running.done() or disconnected.done()):
            timeout = max(keep_alive_seconds - exchange.idle_seconds, 0.001) if keep_alive_seconds else None
            done, _ = await asyncio.wait({running, disconnected}, timeout=timeout, return_when="FIRST_COMPLETED")
            if not done and exchange.idle_seconds >= keep_alive_seconds:
                exchange.reset_idle_timer()
                await send_keep_alive()
        if not exchange.response_complete:
            running.cancel()  # has no effect on work that failed: its error is raised below
        await asyncio.wait({running})
    finally:
        await _cancel(running, disconnected)
    if running.cancelled():
        raise ClientDisconnected
    running.result()


async def _cancel(*tasks: asyncio.Task[None]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


@dataclass(frozen=True, slots=True)
class Runner:
    """Runs completions: the only way from a request to an answer here. `running` counts what a drain waits for."""

    backend: Backend
    metrics: Metrics
    running: Running
    keep_alive_seconds: float

    async def complete(self, exchange: Exchange, request: CompletionRequest, reply: Reply) -> None:
        """Complete a request, and send what `reply` writes. Raises ApiError, RequestRejected, ClientDisconnected."""
        exchange.record.stream = request.stream
        run = _CompletionRun(self, exchange, request, reply)
        with self.running.one():
            await run_while_connected(exchange, run.run(), self.keep_alive_seconds, run.send_keep_alive)


class _CompletionRun:
    def __init__(self, runner: Runner, exchange: Exchange, request: CompletionRequest, reply: Reply) -> None:
        self._runner = runner
        self._exchange = exchange
        self._request = request
        self._reply = reply
        self._sink = ConnectionSink(exchange, reply)
        self._is_accepted = False

    async def run(self) -> None:
        """Complete and send. Cancelling it cancels the completion, during prefill too."""
        runner = self._runner
        answer = await accept(runner.backend, self._request, self._exchange, runner.metrics)
        self._reply.begin(answer)
        self._is_accepted = True
        await forward(answer, self._reply, self._sink)

    async def send_keep_alive(self) -> None:
        """Send what the format has for it on an idle stream, once the request was accepted."""
        if self._reply.is_stream and self._is_accepted:
            await self._sink.events.send_keep_alive()
