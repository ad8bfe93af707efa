"""Keys in a database: made, found, changed, rotated, revoked, forgotten, and who did it."""

from __future__ import annotations

import time
from collections import Counter
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any

import pytest
from msgspec.structs import replace as replace_row
from sqlalchemy import Connection, insert, select

from onward.errors import SetupError
from onward.server.keys import Keys
from onward.service.batch_records import NewLine
from onward.service.batches import create_batch
from onward.service.files import add_part, begin_upload
from onward.service.grant import StoredKey, is_generated, new_secret
from onward.service.keys import (
    change_key,
    create_key,
    forget_in_pieces,
    forget_key,
    read_audit,
    read_keys,
    read_revision,
    revoke_key,
    rotate_key,
)
from onward.service.ledger import write_rows
from onward.service.limits import NO_LIMITS, Limits
from onward.service.lines import add_lines
from onward.service.store import DatabaseAway, Store
from onward.service.tables import AUDIT, BATCHES, CONTENTS, FILES, KEYS, LINES, METADATA, REQUEST_LOG

from .conftest import Clock
from .spool_rows import EMPTY
from .test_batch_store import batch_of


def keys_of(store: Store, clock: Clock) -> Keys:
    return Keys([], clock=lambda: clock.now / 1000).with_stored(stored(store))


def stored(store: Store) -> list[StoredKey]:
    with store.read() as connection:
        return read_keys(connection)


def make(store: Store, name: str, limits: Limits = NO_LIMITS, **more: object) -> str:
    secret = new_secret(is_admin=bool(more.get("is_admin")))
    with store.begin() as connection:
        create_key(connection, secret, name, limits, store.clock(), **more)  # type: ignore[arg-type]
    return secret


def test_a_new_key_is_found_with_its_rights_and_only_its_digest_is_stored(store: Store, clock: Clock) -> None:
    rights: dict[str, Any] = {"models": frozenset({"b", "a"}), "is_admin": True, "priority": 3}
    secret = make(store, "alice", Limits(tokens_per_day=7), **rights)
    assert secret.startswith("sk-admin-") and is_generated(secret) and is_generated(make(store, "bob"))
    found = keys_of(store, clock).find(secret)
    assert found is not None and found.grant is not None
    assert (found.name, found.grant.limits, found.grant.is_admin) == ("alice", Limits(tokens_per_day=7), True)
    assert found.grant.allows({"a"}) and not found.grant.allows({"c"}) and found.grant.priority == 3
    with store.read() as connection:
        everything = [str(connection.execute(select(table)).all()) for table in METADATA.sorted_tables]
    assert not any(secret in text for text in everything)


def test_a_name_belongs_to_one_key(store: Store) -> None:
    make(store, "alice")
    with pytest.raises(SetupError, match="already"):
        make(store, "alice")


def test_keys_are_required_from_the_first_one_on(store: Store, clock: Clock) -> None:
    assert not keys_of(store, clock).are_required
    secret = make(store, "alice")
    with store.begin() as connection:
        revoke_key(connection, "alice", clock.now)
    keys = keys_of(store, clock)
    assert keys.are_required and keys.find(secret) is None


def test_a_rotated_key_has_two_secrets_for_a_while(store: Store, clock: Clock) -> None:
    old, new = make(store, "alice"), new_secret()
    with store.begin() as connection:
        rotate_key(connection, "alice", new, 1000, clock.now)
    keys = keys_of(store, clock)
    found = [keys.find(secret) for secret in (old, new)]
    assert [key and key.grant for key in found] == [stored(store)[0].grant] * 2
    clock.now += 1000
    assert keys.find(old) is None and keys.find(new) is not None


def test_an_expired_key_is_refused(store: Store, clock: Clock) -> None:
    secret = make(store, "alice", expires_ms=clock.now + 10)
    keys = keys_of(store, clock)
    assert keys.find(secret) is not None
    clock.now += 10
    assert keys.find(secret) is None


def test_changes_are_noticed_by_servers_and_audited(store: Store, clock: Clock) -> None:
    make(store, "alice")
    with store.begin() as connection:
        before = read_revision(connection)
        change_key(connection, "alice", {"tokens_per_minute": 9, "models": frozenset({"x"})}, clock.now)
        assert read_revision(connection) == before + 1
        revoke_key(connection, "alice", clock.now)
    (key,) = stored(store)
    assert (key.grant.limits.tokens_per_minute, key.grant.models) == (9, frozenset({"x"}))
    make(store, "bob")
    with store.read() as connection:
        entries, of_all = read_audit(connection, "alice"), read_audit(connection)
    assert sorted(entry.action for entry in entries) == ["new", "revoke", "set"]
    assert {(entry.key_id, entry.name) for entry in entries} == {(key.grant.id, "alice")}
    assert all("@" in entry.actor for entry in entries)
    assert [entry.name for entry in of_all if entry not in entries] == ["bob"]


def test_nothing_but_an_id_in_the_audit_is_left_of_a_forgotten_key(store: Store, clock: Clock) -> None:
    make(store, "alice")
    make(store, "bob")
    with store.begin() as connection:
        forget_key(connection, "alice", clock.now)
    with store.read() as connection:
        everything = [str(connection.execute(select(table)).all()) for table in METADATA.sorted_tables]
        assert connection.execute(select(KEYS.c.name)).scalars().all() == ["bob"]
    assert not any("alice" in text for text in everything)


def rows_by_key(store: Store) -> dict[str, int]:
    """How many rows of all tables belong to each key, directly or as a line or a part of its batches and files."""
    found: Counter[str] = Counter()
    with store.read() as connection:
        for table in METADATA.sorted_tables:
            if "key_id" in table.c and table is not AUDIT:
                found.update(connection.execute(select(table.c.key_id)).scalars())
        owners = {row.id: row.key_id for each in (BATCHES, FILES) for row in connection.execute(select(each))}
        for column in (LINES.c.batch_id, CONTENTS.c.file_id):
            found.update(owners.get(id, "nobody") for id in connection.execute(select(column)).scalars())
    return found


def use_much(store: Store, name: str, key_id: str) -> None:
    """Give a key more of everything than is deleted in one transaction."""
    with store.begin() as connection:
        rows = [(replace_row(EMPTY, id=f"{name}{number}", key_id=key_id), key_id) for number in range(1100)]
        write_rows(connection, rows)
        logged = [{"id": f"{name}{i}", "at_ms": i, "key_id": key_id, "document": "{}"} for i in range(110)]
        connection.execute(insert(REQUEST_LOG), logged)
        for number in range(2):
            batch = replace(batch_of(key_id, store.clock()), id=f"batch-{name}{number}", status="in_progress")
            create_batch(connection, batch)
            add_lines(connection, batch.id, [NewLine(i, b'"a"', b"{}") for i in range(70)])
            begin_upload(connection, f"file-{name}{number}", key_id, "", 0)
            for part in range(12):
                add_part(connection, f"file-{name}{number}", key_id, part, b"x", Limits())


def test_much_of_a_key_is_forgotten_in_short_transactions_that_can_be_interrupted(
    store: Store, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(time, "sleep", lambda seconds: None)
    for name in ("alice", "bob"):
        make(store, name)
        use_much(store, name, next(key.grant.id for key in stored(store) if key.grant.name == name))
    alice, bob = (next(key.grant.id for key in stored(store) if key.grant.name == name) for name in ("alice", "bob"))
    before = rows_by_key(store)
    num_transactions, begin = 0, store.begin

    def begin_some() -> AbstractContextManager[Connection]:
        nonlocal num_transactions
        num_transactions += 1
        if num_transactions == 4:
            raise DatabaseAway("it was unplugged.")
        return begin()

    monkeypatch.setattr(store, "begin", begin_some)
    with pytest.raises(DatabaseAway):
        forget_in_pieces(store, "alice")
    assert next(key.revoked_ms for key in stored(store) if key.grant.id == alice) == clock.now
    assert 0 < rows_by_key(store)[alice] < before[alice]
    with store.read() as connection:
        statuses = connection.execute(select(BATCHES.c.key_id, BATCHES.c.status)).all()
    assert set(statuses) == {(alice, "cancelled"), (bob, "in_progress")}
    forget_in_pieces(store, "alice")
    assert rows_by_key(store) == {bob: before[bob]}
    assert num_transactions > 12 and [key.grant.name for key in stored(store)] == ["bob"]


def test_a_key_that_gets_the_name_of_one_that_is_being_forgotten_stays(
    store: Store, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    make(store, "alice")
    remade: list[str] = []

    def sleep(seconds: float) -> None:
        if not remade:  # another command has finished the same meanwhile
            with store.begin() as connection:
                forget_key(connection, "alice", clock.now)
            remade.append(make(store, "alice"))

    monkeypatch.setattr(time, "sleep", sleep)
    forget_in_pieces(store, "alice")
    assert remade and [key.grant.name for key in stored(store)] == ["alice"]


@pytest.mark.parametrize("act", [revoke_key, forget_key, lambda c, name, now: rotate_key(c, name, "sk-x", 0, now)])
def test_a_key_that_does_not_exist_is_named(store: Store, act: object) -> None:
    with pytest.raises(SetupError, match="no key named carol"), store.begin() as connection:
        act(connection, "carol", 0)  # type: ignore[operator]
