"""The slots of an address: how many choices are sent to it at a time, and which one is next."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from heapq import heappop, heappush
from itertools import count
from typing import NamedTuple

Rank = tuple[bool, int]
"""Whether a choice is computed in the background, and its priority: the lowest is next."""


class WaitingChoice(NamedTuple):
    """A choice that waits. They are compared by rank, then by number."""

    rank: Rank
    number: int
    """In order of arrival."""
    turn: asyncio.Future[bool]
    """Whether it has a slot, or was sent away."""
    job: object
    weight: int
    """That of its client, whose share of the slots is in proportion to it."""


class Slots:
    """A number of slots. A free one goes to the background only where nothing else waits; to the client that has the
    fewest by its weight, of its choices to the one with the lowest priority, and of these to the one that has waited
    the longest. Used on one event loop."""

    def __init__(self, number: int) -> None:
        self.number = number
        self._taken: Counter[int] = Counter()
        """By client."""
        self._waiting: dict[int, list[WaitingChoice]] = {}
        """A heap for each client that waits."""
        self._numbers = count()

    @asynccontextmanager
    async def slot(self, client: int, rank: Rank, job: object = None, weight: int = 1) -> AsyncGenerator[bool]:
        """Wait for a slot, and have it. Yields False, without one, where the choice was sent away."""
        has_slot = await self._take(client, rank, job, weight)
        try:
            yield has_slot
        finally:
            if has_slot:
                self._give_back(client)

    def send_away(self, job: object = None) -> None:
        """Let the choices of a job, or all, wait no longer."""
        for heap in self._waiting.values():
            for each in heap:
                if not each.turn.done() and (job is None or each.job is job):
                    each.turn.set_result(False)

    def first_of(self, may_leave: Callable[[object], bool]) -> object | None:
        """Return the job of the choice that would be next if only those of some jobs waited, None if none does."""
        heads: dict[int, WaitingChoice] = {}
        for client, heap in self._waiting.items():
            if found := [each for each in heap if not each.turn.done() and may_leave(each.job)]:
                heads[client] = min(found)
        if not heads:
            return None
        return heads[min(heads, key=lambda client: self._order(client, heads[client]))].job

    async def _take(self, client: int, rank: Rank, job: object, weight: int) -> bool:
        if self._taken.total() < self.number:
            self._taken[client] += 1
            return True
        turn: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        heappush(self._waiting.setdefault(client, []), WaitingChoice(rank, next(self._numbers), turn, job, weight))
        try:
            return await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled() and turn.result():
                self._give_back(client)
            raise

    def _give_back(self, client: int) -> None:
        self._taken[client] -= 1
        if not self._taken[client]:
            del self._taken[client]
        while self._waiting:
            next_client = min(self._waiting, key=lambda client: self._order(client, self._waiting[client][0]))
            heap = self._waiting[next_client]
            turn = heappop(heap).turn
            if not heap:
                del self._waiting[next_client]
            if not turn.done():
                self._taken[next_client] += 1
                turn.set_result(True)
                return

    def _order(self, client: int, head: WaitingChoice) -> tuple[bool, float, int]:
        """Return by what clients that wait are compared, each by the choice that is its next."""
        is_background, _ = head.rank
        return is_background, self._taken[client] / head.weight, head.number
