"""Run the work of a request for as long as its client listens."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine

from onward.server.exchange import ClientGone, Exchange


async def while_connected(
    exchange: Exchange,
    work: Coroutine[object, object, None],
    keep_alive: float,
    comment: Callable[[], Awaitable[None]],
) -> None:
    """Await `work`; cancel it at once and raise ClientGone when the client leaves first.

    Awaits `comment` whenever nothing was sent for `keep_alive` seconds (0: never). The request's body must have
    been read. Starlette's own watch ends where streaming begins, hence this one.
    """
    running = asyncio.create_task(work)
    gone = asyncio.create_task(exchange.wait_until_gone())
    try:
        while not (running.done() or gone.done()):
            patience = max(keep_alive - exchange.silent_seconds, 0.001) if keep_alive else None
            done, _ = await asyncio.wait({running, gone}, timeout=patience, return_when="FIRST_COMPLETED")
            if not done and exchange.silent_seconds >= keep_alive:
                exchange.touch()
                await comment()
        if not exchange.ended:
            running.cancel()  # does nothing to work that failed: its error is raised below
        await asyncio.wait({running})
    finally:
        await _stop(running, gone)
    if running.cancelled():
        raise ClientGone
    running.result()


async def _stop(*tasks: asyncio.Task[None]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
