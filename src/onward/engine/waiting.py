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
    """Sequences of one kind, brief or not, that wait, by request. Engine thread only, but for its length.

    `turns` numbers the turns of all lines that share it.
    """

    def __init__(self, turns: count[int], *, brief: bool) -> None:
        self.brief = brief
        self._turns = turns
        self._requests: OrderedDict[int, tuple[int, deque[Sequence]]] = OrderedDict()
        """Each request's turn and sequences, the least turn first."""
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[Sequence]:
        """All of them, in no order that counts."""
        for _, queue in self._requests.values():
            yield from queue

    @property
    def turn(self) -> float:
        """The turn of the line's first request: of several lines, the one with the least is served first."""
        return next((turn for turn, _ in self._requests.values()), math.inf)

    def add(self, sequence: Sequence) -> None:
        """Put a sequence behind the others of its request."""
        request = sequence.job.request
        if request not in self._requests:
            self._requests[request] = next(self._turns), deque()
        self._requests[request][1].append(sequence)
        self._count += 1

    def cancel(self, request: int) -> None:
        """Drop a request's sequences."""
        _, dropped = self._requests.pop(request, (0, ()))
        self._count -= len(dropped)

    def in_turn(self, may: Callable[[int], bool]) -> Iterator[Sequence]:
        """The first few of each request that `may` be admitted, the request whose turn it is first."""
        for request, (_, queue) in self._requests.items():
            if may(request):
                yield from islice(queue, LOOK_AHEAD)

    def take(self, sequence: Sequence) -> None:
        """Take a sequence out of the line; its request goes to the end. Ends any iteration of `in_turn`."""
        request = sequence.job.request
        _, queue = self._requests.pop(request)
        queue.remove(sequence)
        self._count -= 1
        if queue:
            self._requests[request] = next(self._turns), queue
