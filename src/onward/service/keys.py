"""The keys of a team in the store: made, changed, rotated, revoked; every change is audited."""

from __future__ import annotations

import asyncio
import getpass
import json
import secrets
import socket
import time
from concurrent.futures import Future
from dataclasses import dataclass, fields
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import Connection, Row, bindparam, delete, insert, select, tuple_, update

from onward.errors import SetupError
from onward.fair_pool import FairPool
from onward.service.batches import end_batches, forget_batches
from onward.service.files import forget_files
from onward.service.grant import Grant, StoredKey, digest_of
from onward.service.limits import Limits
from onward.service.reservations import lock_usage
from onward.service.store import ANSWER_SECONDS, DatabaseAway, Store
from onward.service.tables import (
    AUDIT,
    BATCHES,
    CONTENTS,
    FILES,
    KEYS,
    LIMIT_NAMES,
    LINES,
    META,
    REQUEST_LOG,
    REQUESTS,
    RESERVATIONS,
    SECRETS,
    USAGES,
)

_FIND_REVISION = select(META.c.value).where(META.c.name == "revision")
_LOCK = select(KEYS.c.id).where(KEYS.c.id == bindparam("key")).with_for_update(read=True, key_share=True)
_FIND_FORGOTTEN = select(AUDIT.c.id).where(AUDIT.c.key_id == bindparam("key"), AUDIT.c.action == "forget")


def create_key(
    connection: Connection,
    secret: str,
    name: str,
    limits: Limits,
    now_ms: int,
    *,
    is_admin: bool = False,
    models: frozenset[str] | None = None,
    expires_ms: int | None = None,
    logs_requests: bool = True,
    priority: int = 1,
) -> str:
    """Store a new key, and return its id. Raises SetupError if the name is taken."""
    if connection.execute(select(KEYS.c.id).where(KEYS.c.name == name)).first() is not None:
        raise SetupError(
            f"There is a key named {name} already. Choose another name, or run `onward key rotate {name}` for a new "
            "secret of the same key."
        )
    key_id = "key_" + secrets.token_hex(11)
    values = {each.name: getattr(limits, each.name) for each in fields(limits)}
    values |= {"id": key_id, "name": name, "is_admin": int(is_admin), "models": _models_text(models)}
    values |= {"logs_requests": int(logs_requests), "priority": priority}
    connection.execute(insert(KEYS).values(**values, created_ms=now_ms, expires_ms=expires_ms))
    connection.execute(insert(SECRETS).values(digest=digest_of(secret).hex(), key_id=key_id, created_ms=now_ms))
    usage = dict.fromkeys((column.name for column in USAGES.columns if not column.nullable), 0)
    connection.execute(insert(USAGES).values(**usage | {"key_id": key_id}))
    _changed(connection, "new", key_id, name, now_ms)
    return key_id


def change_key(connection: Connection, name: str, changes: dict[str, Any], now_ms: int) -> None:
    """Set columns of a key: limits, `models` (names or None), `expires_ms`, `is_admin`. Raises SetupError."""
    found = require_key(connection, name)
    values = dict(changes)
    if "models" in values:
        values["models"] = _models_text(values["models"])
    if "logs_requests" in values:
        values["logs_requests"] = int(values["logs_requests"])
    if values:
        connection.execute(update(KEYS).where(KEYS.c.id == found.grant.id).values(**values))
    _changed(connection, "set", found.grant.id, ", ".join(map(_shown, values, values.values())), now_ms)


def _shown(column: str, value: Any) -> str:
    """Return what a column was set to, as the flags of `onward key set` spell it."""
    if value is None:
        value = "any"
    elif column.endswith("_ms"):
        value = _utc_time(value)
    elif column.startswith("cost_"):
        value = f"{value / 1_000_000:f}".rstrip("0").rstrip(".")  # never as 1e-05
    return f"{column.removesuffix('_ms')}={value}"


def _utc_time(ms: int) -> str:
    return datetime.fromtimestamp(ms / 1000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def rotate_key(connection: Connection, name: str, secret: str, overlap_ms: int, now_ms: int) -> None:
    """Accept another secret for a key; the old ones only for a while longer. Raises SetupError."""
    found = require_key(connection, name)
    if found.revoked_ms is not None:
        raise SetupError(f"The key {name} is revoked: make a new one with `onward key new`.")
    until = now_ms + overlap_ms
    owned = SECRETS.c.key_id == found.grant.id
    connection.execute(delete(SECRETS).where(owned, SECRETS.c.expires_ms <= now_ms))
    sooner = (SECRETS.c.expires_ms.is_(None)) | (SECRETS.c.expires_ms > until)
    connection.execute(update(SECRETS).where(owned, sooner).values(expires_ms=until))
    connection.execute(insert(SECRETS).values(digest=digest_of(secret).hex(), key_id=found.grant.id, created_ms=now_ms))
    _changed(connection, "rotate", found.grant.id, f"old secrets until {_utc_time(until)}", now_ms)


def revoke_key(connection: Connection, name: str, now_ms: int) -> None:
    """Refuse a key from now on. Its usage is kept. Raises SetupError."""
    found = require_key(connection, name)
    connection.execute(update(KEYS).where(KEYS.c.id == found.grant.id).values(revoked_ms=now_ms))
    connection.execute(delete(SECRETS).where(SECRETS.c.key_id == found.grant.id))
    _changed(connection, "revoke", found.grant.id, "", now_ms)


def forget_key(connection: Connection, name: str, now_ms: int) -> None:
    """Delete a key and all data about it; the audit keeps its id. Of one that has much, this takes long (see
    `forget_in_pieces`). Raises SetupError."""
    found = require_key(connection, name)
    key_id = found.grant.id
    lock_usage(connection, key_id)
    forget_batches(connection, key_id)
    forget_files(connection, key_id)
    connection.execute(select(KEYS.c.id).where(KEYS.c.id == key_id).with_for_update())  # the ledger gets no more rows
    for table in (RESERVATIONS, SECRETS, USAGES, REQUESTS, REQUEST_LOG):
        connection.execute(delete(table).where(table.c.key_id == key_id))
    connection.execute(delete(KEYS).where(KEYS.c.id == key_id))
    connection.execute(update(AUDIT).where(AUDIT.c.key_id == key_id).values(detail=""))
    _changed(connection, "forget", key_id, "", now_ms)


def forget_in_pieces(store: Store, name: str) -> None:
    """Delete a key and all data about it, in many short transactions: requests of others wait for none of them long.
    The key is revoked first. Where this is interrupted, it is still there, and can be forgotten again. Raises
    SetupError, DatabaseAway."""
    now_ms = store.clock()
    with store.begin() as connection:
        found = require_key(connection, name)
        lock_usage(connection, found.grant.id)
        end_batches(connection, found.grant.id, now_ms)
        if found.revoked_ms is None:
            revoke_key(connection, name, now_ms)
    goes_on = True
    while goes_on:
        began = time.perf_counter()
        with store.begin() as connection:
            goes_on = _forget_some(connection, found.grant.id) > 0
        time.sleep(time.perf_counter() - began)  # SQLite lets nobody in who does not happen to try meanwhile
    with store.begin() as connection:
        if require_key(connection, name).grant.id == found.grant.id:  # not another one, made meanwhile
            forget_key(connection, name, now_ms)


def _forget_some(connection: Connection, key_id: str) -> int:
    """Delete some rows of a key, of those tables that may have many; return their number."""
    lock_usage(connection, key_id)
    batches, files = (select(table.c.id).where(table.c.key_id == key_id) for table in (BATCHES, FILES))
    for table, owned, limit in (
        (REQUESTS, REQUESTS.c.key_id == key_id, 1000),
        (REQUEST_LOG, REQUEST_LOG.c.key_id == key_id, 100),
        (LINES, LINES.c.batch_id.in_(batches), 100),
        (CONTENTS, CONTENTS.c.file_id.in_(files), 10),
    ):
        some = select(*table.primary_key).where(owned).limit(limit)
        if count := connection.execute(delete(table).where(tuple_(*table.primary_key).in_(some))).rowcount:
            return count
    return 0


def is_forgotten(connection: Connection, key_id: str) -> bool:
    """Return whether this was the id of a key that was forgotten; if not, it is not before the transaction ends. Locks
    the key, which comes after locking what keys have used."""
    return connection.execute(_LOCK, {"key": key_id}).first() is None and _was_forgotten(connection, key_id)


def may_store(connection: Connection, key_id: str) -> bool:
    """Return whether something may be stored for a key, which may also be one of a file, or none (""): it was not
    forgotten, and is not before the transaction ends. Locks what it has used."""
    return lock_usage(connection, key_id) or not _was_forgotten(connection, key_id)


def _was_forgotten(connection: Connection, key_id: str) -> bool:
    return connection.execute(_FIND_FORGOTTEN, {"key": key_id}).first() is not None


def read_keys(connection: Connection) -> list[StoredKey]:
    """Return all keys by name, with their digests."""
    digests: dict[str, list[tuple[bytes, int | None]]] = {}
    for row in connection.execute(select(SECRETS).order_by(SECRETS.c.created_ms)):
        digests.setdefault(row.key_id, []).append((bytes.fromhex(row.digest), row.expires_ms))
    rows = connection.execute(select(KEYS).order_by(KEYS.c.name))
    return [_stored_key(row, tuple(digests.get(row.id, ()))) for row in rows]


def read_changed_keys(connection: Connection, known_revision: int | None) -> tuple[int, list[StoredKey] | None]:
    """Return the revision of the keys, and the keys if it is not the known one."""
    revision = read_revision(connection)
    return revision, None if revision == known_revision else read_keys(connection)


class KeyReader:
    """`keys`: every key of a store, as it was when it was read last. Belongs to one event loop.

    They are read on a thread of their own, in parallel to what is written: nothing that a client sends may delay the
    refusal of a key.
    """

    def __init__(self, store: Store) -> None:
        self.keys: list[StoredKey] = []
        self._store = store
        self._revision: int | None = None
        self._thread = FairPool("onward-keys", 1, 1)
        self._reading: Future[tuple[int, list[StoredKey] | None]] | None = None

    def use(self, revision: int, keys: list[StoredKey] | None) -> bool:
        """Use these keys, if there are any; return whether."""
        self._revision = revision
        if keys is not None:
            self.keys = keys
        return keys is not None

    async def read(self) -> bool:
        """Read the keys if they were changed; return whether. A database that does not answer changes none."""
        known = self._revision

        def read() -> tuple[int, list[StoredKey] | None]:
            with self._store.read() as connection:
                return read_changed_keys(connection, known)

        reading = self._reading = self._reading or self._thread.submit("", read)
        done, _ = await asyncio.wait([asyncio.wrap_future(reading)], timeout=ANSWER_SECONDS)
        if not done:
            return False
        if self._reading is reading:
            self._reading = None
        try:
            return self.use(*reading.result())
        except DatabaseAway:
            return False

    def close(self) -> None:
        self._thread.close()


def require_key(connection: Connection, name: str) -> StoredKey:
    """Return the key of a name, without digests. Raises SetupError where there is none."""
    row = connection.execute(select(KEYS).where(KEYS.c.name == name)).first()
    if row is None:
        raise SetupError(f"There is no key named {name}. `onward key list` shows all of them.")
    return _stored_key(row, ())


def read_revision(connection: Connection) -> int:
    """Return a number that rises with every change of a key."""
    return int(connection.execute(_FIND_REVISION).scalar_one())


@dataclass(frozen=True, slots=True)
class AuditEntry:
    """What was done to a key, or with it to models. `name` is what it is called now, "" for one that was forgotten."""

    at_ms: int
    actor: str
    action: str
    key_id: str
    name: str
    detail: str


def read_audit(connection: Connection, name: str | None = None) -> list[AuditEntry]:
    """Return what was done to all keys, or to one, the oldest first. Raises SetupError where there is no such key."""
    query = select(AUDIT, KEYS.c.name).outerjoin(KEYS, KEYS.c.id == AUDIT.c.key_id)
    if name is not None:
        query = query.where(AUDIT.c.key_id == require_key(connection, name).grant.id)
    rows = connection.execute(query.order_by(AUDIT.c.at_ms, AUDIT.c.id))
    return [AuditEntry(row.at_ms, row.actor, row.action, row.key_id, row.name or "", row.detail) for row in rows]


def read_id(connection: Connection) -> int:
    """Return the number that identifies this database."""
    return int(connection.execute(select(META.c.value).where(META.c.name == "id")).scalar_one())


def _stored_key(row: Row[Any], digests: tuple[tuple[bytes, int | None], ...]) -> StoredKey:
    limits = Limits(**{name: getattr(row, name) for name in LIMIT_NAMES})
    models = None if row.models is None else frozenset(json.loads(row.models))
    rights = bool(row.is_admin), models, row.expires_ms, limits, bool(row.logs_requests), row.priority
    grant = Grant(row.id, row.name, *rights)
    return StoredKey(grant=grant, created_ms=row.created_ms, revoked_ms=row.revoked_ms, digests=digests)


def _models_text(models: frozenset[str] | None) -> str | None:
    return None if models is None else json.dumps(sorted(models), ensure_ascii=False)


def _changed(connection: Connection, action: str, key_id: str, detail: str, now_ms: int) -> None:
    """Record who did something to a key, and let servers notice."""
    connection.execute(update(META).where(META.c.name == "revision").values(value=META.c.value + 1))
    record_change(connection, action, detail, now_ms, key_id=key_id)


def record_change(
    connection: Connection, action: str, detail: str, now_ms: int, *, key_id: str = "", actor: str | None = None
) -> None:
    """Record who did something: by default whoever runs this program."""
    entry = {"id": secrets.token_hex(16), "at_ms": now_ms, "actor": actor or _actor(), "action": action}
    connection.execute(insert(AUDIT).values(**entry, key_id=key_id, detail=detail))


def _actor() -> str:
    """Return who runs this program, and where."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError, ImportError):  # a user id without a name
        user = "?"
    return f"{user}@{socket.gethostname()}"
