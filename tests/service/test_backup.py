"""Backups: whole or refused, restored into either database, and what `check` finds."""

from __future__ import annotations

import gzip
import stat
from pathlib import Path

import pytest
from sqlalchemy import URL, select, update

from onward.errors import SetupError
from onward.service.backup import back_up, problems, restore, tables
from onward.service.keys import create_key
from onward.service.limits import Limits
from onward.service.reservations import admit
from onward.service.store import Store, open_store
from onward.service.tables import METADATA, USAGES

from .test_reservations import new_grant


def filled(store: Store) -> None:
    grant = new_grant(store, Limits(tokens_per_day=50), "alice")
    with store.begin() as connection:
        create_key(connection, "sk-ü", "bob", Limits(), 5, models=frozenset({"ä/b"}), expires_ms=9)
        admit(connection, "r", grant, "face", 7, 0, store.clock())


def contents(store: Store) -> dict[str, list[tuple[object, ...]]]:
    with store.read() as connection:
        return {
            name: sorted(tuple(row) for row in connection.execute(select(table)))
            for name, table in METADATA.tables.items()
        }


def test_a_backup_restores_the_same_rows_into_the_other_database(store: Store, tmp_path: Path) -> None:
    filled(store)
    path = tmp_path / "copy.gz"
    assert back_up(store, path) == sum(map(len, contents(store).values()))
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    other = open_store(URL.create("sqlite", database=str(tmp_path / "other.db")))
    restore(other, path)
    assert contents(other) == contents(store)
    assert problems(other) == []
    with pytest.raises(SetupError, match="not empty"):
        restore(other, path)
    again = tmp_path / "again.gz"
    back_up(other, again)
    other.close()
    assert set(gzip.decompress(again.read_bytes()).splitlines()[:-1]) == set(
        gzip.decompress(path.read_bytes()).splitlines()[:-1]
    )


def test_a_backup_restores_into_this_database(store: Store, tmp_path: Path) -> None:
    source = open_store(URL.create("sqlite", database=str(tmp_path / "source.db")))
    filled(source)
    back_up(source, tmp_path / "copy.gz")
    restore(store, tmp_path / "copy.gz")
    assert contents(store) == contents(source)
    source.close()


def test_an_incomplete_backup_is_refused_and_changes_nothing(store: Store, tmp_path: Path) -> None:
    filled(store)
    path = tmp_path / "copy.gz"
    back_up(store, path)
    with pytest.raises(SetupError, match="exists"):
        back_up(store, path)
    whole = gzip.decompress(path.read_bytes())
    lines = whole.splitlines(keepends=True)
    other = open_store(URL.create("sqlite", database=str(tmp_path / "other.db")))
    empty = contents(other)
    broken = [
        path.read_bytes()[:-20],
        b"text",
        gzip.compress(b""),
        gzip.compress(b"".join(lines[:-1])),
        gzip.compress(b"".join(lines[:3] + lines[4:])),
        gzip.compress(whole.replace(b"alice", b"eve")),
        gzip.compress(whole + b"{}\n"),
        gzip.compress(b'{"format": "another"}\n'),
    ]
    for number, raw in enumerate(broken):
        (bad := tmp_path / f"bad{number}").write_bytes(raw)
        with pytest.raises(SetupError, match="not a complete backup"):
            restore(other, bad)
    (newer := tmp_path / "newer").write_bytes(gzip.compress(b'{"format": "onward database 1", "version": 99}\n'))
    with pytest.raises(SetupError, match="schema version 99"):
        restore(other, newer)
    with pytest.raises(SetupError, match="cannot be read"):
        restore(other, tmp_path / "none")
    assert contents(other) == empty
    other.close()


def test_every_table_is_backed_up(store: Store) -> None:
    assert {table.name for table in tables()} == set(METADATA.tables)


def test_check_finds_counts_that_do_not_agree(store: Store) -> None:
    filled(store)
    assert problems(store) == []
    with store.begin() as connection:
        connection.execute(update(USAGES).values(num_running=3))
    assert sorted(problems(store)) == [
        "The key alice counts 3 running requests, but has 1 reservations.",
        "The key bob counts 3 running requests, but has 0 reservations.",
    ]
