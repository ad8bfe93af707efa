"""The slots of an address: how many choices are sent to it at a time, and which one is next."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from heapq import heappop, heappush
from itertools import count

Rank = tuple[bool, int]
"""Whether a choice is computed in the background, and its priority: the lowest is next."""
Waiting = tuple[Rank, int, asyncio.Future[None]]
"""Of a choice: its rank, its number in order of arrival, and what is done when it has a slot."""


class Slots:
    """A number of slots. A free one goes to the background only where nothing else waits; to the client that has the
    fewest, of its choices to the one with the lowest priority, and of these to the one that has waited the longest.
    Used on one event loop."""

    def __init__(self, number: int) -> None:
        self.number = number
        self._taken: Counter[int] = Counter()
        """By client."""
        self._waiting: dict[int, list[Waiting]] = {}
        """A heap for each client that waits."""
        self._numbers = count()

    @asynccontextmanager
    async def slot(self, client: int, rank: Rank) -> AsyncGenerator[None]:
        """Wait for a slot, and have it."""
        await self._take(client, rank)
        try:
            yield
        finally:
            self._give_back(client)

    async def _take(self, client: int, rank: Rank) -> None:
        if self._taken.total() < self.number:
            self._taken[client] += 1
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        heappush(self._waiting.setdefault(client, []), (rank, next(self._numbers), turn))
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self._give_back(client)
            raise

    def _give_back(self, client: int) -> None:
        self._taken[client] -= 1
        if not self._taken[client]:
            del self._taken[client]
        while self._waiting:
            next_client = min(self._waiting, key=self._order)
            heap = self._waiting[next_client]
            _, _, turn = heappop(heap)
            if not heap:
                del self._waiting[next_client]
            if not turn.done():
                self._taken[next_client] += 1
                turn.set_result(None)
                return

    def _order(self, client: int) -> tuple[bool, int, int]:
        """Return by what clients that wait are compared."""
        (is_background, _), number, _ = self._waiting[client][0]
        return is_background, self._taken[client], number
