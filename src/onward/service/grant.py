"""Keys, what those of a team may do, and their secrets. Known without a database, so that servers without one import
nothing of it."""

from __future__ import annotations

import hashlib
import re
import secrets
from collections.abc import Iterable
from dataclasses import dataclass

from onward.service.limits import NO_LIMITS, Limits

NUM_RANDOM_BYTES = 24
_GENERATED = re.compile(r"sk-(admin-)?[A-Za-z0-9_-]{32}")


def new_secret(*, is_admin: bool = False) -> str:
    """Return a random key. Clients sort keys by their prefix (behaviour §16.10)."""
    return ("sk-admin-" if is_admin else "sk-") + secrets.token_urlsafe(NUM_RANDOM_BYTES)


def is_generated(secret: str) -> bool:
    """Return whether a key has the form of those of `new_secret`, which nobody finds by trying."""
    return _GENERATED.fullmatch(secret) is not None


def digest_of(secret: str) -> bytes:
    """Return the SHA-256 of a key. Databases and key files have it in hexadecimal."""
    return hashlib.sha256(secret.encode()).digest()


@dataclass(frozen=True, slots=True)
class Grant:
    """A key's rights. `id` is `key_…`; `models` are the names that it may use, None: all. `expires_ms` is in Unix
    milliseconds. An admin key sees everyone's usage and completes nothing (behaviour §16.10)."""

    id: str
    name: str
    is_admin: bool = False
    models: frozenset[str] | None = None
    expires_ms: int | None = None
    limits: Limits = NO_LIMITS
    logs_requests: bool = True
    """Whether the log of requests, if there is one, has those of this key."""
    priority: int = 1
    """How many times the share of a key with 1 it has, while both have more to compute than there is room for."""

    def allows(self, names: Iterable[str]) -> bool:
        """Return whether a model with these names, its id and aliases, may be used."""
        return self.models is None or not self.models.isdisjoint(names)


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredKey:
    """A key as the store has it. Times are Unix milliseconds; `digests` are those of its secrets, each with the time
    when it expires. A revoked key has none."""

    grant: Grant
    created_ms: int
    revoked_ms: int | None
    digests: tuple[tuple[bytes, int | None], ...] = ()

    @property
    def name(self) -> str:
        return self.grant.name
