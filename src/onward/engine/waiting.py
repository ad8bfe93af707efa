"""Who waits to be admitted: lines in which requests take turns."""

from __future__ import annotations

import math
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator
from itertools import count, islice

from onward.engine.sequence import Sequence

LOOK_AHEAD = 8
"""How many waiting sequences of one request are considered when those before them wait for a shared prefix."""


class WaitingLine:
    """Sequences of one kind that wait, by request. Engine thread only, but for its length.

    `is_for` says whether a sequence is of this kind; `turns` numbers the turns of all lines that share it.
    """

    def __init__(self, is_for: Callable[[Sequence], bool], turns: count[int]) -> None:
        self.is_for = is_for
        self._turns = turns
        self._queues: OrderedDict[int, deque[Sequence]] = OrderedDict()
        self._turn_of: dict[int, int] = {}
        """By request; in the same order as the queues."""
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[Sequence]:
        """All of them, in no order that counts."""
        for queue in self._queues.values():
            yield from queue

    @property
    def turn(self) -> float:
        """The turn of the line's first request: of several lines, the one with the least is served first."""
        return self._turn_of[next(iter(self._queues))] if self._queues else math.inf

    def add(self, sequence: Sequence) -> None:
        """Put a sequence behind the others of its request."""
        request = sequence.job.request
        if request not in self._queues:
            self._queues[request] = deque()
            self._turn_of[request] = next(self._turns)
        self._queues[request].append(sequence)
        self._count += 1

    def cancel(self, request: int) -> int:
        """Drop a request's sequences; gives how many those were."""
        dropped = len(self._queues.pop(request, ()))
        self._turn_of.pop(request, None)
        self._count -= dropped
        return dropped

    def in_turn(self, may: Callable[[int], bool]) -> Iterator[Sequence]:
        """The first few of each request that `may` be admitted, the request whose turn it is first."""
        for request, queue in self._queues.items():
            if may(request):
                yield from islice(queue, LOOK_AHEAD)

    def take(self, sequence: Sequence) -> None:
        """Take a sequence out of the line; its request goes to the end. Ends any iteration of `in_turn`."""
        request = sequence.job.request
        queue = self._queues[request]
        queue.remove(sequence)
        self._count -= 1
        if queue:
            self._queues.move_to_end(request)
            self._turn_of[request] = next(self._turns)
        else:
            self.cancel(request)
