"""Prefix affinity with bounded load: a job goes where its prefix is cached, unless that replica has too much to do.

A prompt's first block has a place on a ring of replicas (`Ring`), so that faces that know nothing of each other send
the same prefix to the same replica. Where that replica is full, the next on the ring takes the job (consistent hashing
with bounded loads, Mirrokni, Thorup and Zadimoghaddam, 2016), and the router remembers where each prefix went, as the
replicas' own caches do: the next prompt with that prefix goes to the replica that knows the longest part of it.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Iterable
from math import ceil

from onward.routing.ring import Ring

LOAD_FACTOR = 1.25
"""How much above the mean load a replica may be before others are preferred."""
MIN_BOUND = 8
"""Load below which a replica is never full: an engine computes so many sequences in about the time of one."""
MAX_REMEMBERED = 65_536
"""Prefixes that are remembered: about 15 MB. Those used longest ago are forgotten, as in the replicas' own caches."""
MAX_HOLDERS = 4
"""Replicas that are remembered for a prefix."""


class Router:
    """Chooses among named replicas of one model. Not thread-safe; does no I/O.

    Loads are numbers of choices: those that `begin` counted here, and what `reported` says of others.
    """

    def __init__(self, names: Iterable[str] = (), *, max_remembered: int = MAX_REMEMBERED) -> None:
        self._ring = Ring(names)
        self._own: dict[str, int] = dict.fromkeys(self._ring.names, 0)
        self._others: dict[str, int] = {}
        self._holders: OrderedDict[int, tuple[str, ...]] = OrderedDict()
        self._max_remembered = max_remembered

    @property
    def names(self) -> tuple[str, ...]:
        """The replicas, in order."""
        return self._ring.names

    def load(self, name: str) -> int:
        """The load of a replica, 0 for one that is not known."""
        return self._own.get(name, 0) + self._others.get(name, 0)

    def set_replicas(self, names: Iterable[str]) -> None:
        """These are the replicas now. Loads of those that stay are kept, and so is what `begin` counted for those
        that leave, until `end`: one that comes back still has it."""
        ring = Ring(names)
        if ring.names == self._ring.names:
            return
        self._ring = ring
        known = set(ring.names)
        self._own = {name: load for name, load in self._own.items() if load or name in known}
        self._own = dict.fromkeys(known, 0) | self._own
        self._others = {name: load for name, load in self._others.items() if name in known}

    def reported(self, name: str, load: int) -> None:
        """A replica has that load in all; what exceeds the load counted here is that of others."""
        self._others[name] = max(0, load - self._own.get(name, 0))

    def rank(self, keys: Collection[int], size: int = 1, eligible: Collection[str] | None = None) -> list[str]:
        """Return the replicas for a job of `size` choices, the best one first, full ones last, least loaded first.

        `keys`: see `prefix_keys`. `eligible`: the replicas that come into question; None: all.
        """
        keys = tuple(keys)
        names = [name for name in self._ring.walk(keys[0]) if eligible is None or name in eligible]
        if not names:
            return []
        total = sum(map(self.load, names))
        bound = max(MIN_BOUND, size, ceil(LOAD_FACTOR * (total + size) / len(names)))
        order = dict.fromkeys([*self._known_holders(keys, set(names)), *names])
        free = [name for name in order if self.load(name) + size <= bound]
        full = sorted((name for name in order if self.load(name) + size > bound), key=self.load)
        return [*free, *full]

    def begin(self, name: str, keys: Collection[int], size: int = 1) -> None:
        """A job of `size` choices begins on a replica. To be followed by one `end`."""
        self._own[name] = self._own.get(name, 0) + size
        for key in keys:
            before = self._holders.pop(key, ())
            self._holders[key] = (name, *(other for other in before if other != name))[:MAX_HOLDERS]
        while len(self._holders) > self._max_remembered:
            self._holders.popitem(last=False)

    def end(self, name: str, size: int = 1) -> None:
        """A job that began on a replica has ended there."""
        left = self._own.get(name, 0) - size
        if left > 0 or name in self._ring.names:
            self._own[name] = max(0, left)
        else:
            self._own.pop(name, None)

    def _known_holders(self, keys: tuple[int, ...], eligible: set[str]) -> list[str]:
        """Return the replicas that have cached a part of a prompt, those with the longest part first."""
        found: dict[str, None] = {}
        for key in reversed(keys):
            for name in self._holders.get(key, ()):
                if name in eligible:
                    found.setdefault(name)
        return list(found)
