"""Waiting for other tasks, threads and processes: for a condition, never for a time.

A test passes on a slow, a busy and a very fast machine. The limit here only ends a test that would hang.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator

PATIENCE_SECONDS = 120.0
"""How long a test may wait before it counts as hanging: much longer than anything takes on the slowest machine."""


async def until(condition: Callable[[], object], what: str = "") -> None:
    """Wait in an event loop for a condition. `what` is for the message of a test that times out."""
    pauses = _pauses(what, longest=0.005)
    while not condition():
        await asyncio.sleep(next(pauses))


def wait_for(condition: Callable[[], object], what: str = "") -> None:
    """As `until`, from a thread without an event loop."""
    pauses = _pauses(what, longest=0.02)
    while not condition():
        time.sleep(next(pauses))


def _pauses(what: str, longest: float) -> Iterator[float]:
    """Yield seconds until the next check: short ones first. Raises AssertionError after PATIENCE_SECONDS."""
    deadline = time.monotonic() + PATIENCE_SECONDS  # an event loop's clock may be moved by its test
    pause = 0.0005
    while True:
        assert time.monotonic() < deadline, f"waited in vain for {what or 'a condition'}"
        yield pause
        pause = min(1.5 * pause, longest)
