"""API keys: who may use the server, and the rule that it is not exposed to a network without them."""

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
from onward.errors import ApiError, AuthenticationFailed, SetupError
from onward.server.exchange import Exchange
from onward.settings import Settings

log = logging.getLogger("onward.server")

NO_KEY = (
    "You didn't provide an API key. You need to provide your API key in an Authorization header using Bearer auth "
    "(i.e. Authorization: Bearer YOUR_KEY), or as the password field (with blank username) if you're accessing "
    "the API from your browser and are prompted for a username and password. You can obtain an API key "
    "from the operator of this server."
)  # fmt: skip


class Authenticator:
    """Accepts requests that carry one of `keys`; all requests where there are no keys. Keeps digests, not keys."""

    def __init__(self, keys: Iterable[str]) -> None:
        self._digests = [_digest(key) for key in keys]

    @property
    def requires_key(self) -> bool:
        return bool(self._digests)

    def authenticate(self, exchange: Exchange) -> None:
        """Raise AuthenticationFailed unless the request carries a valid key, in any place where clients put one."""
        if not self._digests:
            return
        provided = list(_provided_keys(exchange))
        if sum(self._is_valid(key) for key in provided):
            return
        if not provided:
            raise AuthenticationFailed(NO_KEY)
        raise AuthenticationFailed(
            f"Incorrect API key provided: {mask_key(provided[0])}. "
            "You can obtain an API key from the operator of this server.",
            code="invalid_api_key",
        )

    def accepts(self, exchange: Exchange) -> bool:
        """Return whether the request carries a valid key, or needs none."""
        try:
            self.authenticate(exchange)
        except ApiError:
            return False
        return True

    def _is_valid(self, key: str) -> bool:
        """Compare with every key, always, so that the time taken reveals neither which key matched nor how much."""
        digest = _digest(key)
        return sum(hmac.compare_digest(digest, known) for known in self._digests) > 0


def _digest(key: str) -> bytes:
    return hashlib.blake2b(key.encode(), digest_size=32).digest()


def _provided_keys(exchange: Exchange) -> Iterator[str]:
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


def mask_key(key: str) -> str:
    """Return the first eight and last four characters with asterisks between, for short keys only asterisks
    (spec/completions §11)."""
    if len(key) <= 12:
        return "*" * len(key)
    return f"{key[:8]}{'*' * (len(key) - 12)}{key[-4:]}"


def collect_keys(settings: Settings) -> list[str]:
    """Return the keys of --api-key and --api-key-file. Raises SetupError for a file without valid keys."""
    keys = list(settings.api_key)
    if settings.api_key_file is not None:
        keys += _read_keys(settings.api_key_file)
    return keys


def _read_keys(path: Path) -> list[str]:
    try:
        lines = path.read_text(encoding="utf-8-sig").splitlines()
        if path.stat().st_mode & (stat.S_IRGRP | stat.S_IROTH):
            log.warning("the key file %s can be read by other users; run chmod 600 on it", path)
        keys = [values.api_key(line) for line in lines if line.strip() and not line.lstrip().startswith("#")]
    except OSError as error:
        raise SetupError(f"The key file {path} cannot be read: {error.strerror}.") from None
    except ValueError as error:  # UnicodeDecodeError is one, too
        raise SetupError(f"The key file {path} contains a line that is not a valid key: {error}.") from None
    if not keys:
        raise SetupError(f"The key file {path} contains no keys; write one per line.")
    return keys


def check_exposure(settings: Settings, keys: list[str]) -> None:
    """Raise SetupError if other machines could use the server without a key, unless --no-auth allows it."""
    if keys or settings.no_auth or is_loopback(settings.host):
        return
    raise SetupError(
        f"Listening on {settings.host} without a key would let anyone on the network use the model. "
        "Pass --api-key-file or --api-key, or --no-auth if that is intended."
    )


def is_loopback(host: str) -> bool:
    """Return whether only this machine can reach `host`."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host.lower() == "localhost"
