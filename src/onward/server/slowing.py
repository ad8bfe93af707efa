"""Slows down clients that send wrong keys, by address. Bounded memory; valid generated keys are never slowed."""

from __future__ import annotations

import functools
import ipaddress
import time
from collections import OrderedDict
from collections.abc import Callable

BURST = 10
"""Wrong keys of an address that are answered at once."""
RATE_PER_SECOND = 2.0
"""Wrong keys of an address that are answered after these."""
MAX_DELAY_SECONDS = 2.0
"""Wrong keys that would have to wait for longer are refused; that bounds the answers that wait, to four per address."""
MAX_ADDRESSES = 10_000
MAX_KNOWN_KEYS = 16
"""Keys that an address has used with success and that are remembered."""


class WrongKeys:
    """Token buckets by address, the least recently used forgotten first. Belongs to one event loop.

    Where more wrong keys arrive from an address than may wait, keys that a person chose are not even compared, except
    for those that were valid there before: otherwise the difference between 200 and 429 would reveal a short key at any
    rate. Those that `onward key new` made are compared always: nobody finds one of 2¹⁹² by trying.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._tokens: OrderedDict[str, tuple[float, float]] = OrderedDict()
        """Tokens left, negative for those that wait, and when they were counted."""
        self._known: OrderedDict[str, OrderedDict[bytes, None]] = OrderedDict()
        """Digests of the keys that were valid, by address."""

    def delay(self, address: str) -> float:
        """Count a wrong key; return the seconds after which it may be answered."""
        address = network(address)
        left = max(self._left(address) - 1, -RATE_PER_SECOND * MAX_DELAY_SECONDS - 1)  # a flood is forgiven in seconds
        self._tokens[address] = (left, self._clock())
        self._tokens.move_to_end(address)
        if len(self._tokens) > MAX_ADDRESSES:
            self._tokens.popitem(last=False)
        return max(0.0, -left / RATE_PER_SECOND)

    def seconds_until_accepted(self, address: str) -> float:
        """Return for how long wrong keys of this address are refused: 0 where one would be answered."""
        after = (1 - self._left(network(address))) / RATE_PER_SECOND
        return max(0.0, after - MAX_DELAY_SECONDS)

    def remember(self, address: str, digest: bytes) -> None:
        """Record that a key was valid at an address."""
        known = self._known.setdefault(network(address), OrderedDict())
        known[digest] = None
        known.move_to_end(digest)
        if len(known) > MAX_KNOWN_KEYS:
            known.popitem(last=False)
        self._known.move_to_end(network(address))
        if len(self._known) > MAX_ADDRESSES:
            self._known.popitem(last=False)

    def remembers(self, address: str, digest: bytes) -> bool:
        """Return whether a key with this digest was valid at this address."""
        return digest in self._known.get(network(address), ())

    def _left(self, address: str) -> float:
        left, counted_at = self._tokens.get(address, (float(BURST), 0.0))
        return min(float(BURST), left + (self._clock() - counted_at) * RATE_PER_SECOND)


@functools.lru_cache(4096)
def network(address: str) -> str:
    """Return what one client can choose freely as one: an IPv6 address by its first 64 bits, all others as they are."""
    try:
        parsed = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if parsed.version == 4:
        return address
    mapped = parsed.ipv4_mapped
    return str(mapped) if mapped else str(ipaddress.ip_network((int(parsed), 64), strict=False))
