"""Run the work of a request until it is done or its client disconnects."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine

from onward.server.exchange import ClientDisconnected, Exchange


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
