"""Who may ask: API keys, and the refusal to listen to the world without them."""

from __future__ import annotations

import base64
import hashlib
import hmac
import ipaddress
import logging
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path

from onward import values
from onward.errors import AuthenticationFailed, SetupError
from onward.server.exchange import Exchange
from onward.settings import Settings

log = logging.getLogger("onward.server")

NO_KEY = (
    "You didn't provide an API key. You need to provide your API key in an Authorization header using Bearer auth "
    "(i.e. Authorization: Bearer YOUR_KEY), or as the password field (with blank username) if you're accessing "
    "the API from your browser and are prompted for a username and password. You can obtain an API key "
    "from the operator of this server."
)  # fmt: skip


class Guard:
    """Lets in who presents one of `keys`; everybody where there are none. Keeps digests, not keys."""

    def __init__(self, keys: Iterable[str]) -> None:
        self._digests = [_digest(key) for key in keys]

    @property
    def asks(self) -> bool:
        """Whether a key is needed."""
        return bool(self._digests)

    def check(self, exchange: Exchange) -> None:
        """Raise AuthenticationFailed unless the request carries a valid key, in any place clients put one."""
        if not self._digests:
            return
        presented = list(_presented(exchange))
        if sum(self._knows(key) for key in presented):
            return
        if not presented:
            raise AuthenticationFailed(NO_KEY)
        raise AuthenticationFailed(
            f"Incorrect API key provided: {masked(presented[0])}. "
            "You can obtain an API key from the operator of this server.",
            code="invalid_api_key",
        )

    def _knows(self, key: str) -> bool:
        """Compare with every key, always: the time taken tells neither which one matched nor how far."""
        digest = _digest(key)
        return sum(hmac.compare_digest(digest, known) for known in self._digests) > 0


def _digest(key: str) -> bytes:
    return hashlib.blake2b(key.encode(), digest_size=32).digest()


def _presented(exchange: Exchange) -> Iterator[str]:
    scheme, _, credentials = (exchange.header(b"authorization") or "").partition(" ")
    match scheme.lower():
        case "bearer" if credentials.strip():
            yield credentials.strip()
        case "basic" if password := _basic_password(credentials):
            yield password
    for name in (b"api-key", b"x-api-key"):
        if key := (exchange.header(name) or "").strip():
            yield key


def _basic_password(credentials: str) -> str:
    try:
        return base64.b64decode(credentials.strip()).decode().partition(":")[2]
    except ValueError:
        return ""


def masked(key: str) -> str:
    """First eight and last four characters, asterisks between (spec/completions §11); short ones not at all."""
    if len(key) <= 12:
        return "*" * len(key)
    return f"{key[:8]}{'*' * (len(key) - 12)}{key[-4:]}"


def collect_keys(settings: Settings) -> list[str]:
    """The keys of --api-key and --api-key-file. Raises SetupError for a file that gives none."""
    keys = list(settings.api_key)
    if settings.api_key_file is not None:
        keys += _keys_in(settings.api_key_file)
    return keys


def _keys_in(path: Path) -> list[str]:
    try:
        lines = path.read_text(encoding="utf-8-sig").splitlines()
        if path.stat().st_mode & (stat.S_IRGRP | stat.S_IROTH):
            log.warning("the key file %s can be read by other users: chmod 600 it", path)
        keys = [values.api_key(line) for line in lines if line.strip() and not line.lstrip().startswith("#")]
    except OSError as problem:
        raise SetupError(f"The key file {path} cannot be read: {problem.strerror}.") from None
    except ValueError as problem:  # UnicodeDecodeError is one, too
        raise SetupError(f"The key file {path} has a line that is no key: {problem}.") from None
    if not keys:
        raise SetupError(f"The key file {path} holds no key: write one a line.")
    return keys


def check_exposure(settings: Settings, keys: list[str]) -> None:
    """Raise SetupError when other machines could reach a server that asks nobody for a key."""
    if keys or settings.no_auth or is_loopback(settings.host):
        return
    raise SetupError(
        f"Listening on {settings.host} without a key would let anyone on the network use the model: "
        "give --api-key-file or --api-key, or --no-auth if that is meant"
    )


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach `host`."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host.lower() == "localhost"
