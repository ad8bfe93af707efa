"""Which of several engines of a model gets a job: where its prefix is cached, unless that one is busy. Pure.

That is prefix affinity with bounded load. A prompt's first block has a place on a ring of replicas (`Ring`: consistent
hashing, by which a replica that joins or leaves moves only its share of the keys), so that faces that know nothing of
each other send the same prefix to the same replica. Where that replica is full, the next on the ring takes the job
(consistent hashing with bounded loads, Mirrokni, Thorup and Zadimoghaddam, 2016), and the router remembers where each
prefix went, as the replicas' own caches do: the next prompt with that prefix goes to the replica that knows the longest
part of it.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections import OrderedDict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from copy import copy
from hashlib import blake2b
from itertools import chain
from math import ceil

BLOCK_TOKENS = 32
"""Tokens of a KV block: only whole blocks are shared by engines."""
MAX_KEYS = 32
"""Keys of one prompt: more would distinguish only prompts that agree in their first 1,024 tokens."""

NUM_POINTS = 64
"""Points of each replica on the ring: shares differ by about one eighth."""
FEW = 8
"""Up to this many replicas join or leave one by one. For more, the ring is rebuilt, which is then faster."""

LOAD_FACTOR = 1.25
"""How much above the mean load a replica may be before others are preferred."""
MIN_BOUND = 8
"""Load below which a replica is never full: an engine computes so many sequences in about the time of one."""
MAX_REMEMBERED = 65_536
"""Prefixes that are remembered: about 15 MB. Those used longest ago are forgotten, as in the replicas' own caches."""
MAX_HOLDERS = 4
"""Replicas that are remembered for a prefix."""


def prefix_keys(tokens: Sequence[int]) -> tuple[int, ...]:
    """Return a key of 64 bits for each beginning of a prompt that ends with a whole block, the shortest first.

    A prompt of less than a block has one key, of all its tokens. Equal keys mean equal beginnings, for all purposes of
    routing. Takes about 1 µs per key.
    """
    digest = blake2b(digest_size=8)
    keys: list[int] = []
    for start in range(0, min(len(tokens), MAX_KEYS * BLOCK_TOKENS), BLOCK_TOKENS):
        block = tokens[start : start + BLOCK_TOKENS]
        if len(block) < BLOCK_TOKENS and keys:
            break
        digest.update(array("q", block).tobytes())
        keys.append(int.from_bytes(digest.digest(), "little"))
    return tuple(keys) or (0,)


class Ring:
    """Replicas on a ring of 64-bit keys. Immutable. The same in every process that knows the same names.

    4,000 replicas take 4 MB and about a second to make; one that joins or leaves some milliseconds.
    """

    def __init__(self, names: Iterable[str]) -> None:
        self.names = frozenset(names)
        points = sorted((point, name) for name in self.names for point in _points(name))
        self._points = array("Q", (point for point, _ in points))
        self._owners = [name for _, name in points]

    def changed(self, names: Iterable[str]) -> Ring:
        """Return the ring of these names."""
        wanted = frozenset(names)
        if wanted == self.names:
            return self
        joined, left = wanted - self.names, self.names - wanted
        if len(joined) + len(left) > FEW:
            return Ring(wanted)
        ring = copy(self)
        ring.names, ring._points, ring._owners = wanted, self._points[:], self._owners[:]
        for name in left:
            ring._remove(name)
        for name in joined:
            for point in _points(name):
                index = bisect_left(ring._points, point)
                ring._points.insert(index, point)
                ring._owners.insert(index, name)
        return ring

    def walk(self, key: int) -> Iterator[str]:
        """Yield every replica once, in the order in which they follow the key."""
        start = bisect_right(self._points, key)
        seen: set[str] = set()
        for index in range(len(self._owners)):
            name = self._owners[(start + index) % len(self._owners)]
            if name not in seen:
                seen.add(name)
                yield name
            if len(seen) == len(self.names):
                return

    def _remove(self, name: str) -> None:
        for point in _points(name):
            index = bisect_left(self._points, point)
            while self._owners[index] != name:  # another one has the same point
                index += 1
            del self._points[index], self._owners[index]


def _points(name: str) -> list[int]:
    return [_point(f"{name}#{index}") for index in range(NUM_POINTS)]


def _point(text: str) -> int:
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "little")


class Router:
    """Chooses among named replicas of one model. Not thread-safe; does no I/O.

    Loads are numbers of choices: those that `begin` counted here, and what `reported` says of others.
    """

    def __init__(self, names: Iterable[str] = (), *, max_remembered: int = MAX_REMEMBERED) -> None:
        self._ring = Ring(names)
        self._own: dict[str, int] = {}
        self._others: dict[str, int] = {}
        self._peaks: dict[str, tuple[int, int]] = {}
        """The most that was counted here for a replica before its last report, and since."""
        self._rows: Mapping[str, int] = {}
        self._total = self._own_total = self._total_rows = 0
        """The loads of all replicas on the ring, what of them was counted here, and their rows."""
        self._holders: OrderedDict[int, tuple[str, ...]] = OrderedDict()
        self._max_remembered = max_remembered

    @property
    def names(self) -> tuple[str, ...]:
        """The replicas, in order."""
        return tuple(sorted(self._ring.names))

    def load(self, name: str) -> int:
        """The load of a replica, 0 for one that is not known."""
        return self._own.get(name, 0) + self._others.get(name, 0)

    def set_replicas(self, names: Iterable[str], rows: Mapping[str, int] | None = None) -> None:
        """Set the present replicas. Loads of those that stay are kept, and so is what `begin` counted for those
        that leave, until `end`: one that comes back still has it. `rows`: how many choices each computes at a time,
        where that is known of all.
        """
        self._rows = rows or {}
        self._total_rows = sum(self._rows.values())
        ring = self._ring.changed(names)
        if ring is self._ring:
            return
        self._ring = ring
        self._own = {name: load for name, load in self._own.items() if load}
        self._others = {name: load for name, load in self._others.items() if name in ring.names}
        self._peaks = {name: load for name, load in self._peaks.items() if name in ring.names}
        self._total, self._own_total = self._sums(ring.names)

    def reported(self, name: str, load: int) -> None:
        """A replica had this load in total at some time since the report before its last one; what exceeds the load
        counted here since then is that of others."""
        before = self.load(name)
        own, peaks = self._own.get(name, 0), self._peaks.get(name, (0, 0))
        self._others[name] = max(0, load - max(own, *peaks))
        self._peaks[name] = peaks[1], own
        if name in self._ring.names:
            self._total += self.load(name) - before

    def rank(
        self,
        keys: Collection[int],
        size: int = 1,
        eligible: Collection[str] | None = None,
        limit: int | None = None,
    ) -> list[str]:
        """Return the replicas for a job of `size` choices, the best one first, full ones last, least loaded first.

        `keys`: see `prefix_keys`. `eligible`: the replicas to choose from; None: all. `limit`: how many are
        needed; among thousands, one is found much sooner than all are ranked.
        """
        keys, known = tuple(keys), self._ring.names
        possible = known if eligible is None else known.intersection(eligible)
        if not possible:
            return []
        bound, own_bound = self._bounds(possible, size)
        has_free_rows = self._has_free_rows(possible, size)
        free: dict[str, None] = {}
        full: dict[str, None] = {}
        for name in chain(self._known_holders(keys, possible), self._ring.walk(keys[0])):
            if name in possible:
                load = self.load(name) + size
                has_room = load <= bound and self._own.get(name, 0) + size <= own_bound
                has_room = has_room and not (has_free_rows and load > max(size, self._rows[name]))
                (free if has_room else full).setdefault(name)
                if len(free) == limit:
                    return list(free)
        return [*free, *sorted(full, key=self.load)][:limit]

    def begin(self, name: str, keys: Collection[int], size: int = 1) -> None:
        """A job of `size` choices begins on a replica. To be followed by one `end`."""
        self._own[name] = self._own.get(name, 0) + size
        before_report, since = self._peaks.get(name, (0, 0))
        self._peaks[name] = before_report, max(self._own[name], since)
        if name in self._ring.names:
            self._total += size
            self._own_total += size
        for key in keys:
            before = self._holders.pop(key, ())
            self._holders[key] = (name, *(other for other in before if other != name))[:MAX_HOLDERS]
        while len(self._holders) > self._max_remembered:
            self._holders.popitem(last=False)

    def end(self, name: str, size: int = 1) -> None:
        """A job that began on a replica has ended there."""
        left = max(0, self._own.get(name, 0) - size)
        if name in self._ring.names:
            self._total += left - self._own.get(name, 0)
            self._own_total += left - self._own.get(name, 0)
        self._own[name] = left
        if not left:
            del self._own[name]

    def _bounds(self, possible: Collection[str], size: int) -> tuple[int, int]:
        """Return the loads above which a replica is full, in all and of what was counted here.

        The second keeps faces apart: between two reports all of them would send jobs to the same replica.
        """
        is_all = len(possible) == len(self._ring.names)
        total, own = (self._total, self._own_total) if is_all else self._sums(possible)
        share = (own + 1) / (total + 1)
        mean, own_mean = (total + size) / len(possible), (own + size) / len(possible)
        bound = max(MIN_BOUND, size, ceil(LOAD_FACTOR * mean))
        return bound, max(size, ceil(MIN_BOUND * share), ceil(LOAD_FACTOR * own_mean))

    def _has_free_rows(self, possible: Collection[str], size: int) -> bool:
        """Return whether some replica has rows for a job, so that it need not wait for those of another."""
        if not self._rows:
            return False
        if len(possible) == len(self._ring.names):
            return self._total + size <= self._total_rows
        return self._sums(possible)[0] + size <= sum(self._rows[name] for name in possible)

    def _sums(self, names: Iterable[str]) -> tuple[int, int]:
        """Return the load of replicas in all, and what of it was counted here."""
        own = others = 0
        for name in names:
            own += self._own.get(name, 0)
            others += self._others.get(name, 0)
        return own + others, own

    def _known_holders(self, keys: tuple[int, ...], eligible: Collection[str]) -> list[str]:
        """Return the replicas that have cached a part of a prompt, those with the longest part first."""
        found: dict[str, None] = {}
        for key in reversed(keys):
            for name in self._holders.get(key, ()):
                if name in eligible:
                    found.setdefault(name)
        return list(found)
