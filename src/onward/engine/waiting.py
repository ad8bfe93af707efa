"""The waiting queues: sequences that have not run yet, by client and request."""

from __future__ import annotations

import math
from collections import OrderedDict, deque
from collections.abc import Iterator, KeysView
from itertools import count, islice

from onward.engine.rows import RowLedger
from onward.engine.sequence import Sequence

MAX_CANDIDATES_PER_REQUEST = 8
"""Waiting sequences of a request that are considered for admission, when the first ones wait for a shared prefix."""

Turn = tuple[float, float]
"""When it is a queue's turn, lowest first: the rows that the client of its first request holds, then a number."""
NEVER: Turn = (math.inf, math.inf)

_Requests = OrderedDict[int, tuple[int, deque[Sequence]]]
"""The turn and the sequences of each request of a client, in the order of turns."""


class WaitingQueue:
    """Waiting sequences of one kind, short or long. Engine thread only.

    Clients that hold fewer rows come first; requests of a client take turns. `turns` numbers the turns of requests,
    across all queues that share it.
    """

    def __init__(self, turns: count[int], rows: RowLedger, *, is_short: bool) -> None:
        self.is_short = is_short
        self._turns = turns
        self._rows = rows
        self._clients: dict[int, _Requests] = {}
        self._num_waiting = 0

    def __len__(self) -> int:
        return self._num_waiting

    def __iter__(self) -> Iterator[Sequence]:
        """Yield all sequences, in no particular order."""
        for requests in self._clients.values():
            for _, sequences in requests.values():
                yield from sequences

    @property
    def turn(self) -> Turn:
        """The turn of the first request, NEVER if there is none. The queue with the lowest turn is served first."""
        return min(map(self._turn_of, self._clients), default=NEVER)

    @property
    def clients(self) -> KeysView[int]:
        """The clients of all sequences."""
        return self._clients.keys()

    @property
    def first_client(self) -> int | None:
        """The client whose turn it is."""
        return min(self._clients, key=self._turn_of, default=None)

    def add(self, sequence: Sequence) -> None:
        """Append a sequence to those of its request."""
        requests = self._clients.setdefault(sequence.job.client, OrderedDict())
        request = sequence.job.request
        if request not in requests:
            requests[request] = next(self._turns), deque()
        requests[request][1].append(sequence)
        self._num_waiting += 1

    def cancel(self, request: int) -> None:
        """Remove a request's sequences."""
        for client, requests in list(self._clients.items()):
            if request in requests:
                self._num_waiting -= len(requests.pop(request)[1])
                if not requests:
                    del self._clients[client]

    def candidates(self) -> Iterator[Sequence]:
        """Yield the first few sequences of each request that may take another row, in the order of turns."""
        for client in sorted(self._clients, key=self._turn_of):
            for request, (_, sequences) in self._clients[client].items():
                if self._rows.has_room(request):
                    yield from islice(sequences, MAX_CANDIDATES_PER_REQUEST)

    def take(self, sequence: Sequence) -> None:
        """Remove a sequence, after which it is the turn of its client's next request. Invalidates iterators of
        `candidates`."""
        client, request = sequence.job.client, sequence.job.request
        requests = self._clients[client]
        _, sequences = requests.pop(request)
        sequences.remove(sequence)
        self._num_waiting -= 1
        if sequences:
            requests[request] = next(self._turns), sequences
        if not requests:
            del self._clients[client]

    def _turn_of(self, client: int) -> Turn:
        return self._rows.held_by(client), next(iter(self._clients[client].values()))[0]
