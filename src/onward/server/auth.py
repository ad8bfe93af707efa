"""API keys: who may use the server, slower answers to clients that send wrong keys, and the rule that a server is not
exposed to a network without keys.
"""

from __future__ import annotations

import asyncio
import base64
import math
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterator

from onward.errors import AuthenticationFailed, RateLimited, SetupError
from onward.server.addresses import is_loopback, network
from onward.server.exchange import HttpExchange
from onward.server.keys import Key, Keys
from onward.service.grant import digest_of, is_generated
from onward.settings import Settings

BURST = 10
"""Wrong keys of an address that are answered at once."""
RATE_PER_SECOND = 2.0
"""Wrong keys of an address that are answered after these."""
MAX_DELAY_SECONDS = 2.0
"""Wrong keys that would have to wait for longer are refused; that bounds the answers that wait, to four per address."""
MAX_ADDRESSES = 10_000
MAX_KNOWN_KEYS = 16
"""Keys that an address has used with success and that are remembered."""
MAX_WAITING = 1_000
"""Answers to wrong keys that wait at a time, for all addresses together."""
NO_KEY = (
    "You didn't provide an API key. You need to provide your API key in an Authorization header using Bearer auth "
    "(i.e. Authorization: Bearer YOUR_KEY), or as the password field (with blank username) if you're accessing "
    "the API from your browser and are prompted for a username and password. You can obtain an API key "
    "from the operator of this server."
)  # fmt: skip
TOO_MANY = "Too many incorrect API keys were sent from this address. Wait, then send a correct one."


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


class Authenticator:
    """Accepts requests that carry one of the keys; all requests where there are none. Belongs to one event loop."""

    def __init__(self, keys: Keys, refresh: Callable[[], Awaitable[None]] | None = None) -> None:
        """`refresh` replaces the keys if there are newer ones; it is awaited for a key that may be new."""
        self._keys = keys
        self._refresh = refresh
        self._wrong_keys = WrongKeys()
        self._num_waiting = 0

    @property
    def requires_key(self) -> bool:
        return self._keys.are_required

    def replace(self, keys: Keys) -> None:
        """Accept these keys from now on. Running requests are not affected."""
        self._keys = keys

    async def authenticate(self, exchange: HttpExchange) -> None:
        """Raise AuthenticationFailed unless the request carries a valid key, in any place where clients put one.

        Sets `exchange.key`. The error for a wrong key may be delayed; raises RateLimited where too many are.
        """
        if self._find(exchange) or not self._keys.are_required:
            return
        provided = next(_provided_keys(exchange), None)
        if provided is None:
            raise AuthenticationFailed(NO_KEY)
        if self._refresh is not None and is_generated(provided):
            await self._refresh()
            if self._find(exchange):
                return
        await self._delay(exchange)
        raise AuthenticationFailed(
            f"Incorrect API key provided: {mask_key(provided)}. "
            "You can obtain an API key from the operator of this server.",
            code="invalid_api_key",
        )

    def accepts(self, exchange: HttpExchange) -> bool:
        """Return whether the request carries a valid key, or needs none. A wrong one counts, but delays nothing."""
        if self._find(exchange) or not self._keys.are_required:
            return True
        if any(_provided_keys(exchange)):
            self._wrong_keys.delay(exchange.client)
        return False

    def _find(self, exchange: HttpExchange) -> Key | None:
        """Return the key of a request, and record it there."""
        if not self._keys:
            return None
        is_refused = self._wrong_keys.seconds_until_accepted(exchange.client) > 0
        for text in _provided_keys(exchange):
            if is_refused and not (is_generated(text) or self._wrong_keys.remembers(exchange.client, digest_of(text))):
                continue
            if key := self._keys.find(text):
                self._wrong_keys.remember(exchange.client, key.digest)
                exchange.key = key
                exchange.record.key = key.name or "-"
                return key
        return None

    async def _delay(self, exchange: HttpExchange) -> None:
        """Wait until a wrong key may be answered. Raises RateLimited where the address has sent too many."""
        refused_seconds = self._wrong_keys.seconds_until_accepted(exchange.client)
        if refused_seconds > 0 or self._num_waiting >= MAX_WAITING:
            raise RateLimited(TOO_MANY, headers={"retry-after": str(math.ceil(refused_seconds) or 1)})
        delay = self._wrong_keys.delay(exchange.client)
        if delay > 0:
            self._num_waiting += 1
            try:
                await asyncio.sleep(delay)
            finally:
                self._num_waiting -= 1


def _provided_keys(exchange: HttpExchange) -> Iterator[str]:
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
    (behaviour §11)."""
    if len(key) <= 12:
        return "*" * len(key)
    return f"{key[:8]}{'*' * (len(key) - 12)}{key[-4:]}"


def check_exposure(settings: Settings, keys: Keys) -> None:
    """Raise SetupError if other machines could use the server without a key, unless --no-auth allows it."""
    if keys.are_required or settings.no_auth or is_loopback(settings.host):
        return
    raise SetupError(
        f"Listening on {settings.host} without a key would let anyone on the network use the model. "
        "Pass --api-key-file or --api-key, or --no-auth if that is intended."
    )
