"""Reservations in the store: what a running request may still use, over all servers of the store."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Connection, bindparam, delete, insert, select, update

from onward.service.grant import Grant
from onward.service.limits import KeyUsage, Refusal, Reservation, bill, reserve, settle
from onward.service.tables import FACES, RESERVATIONS, USAGE_NAMES, USAGES

DEAD_FACE_MS = 20_000
"""A server that was not seen for this long is considered dead, and what it had reserved is released. If it was only cut
off, what it served meanwhile is billed when it is connected again."""

# Statements with parameters are made once: making one takes longer than running it.
_READ_USAGE = select(USAGES).where(USAGES.c.key_id == bindparam("key"))
_LOCK_USAGE = _READ_USAGE.with_for_update()
_WRITE_USAGE = update(USAGES).where(USAGES.c.key_id == bindparam("key"))
_RESERVE = insert(RESERVATIONS)
_FIND = select(RESERVATIONS).where(RESERVATIONS.c.id == bindparam("request"))
_FREE = delete(RESERVATIONS).where(RESERVATIONS.c.id == bindparam("request"))


def read_usage(connection: Connection, key_id: str, *, locks: bool = False) -> KeyUsage:
    """Return what a key has used; nothing for one that was forgotten meanwhile. `locks`: lock the row until the
    transaction ends."""
    row = connection.execute(_LOCK_USAGE if locks else _READ_USAGE, {"key": key_id}).mappings().first()
    return KeyUsage() if row is None else KeyUsage(**{name: row[name] for name in USAGE_NAMES})


def lock_usage(connection: Connection, key_id: str) -> bool:
    """Lock what a key has used until the transaction ends; return whether there is such a key. What also changes
    batches of a key, or the key itself, does this first: then no two transactions wait for each other."""
    return connection.execute(_LOCK_USAGE, {"key": key_id}).first() is not None


def read_usages(connection: Connection) -> dict[str, KeyUsage]:
    rows = connection.execute(select(USAGES)).mappings()
    return {row["key_id"]: KeyUsage(**{name: row[name] for name in USAGE_NAMES}) for row in rows}


def admit(
    connection: Connection,
    request_id: str,
    grant: Grant,
    face: str,
    tokens: int,
    cost: int,
    now_ms: int,
    *,
    is_batch: bool = False,
) -> tuple[KeyUsage, Reservation | Refusal]:
    """Reserve what a request may use, or return why it is refused."""
    before = read_usage(connection, grant.id, locks=True)
    usage, outcome = reserve(grant.limits, before, tokens, cost, now_ms, is_batch=is_batch)
    _write_usage(connection, grant.id, usage)
    if isinstance(outcome, Reservation):
        values: dict[str, Any] = {"tokens": outcome.tokens, "cost": outcome.cost}
        values |= {"day": outcome.day, "month": outcome.month, "is_batch": int(is_batch)}
        connection.execute(_RESERVE, {"id": request_id, "key_id": grant.id, "face": face, **values})
    return usage, outcome


def settle_request(
    connection: Connection,
    request_id: str,
    grant: Grant,
    tokens: int,
    cost: int,
    now_ms: int,
    *,
    is_batch: bool = False,
) -> KeyUsage:
    """Replace a request's reservation by what was billed. If it is gone (its server was considered dead, or the
    database was away when the request started), what was billed is added."""
    usage = read_usage(connection, grant.id, locks=True)
    found = connection.execute(_FIND, {"request": request_id}).first()
    if found is None:
        usage = bill(grant.limits, usage, tokens, cost, now_ms, is_batch=is_batch)
    else:
        connection.execute(_FREE, {"request": request_id})
        reservation = Reservation(found.tokens, found.cost, found.day, found.month, bool(found.is_batch))
        usage = settle(grant.limits, usage, reservation, tokens, cost, now_ms)
    _write_usage(connection, grant.id, usage)
    return usage


def beat(connection: Connection, face: str, grants: dict[str, Grant], now_ms: int) -> int:
    """Record that a server is alive, and release what dead ones have reserved. Returns the number of released
    reservations."""
    seen = connection.execute(update(FACES).where(FACES.c.id == face).values(seen_ms=now_ms))
    if not seen.rowcount:
        connection.execute(insert(FACES).values(id=face, seen_ms=now_ms))
    dead = connection.execute(select(FACES.c.id).where(FACES.c.seen_ms < now_ms - DEAD_FACE_MS)).scalars().all()
    return sum(leave(connection, each, grants, now_ms) for each in sorted(dead))


def leave(connection: Connection, face: str, grants: dict[str, Grant], now_ms: int) -> int:
    """Release what a server has reserved, and forget the server. Returns the number of reservations."""
    query = select(RESERVATIONS).where(RESERVATIONS.c.face == face).order_by(RESERVATIONS.c.key_id)
    rows = connection.execute(query).all()
    for row in rows:
        grant = grants.get(row.key_id) or Grant(row.key_id, "")
        settle_request(connection, row.id, grant, 0, 0, now_ms)
    connection.execute(delete(FACES).where(FACES.c.id == face))
    return len(rows)


def _write_usage(connection: Connection, key_id: str, usage: KeyUsage) -> None:
    values = {name: getattr(usage, name) for name in USAGE_NAMES}
    connection.execute(_WRITE_USAGE, {"key": key_id, **values})
