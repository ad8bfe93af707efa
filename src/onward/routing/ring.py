"""Consistent hashing: a replica that joins or leaves moves only its share of the keys."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator
from hashlib import blake2b

NUM_POINTS = 64
"""Points of each replica on the ring: shares differ by about one eighth."""


class Ring:
    """Replicas on a ring of 64-bit keys. Immutable. The same in every process that knows the same names."""

    def __init__(self, names: Iterable[str]) -> None:
        self.names = tuple(sorted(set(names)))
        points = sorted((_point(f"{name}#{index}"), name) for name in self.names for index in range(NUM_POINTS))
        self._points = [point for point, _ in points]
        self._owners = [name for _, name in points]

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


def _point(text: str) -> int:
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "little")
