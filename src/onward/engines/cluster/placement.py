"""Which replica computes a flight: prefix affinity with bounded load, as this face and the replicas know the loads."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager

from onward.engines.cluster.flight import Flight
from onward.engines.cluster.members import Member
from onward.routing.router import Router


class Placement:
    """Not thread-safe."""

    def __init__(self) -> None:
        self._router = Router()
        self._reports: Mapping[str, int] = {}
        """The number of the last report of each replica."""

    def update(self, members: Mapping[str, Member]) -> None:
        """These are the replicas now."""
        for name, member in members.items():
            if self._reports.get(name) != member.report:
                self._router.reported(name, member.load.num_running + member.load.num_waiting)
        self._reports = {name: member.report for name, member in members.items()}
        rows = {name: member.info.engine.max_rows for name, member in members.items()}
        self._router.set_replicas(members, rows)

    def choose(self, flight: Flight, able: Collection[str], silent: Collection[str]) -> str:
        """Return the best of the replicas that are `able` to compute a flight: at least one, of the last update. Those
        that it has lost, and those that are silent, come into question only where there is no other."""
        heard = set(able) - set(silent)
        possible = heard - flight.lost_at or heard or able
        return self._router.rank(flight.keys, flight.num_choices, possible, 1)[0]

    @contextmanager
    def load_of(self, flight: Flight, replica: str) -> Iterator[None]:
        """Count a flight as the load of a replica until the end of the with statement."""
        size = flight.num_choices
        self._router.begin(replica, flight.keys, size)
        try:
            yield
        finally:
            self._router.end(replica, size)

    def load(self, replica: str) -> int:
        """The load of a replica: choices."""
        return self._router.load(replica)
