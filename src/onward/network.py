"""How to reach other servers, according to the environment: through which proxy, by which certificate authorities.

httpx2 reads the same variables, but NO_PROXY only with commas, and it fails before the first request at a proxy that no
request would use, with an error that does not name the variable. So the choice of proxies is made here.
"""

from __future__ import annotations

import importlib.util
import ipaddress
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, Self
from urllib.parse import SplitResult, urlsplit

from onward.errors import SetupError

if TYPE_CHECKING:
    import ssl

    import httpx2

_PORTS = {"http": 80, "https": 443}
_SOCKS = ("socks5", "socks5h")


class Proxy(NamedTuple):
    """The URL of a proxy, and the variable that names it."""

    url: str
    variable: str


def without_secrets(url: str) -> str:
    """Return a URL for messages and logs: without user, password and query, which may be keys. "a URL" where nothing
    of it is certain."""
    try:
        parts = urlsplit(url)
        host = parts.netloc.rpartition("@")[2]
        if not parts.hostname:
            return "a URL"
    except ValueError:
        return "a URL"
    return f"{parts.scheme}://{host}{parts.path}"


def is_http_url(text: str) -> bool:
    """Return whether a text is an http or https URL with a host, and a port, if any, that there can be. httpx ignores
    ports that are none, such as +80, at which urllib raises ValueError."""
    import httpx2

    try:
        host, parts = httpx2.URL(text).host, urlsplit(text)
        return bool(host) and parts.scheme in _PORTS and parts.port != 0
    except (httpx2.InvalidURL, ValueError):
        return False


def proxy_of(url: str) -> Proxy | None:
    """Return the proxy that the environment, or the system, names for a URL; None: it is reached directly.

    Raises SetupError for one that cannot be used; the message does not show it, since it may contain a password.
    """
    from urllib.request import getproxies

    try:
        parts, proxies = urlsplit(url), getproxies()
        if _is_excluded(parts, proxies.get("no", "")):
            return None
    except ValueError:
        return None  # no URL: whoever uses it says so
    scheme = parts.scheme if proxies.get(parts.scheme) else "all"
    stated = proxies.get(scheme, "").strip()
    if not stated:
        return None
    variable = _variable(f"{scheme}_proxy", os.environ)
    proxy = stated if "://" in stated else f"http://{stated}"
    _check_proxy(proxy, variable)
    return Proxy(proxy, variable)


def _variable(name: str, environ: Mapping[str, str]) -> str:
    return next((each for each in (name, name.upper()) if environ.get(each)), "the settings of the system")


def _check_proxy(proxy: str, variable: str) -> None:
    """Raise SetupError for what is not the URL of a proxy, or needs a package that is not installed."""
    try:
        parts = urlsplit(proxy)
        is_usable = bool(parts.hostname) and parts.port != 0 and proxy.isascii() and proxy.isprintable()
    except ValueError:
        is_usable = False
    if not is_usable or " " in proxy or parts.scheme not in (*_PORTS, *_SOCKS):
        raise SetupError(f"The proxy in {variable} is not a URL such as http://HOST:PORT: correct it, or unset it.")
    if parts.scheme in _SOCKS and importlib.util.find_spec("socksio") is None:
        raise SetupError(
            f"The proxy in {variable} speaks SOCKS, for which a package is missing: install it with `pip install "
            "'httpx2[socks]'`, or name an HTTP proxy."
        )


def _is_excluded(url: SplitResult, excluded: str) -> bool:
    """Return whether NO_PROXY names the host of a URL, as curl reads it: names with their subdomains, addresses,
    networks, each perhaps with a port, or `*`."""
    host = (url.hostname or "").lower().rstrip(".")
    port = url.port or _PORTS.get(url.scheme)
    return any(_names(entry, host, port) for entry in excluded.replace(",", " ").split())


def _names(entry: str, host: str, port: int | None) -> bool:
    if entry == "*":
        return True
    address = _address(host)
    try:
        if "/" in entry and "://" not in entry:
            network = ipaddress.ip_network(entry.replace("[", "").replace("]", ""), strict=False)
            return address is not None and address in network
        if (named := _address(entry.strip("[]"))) is not None:
            return named == address
        parts = urlsplit(entry if "://" in entry else f"//{entry}")
        if parts.port not in (None, port):
            return False
    except ValueError:
        return False  # names nothing
    if not (name := (parts.hostname or "").removeprefix("*").strip(".")):
        return False
    if (named := _address(name)) is not None:
        return named == address
    return host == name or host.endswith("." + name)


def _address(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(text)
    except ValueError:
        return None


def trusted_certificates() -> ssl.SSLContext:
    """Return a context that trusts what SSL_CERT_FILE or SSL_CERT_DIR says, else the authorities of the system.

    Raises SetupError for a file or folder that cannot be used.
    """
    if file := os.environ.get("SSL_CERT_FILE"):
        return _context("SSL_CERT_FILE", cafile=file)
    if folders := os.environ.get("SSL_CERT_DIR"):
        return _context("SSL_CERT_DIR", capath=folders)
    import httpx2

    return httpx2.create_ssl_context(trust_env=False)  # by truststore, or as OpenSSL finds them on Linux


def _context(variable: str, cafile: str | None = None, capath: str | None = None) -> ssl.SSLContext:
    import ssl

    try:
        for folder in capath.split(os.pathsep) if capath else ():
            os.scandir(folder).close()  # OpenSSL says nothing of a folder that does not exist
        return ssl.create_default_context(cafile=cafile, capath=capath)
    except (OSError, ValueError) as error:  # SSLError is an OSError
        reason = "it contains no certificates" if isinstance(error, ssl.SSLError) else getattr(error, "strerror", None)
        raise SetupError(
            f"{variable} is set to {cafile or capath!r}, which cannot be used ({reason or error}): correct it, or "
            "unset it."
        ) from None


def route_in_words(url: str) -> str:
    """Return " through the proxy of VARIABLE" for messages about a URL that could not be reached; "" without one."""
    proxy = proxy_of(url)
    return "" if proxy is None else f" through the proxy of {proxy.variable}"


class _Route(NamedTuple):
    """What the transport of a request depends on."""

    proxy: str
    is_encrypted: bool

    @property
    def options(self) -> dict[str, Any]:
        """The arguments of an httpx2 transport. Raises SetupError."""
        import ssl

        import httpx2

        proxy = None
        if self.proxy:
            is_encrypted = self.proxy.startswith("https://")
            proxy = httpx2.Proxy(self.proxy, ssl_context=trusted_certificates() if is_encrypted else None)
        # Otherwise httpx2 would read the certificates for requests that need none.
        verify = trusted_certificates() if self.is_encrypted else ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        return {"verify": verify, "proxy": proxy}


def _route(url: str) -> _Route:
    proxy = proxy_of(url)
    return _Route(proxy.url if proxy else "", url.startswith("https://"))


class Transport:
    """An httpx2.BaseTransport that follows the environment for each request.

    Raises SetupError for a request that needs what cannot be used.
    """

    def __init__(self) -> None:
        self._made: dict[_Route, httpx2.HTTPTransport] = {}

    def handle_request(self, request: httpx2.Request) -> httpx2.Response:
        import httpx2

        route = _route(str(request.url))
        if route not in self._made:
            self._made[route] = httpx2.HTTPTransport(**route.options)
        return self._made[route].handle_request(request)

    def close(self) -> None:
        for each in self._made.values():
            each.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class AsyncTransport:
    """An httpx2.AsyncBaseTransport, as `Transport`."""

    def __init__(self, limits: httpx2.Limits) -> None:
        self._limits = limits
        self._made: dict[_Route, httpx2.AsyncHTTPTransport] = {}

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        import httpx2

        route = _route(str(request.url))
        if route not in self._made:
            self._made[route] = httpx2.AsyncHTTPTransport(**route.options, limits=self._limits)
        return await self._made[route].handle_async_request(request)

    async def aclose(self) -> None:
        for each in self._made.values():
            await each.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()
