"""The waiting queues: sequences that have not run yet, by client, priority and request."""

from __future__ import annotations

import math
from collections import OrderedDict, deque
from collections.abc import Iterator, KeysView
from itertools import count, islice
from typing import NamedTuple

from onward.engine.job import Job
from onward.engine.rows import RowLedger
from onward.engine.sequence import Sequence

MAX_CANDIDATES_PER_REQUEST = 8
"""Waiting sequences of a request that are considered for admission, when the first ones wait for a shared prefix."""


class Turn(NamedTuple):
    """When it is a queue's turn, lowest first. `num_rows` are those that the client of its first request holds, by its
    weight; `is_behind`: that client has a request of a lower priority number in another queue."""

    is_background: bool
    num_rows: float
    is_behind: bool
    number: float


NEVER = Turn(True, math.inf, True, math.inf)

_Requests = OrderedDict[int, tuple[int, deque[Sequence]]]
"""The turn and the sequences of each request of a client with one priority, in the order of turns."""


class WaitingQueue:
    """Waiting sequences of one kind, short or long. Engine thread only.

    Clients that hold fewer rows come first, those of background jobs last of all; of a client's requests those with the
    lowest priority number, and among equal ones they take turns. Priorities of different clients are not compared.
    `turns` numbers the turns of requests, across all queues that share it; `queues` are those queues, this one
    included.
    """

    def __init__(self, turns: count[int], rows: RowLedger, queues: list[WaitingQueue], *, is_short: bool) -> None:
        self.is_short = is_short
        self._turns = turns
        self._rows = rows
        self._queues = queues
        self._clients: dict[int, dict[int, _Requests]] = {}
        """By client and priority. None is empty."""
        self._num_waiting = 0

    def __len__(self) -> int:
        return self._num_waiting

    def __iter__(self) -> Iterator[Sequence]:
        """Yield all sequences, in no particular order."""
        for priorities in self._clients.values():
            for requests in priorities.values():
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
    def first_job(self) -> Job | None:
        """The job whose turn it is, None if there is none."""
        if not self._clients:
            return None
        client = min(self._clients, key=self._turn_of)
        _, sequences = next(iter(self._clients[client][int(self.first_priority(client))].values()))
        return sequences[0].job

    def first_priority(self, client: int) -> float:
        """The lowest priority number of the client's requests; infinity if it has none here."""
        return min(self._clients.get(client, ()), default=math.inf)

    def add(self, sequence: Sequence) -> None:
        """Append a sequence to those of its request."""
        priorities = self._clients.setdefault(sequence.job.client, {})
        requests = priorities.setdefault(sequence.job.priority, OrderedDict())
        request = sequence.job.request
        if request not in requests:
            requests[request] = next(self._turns), deque()
        requests[request][1].append(sequence)
        self._num_waiting += 1

    def cancel(self, request: int) -> None:
        """Remove a request's sequences."""
        for client, priorities in list(self._clients.items()):
            for priority, requests in list(priorities.items()):
                if request in requests:
                    self._num_waiting -= len(requests.pop(request)[1])
                    self._drop_empty(client, priority)

    def candidates(self) -> Iterator[Sequence]:
        """Yield the first few sequences of each request that may take another row, in the order of turns."""
        for client in sorted(self._clients, key=self._turn_of):
            for _, requests in sorted(self._clients[client].items()):
                for request, (_, sequences) in requests.items():
                    if self._rows.has_room(request):
                        yield from islice(sequences, MAX_CANDIDATES_PER_REQUEST)

    @property
    def has_interactive(self) -> bool:
        """Whether a sequence that is not a background job's may take another row."""
        return any(not sequence.job.is_background for sequence in islice(self.candidates(), 1))

    def take(self, sequence: Sequence) -> None:
        """Remove a sequence, after which it is the turn of its client's next request of that priority. Invalidates
        iterators of `candidates`."""
        client, request = sequence.job.client, sequence.job.request
        requests = self._clients[client][sequence.job.priority]
        _, sequences = requests.pop(request)
        sequences.remove(sequence)
        self._num_waiting -= 1
        if sequences:
            requests[request] = next(self._turns), sequences
        self._drop_empty(client, sequence.job.priority)

    def _turn_of(self, client: int) -> Turn:
        priority = self.first_priority(client)
        is_behind = any(queue.first_priority(client) < priority for queue in self._queues)
        number, sequences = next(iter(self._clients[client][int(priority)].values()))
        return Turn(sequences[0].job.is_background, self._rows.held_by(client), is_behind, number)

    def _drop_empty(self, client: int, priority: int) -> None:
        priorities = self._clients[client]
        if not priorities[priority]:
            del priorities[priority]
        if not priorities:
            del self._clients[client]
