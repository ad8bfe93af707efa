"""Counts the completions in progress, for which a drain waits."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager


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
