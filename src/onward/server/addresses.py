"""Addresses of clients: behind which proxies (`X-Forwarded-For`), in which network, on this machine or not.

uvicorn's middleware for proxies is not used: it accepts text that is not an address as the client's, does not recognise
a proxy's IPv4 address on an IPv6 socket, trusts X-Forwarded-Proto as well, and parses a list of any length.
"""

from __future__ import annotations

import functools
import ipaddress
from collections.abc import Iterable

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
MAX_HOPS = 20
"""The longest chain of trusted proxies that is followed. A client may send a header of thousands of addresses."""


class TrustedProxies:
    """Finds the address of a client. `networks` are those of `--trusted-proxy`; without any, no header is believed.

    Each proxy appends the address that it was called from, so only the end of the list is certain: what is before the
    rightmost address that is not a trusted proxy may have been made up by the client.
    """

    def __init__(self, networks: Iterable[str] = ()) -> None:
        self._networks = tuple(ipaddress.ip_network(each) for each in networks)

    def client(self, peer: str, forwarded_for: list[str]) -> str:
        """Return the address of the client: `peer`, or the one that trusted proxies report for it.

        `forwarded_for` has the values of all `X-Forwarded-For` headers, in order. Where every address is a trusted
        proxy, or the next one is malformed, that is the last proxy of the chain.
        """
        if not self._networks or not forwarded_for or not self._trusts(_address(peer)):
            return peer
        found = peer
        for text in reversed(",".join(forwarded_for).rsplit(",", MAX_HOPS)[-MAX_HOPS:]):
            address = _address(_without_port(text.strip()))
            if address is None:
                return found
            found = str(address)
            if not self._trusts(address):
                return found
        return found

    def _trusts(self, address: Address | None) -> bool:
        return address is not None and any(address in network for network in self._networks)


def _address(text: str) -> Address | None:
    """Parse an address; an IPv4 address of an IPv6 socket as itself. Returns None for anything else."""
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        return None
    mapped = address.ipv4_mapped if address.version == 6 else None
    return mapped or address


def _without_port(text: str) -> str:
    """Return ADDRESS of ADDRESS:PORT and [ADDRESS]:PORT, as some proxies write them."""
    if text.startswith("["):
        return text[1:].partition("]")[0]
    return text.partition(":")[0] if text.count(":") == 1 else text


@functools.lru_cache(4096)
def network(address: str) -> str:
    """Return the network whose addresses one client can choose from freely: the first 64 bits of an IPv6 address; any
    other address itself."""
    try:
        parsed = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if parsed.version == 4:
        return address
    mapped = parsed.ipv4_mapped
    return str(mapped) if mapped else str(ipaddress.ip_network((int(parsed), 64), strict=False))


def is_loopback(host: str) -> bool:
    """Return whether only this machine can reach `host`."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host.lower() == "localhost"
