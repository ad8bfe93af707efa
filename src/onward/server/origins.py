"""Guards a server against web pages that are open in a browser on its machine.

A page of any site may send requests to http://127.0.0.1:8000, and by DNS rebinding (a name of the page's own site that
begins to resolve to 127.0.0.1) even as if this server were that site. Browsers state in Origin which site a page is
from, and in Host the name that they resolved; pages can change neither. Programs that are not browsers send no Origin.
"""

from __future__ import annotations

import ipaddress
import re
from functools import lru_cache

from onward.errors import Forbidden
from onward.server.addresses import is_loopback
from onward.server.exchange import HttpExchange
from onward.settings import Settings

_AUTHORITY = re.compile(r"(?P<name>[a-z0-9_.-]*|\[(?P<ipv6>[0-9a-f:.]+)\])(:[0-9]{1,5})?")
"""`HOST:PORT` as browsers send it: names that are not ASCII arrive in punycode, IPv6 addresses in brackets, no zone."""
MAX_AUTHORITY_CHARACTERS = 300
"""Of a name at most 253 (RFC 1035), and its port."""
LOCAL_NAMES = frozenset({"localhost", "host.docker.internal", "host.containers.internal"})
"""Names that no public DNS server resolves: this machine, as itself and its containers call it."""


class OriginGuard:
    """Refuses requests for foreign hosts and from foreign pages, and says by CORS which pages may read responses.

    Where there are keys, or on other than loopback addresses (which only --no-auth allows without keys), pages of every
    origin may send requests, as OpenAI allows: the key protects the server, not the origin.
    """

    def __init__(self, settings: Settings, *, requires_key: bool) -> None:
        self._guards_pages = not requires_key and is_loopback(settings.host) and "*" not in settings.allowed_origin
        self._guards_hosts = bool(settings.allowed_host) or self._guards_pages
        self._hosts = frozenset({settings.host.strip("[]").lower(), *map(_name_in, settings.allowed_host)})
        self._origins = frozenset(settings.allowed_origin)

    def check(self, exchange: HttpExchange) -> None:
        """Add the CORS headers of the response. Raises Forbidden."""
        hosts = exchange.headers_named(b"host")
        if self._guards_hosts:
            self._check_hosts(hosts)
        readable_by = "*"
        if self._guards_pages:
            exchange.headers.append((b"vary", b"origin"))
            readable_by = self._check_page(exchange, hosts) or "*"
        exchange.headers.append((b"access-control-allow-origin", readable_by.encode("latin-1")))

    def _check_page(self, exchange: HttpExchange, hosts: list[str]) -> str | None:
        """Return the origin of the page that sent a request, None if it was not a page. Raises Forbidden."""
        origins = exchange.headers_named(b"origin")
        for origin in origins:
            if not self._allows_page(origin.lower(), hosts):
                raise Forbidden(_foreign_page(origin))
        if not origins and _is_hidden_request_of_a_page(exchange):
            raise Forbidden(_foreign_page("another site"))
        return origins[0] if origins else None

    def _check_hosts(self, hosts: list[str]) -> None:
        """Raise Forbidden for a host that is neither this machine nor allowed. Browsers always send one."""
        for host in hosts:
            name = _name_in(host)
            if name == "" or (name is not None and (_is_local(name) or name in self._hosts)):
                continue
            raise Forbidden(
                f"This server is not for requests to the host {_shown(host)}. If it should be, start it with "
                f"--allowed-host {_shown(name or host)}, or with API keys (--api-key-file)."
            )

    def _allows_page(self, origin: str, hosts: list[str]) -> bool:
        """Return whether pages of an origin may send requests: own pages, those of this machine, and those allowed.

        Schemes other than HTTP are those of installed programs: extensions, editors, desktop applications. Origin
        `null` is a file on this machine, but any site can make a frame that has it.
        """
        if origin in self._origins:
            return True
        scheme, separator, authority = origin.partition("://")
        if not separator:
            return False
        if scheme not in ("http", "https") or (authority and authority in map(str.lower, hosts)):
            return True
        name = _name_in(authority)
        return name is not None and _is_local(name)


@lru_cache(256)
def _is_local(name: str) -> bool:
    """`name` as _name_in returns it."""
    return name in LOCAL_NAMES or name.endswith(".localhost") or is_loopback(name)


def _name_in(authority: str) -> str | None:
    """Return the host in `HOST:PORT` in lower case, an IPv6 address without brackets; "" where it is empty, None where
    it is malformed."""
    return None if len(authority) > MAX_AUTHORITY_CHARACTERS else _parsed(authority)


@lru_cache(256)
def _parsed(authority: str) -> str | None:
    """As _name_in. What it remembers is short: anybody can send as many names as they like."""
    found = _AUTHORITY.fullmatch(authority.strip().lower())
    if found is None:
        return None
    if found["ipv6"] is None:
        return found["name"].removesuffix(".")
    try:
        return str(ipaddress.IPv6Address(found["ipv6"]))
    except ValueError:
        return None


def _is_hidden_request_of_a_page(exchange: HttpExchange) -> bool:
    """Return whether a page of another site sent this without an Origin, as images and scripts are requested.

    Links that a person follows are not such requests.
    """
    site = (exchange.header(b"sec-fetch-site") or "").lower()
    return site == "cross-site" and (exchange.header(b"sec-fetch-mode") or "").lower() != "navigate"


def _foreign_page(origin: str) -> str:
    remedy = "" if origin == "another site" else f" start it with --allowed-origin {_shown(origin)}, or"
    return (
        f"This server accepts no requests from web pages of {_shown(origin)}. If it should,{remedy} "
        "start it with API keys (--api-key-file)."
    )


def _shown(text: str) -> str:
    """Return what a client sent, at most 100 characters of it, without control characters."""
    return "".join(one for one in text[:100] if one.isprintable())
