"""Full garbage collections while they delay nobody: between requests.

A full collection traverses everything that waiting requests hold. With thousands of them it takes most of a second, in
which the event loop stands still (`python -m benchmarks.overload`). It frees little: a completion leaves no cycles, a
connection leaves a few.
"""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable

MAX_YOUNG_COLLECTIONS = 1_000
"""Collections of the middle generation after which a full one comes in any case: an overloaded server makes about five
per second, so that this is every few minutes."""
MIN_YOUNG_COLLECTIONS = 10
"""Those after which a full collection is worth its time when the server is idle, which is Python's default."""
POLL_SECONDS = 1.0


def delay_full_collections() -> None:
    """Let Python make a full collection only after MAX_YOUNG_COLLECTIONS."""
    youngest, middle, _ = gc.get_threshold()
    gc.set_threshold(youngest, middle, MAX_YOUNG_COLLECTIONS)


async def collect_when_idle(num_running: Callable[[], int]) -> None:
    """Make a full collection whenever one is due and no request runs. Never returns."""
    while True:
        await asyncio.sleep(POLL_SECONDS)
        if gc.get_count()[2] >= MIN_YOUNG_COLLECTIONS and not num_running():
            gc.collect()
