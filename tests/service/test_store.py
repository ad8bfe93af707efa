"""The database itself: migrations, newer versions, what cannot be used, and what is committed together."""

from __future__ import annotations

import sqlite3
import stat
import threading
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path

import pytest
from sqlalchemy import URL, Connection, event, inspect, select, text, update

from onward.errors import SetupError
from onward.service.store import DatabaseAway, Store, open_store
from onward.service.tables import FACES, META, METADATA, VERSION
from onward.service.writer import Writer
from tests.waiting import PATIENCE_SECONDS

from .databases import PostgreSQL


def test_migrations_make_the_tables_that_the_code_knows(store: Store) -> None:
    with store.read() as connection:
        found = inspect(connection)
        assert set(found.get_table_names()) == set(METADATA.tables)
        for name, table in METADATA.tables.items():
            columns = {column["name"]: column["nullable"] for column in found.get_columns(name)}
            keys = set(found.get_pk_constraint(name)["constrained_columns"])
            assert columns.keys() == {column.name for column in table.columns}
            for column in table.columns:
                assert column.primary_key is (column.name in keys)
                assert column.primary_key or column.nullable is columns[column.name], (name, column.name)


def test_a_database_of_a_newer_version_is_refused_and_unchanged(url: URL, store: Store) -> None:
    with store.begin() as connection:
        connection.execute(update(META).where(META.c.name == "version").values(value=VERSION + 1))
    with pytest.raises(SetupError, match=f"schema version {VERSION + 1}"):
        open_store(url)
    with store.read() as connection:
        assert connection.execute(select(META.c.value).where(META.c.name == "version")).scalar_one() == VERSION + 1


def test_servers_that_start_together_migrate_once(url: URL) -> None:
    problems: list[Exception] = []

    def start() -> None:
        try:
            open_store(url).close()
        except Exception as problem:
            problems.append(problem)

    threads = [threading.Thread(target=start) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not problems


def test_a_file_is_readable_by_its_user_only(tmp_path: Path) -> None:
    path = tmp_path / "data" / "onward.db"
    open_store(URL.create("sqlite", database=str(path))).close()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700


def test_what_cannot_be_used_is_said_without_the_password(tmp_path: Path) -> None:
    pytest.importorskip("psycopg")
    with pytest.raises(SetupError) as caught:
        open_store(URL.create("postgresql", "onward", "hunter2", "127.0.0.1", 1, "team"))
    assert "127.0.0.1" in str(caught.value) and "hunter2" not in str(caught.value)
    no_database = tmp_path / "text"
    no_database.write_text("This is no database. " * 100, encoding="utf-8")
    with pytest.raises(SetupError, match="not a database"):
        open_store(URL.create("sqlite", database=str(no_database)))
    with pytest.raises(SetupError, match="There is no database at"):
        open_store(URL.create("sqlite", database=str(tmp_path / "none.db")), creates=False)


def test_a_database_that_another_program_locks_is_away_and_comes_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("onward.service.store.LOCK_SECONDS", 0.05)
    path = tmp_path / "onward.db"
    store = open_store(URL.create("sqlite", database=str(path)))
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(DatabaseAway, match="locked"), store.begin():
        pass
    other.execute("ROLLBACK")
    with store.begin() as connection:
        connection.execute(text("SELECT 1"))
    other.close()
    store.close()


def test_a_read_only_database_is_away_and_comes_back(tmp_path: Path) -> None:
    store = open_store(URL.create("sqlite", database=str(tmp_path / "onward.db")))

    def make_read_only(connection: sqlite3.Connection, _: object) -> None:
        connection.execute("PRAGMA query_only=ON").close()

    event.listen(store._engine, "connect", make_read_only)
    store._engine.dispose()
    with pytest.raises(DatabaseAway, match="attempt to write a readonly database"), store.begin() as connection:
        connection.execute(update(META).where(META.c.name == "version").values(value=VERSION))
    event.remove(store._engine, "connect", make_read_only)
    store._engine.dispose()
    with store.begin() as connection:
        connection.execute(update(META).where(META.c.name == "version").values(value=VERSION))
    store.close()


def test_what_waits_is_committed_together_and_a_failing_operation_fails_alone(store: Store) -> None:
    writer = Writer(store)
    entered, may_go_on = threading.Event(), threading.Event()

    def hold(connection: Connection) -> None:
        entered.set()
        may_go_on.wait(PATIENCE_SECONDS)

    def add(name: str) -> Future[object]:
        return writer.submit(lambda connection: connection.execute(FACES.insert().values(id=name, seen_ms=1)).rowcount)

    first = writer.submit(hold)
    entered.wait(PATIENCE_SECONDS)
    futures = [add("a"), add("b"), add("a"), add("c")]  # the third has a key that exists
    may_go_on.set()
    assert first.result(PATIENCE_SECONDS) is None
    results = [future.exception(PATIENCE_SECONDS) is None for future in futures]
    writer.close(10)
    assert results == [True, True, False, True]
    with store.read() as connection:
        assert set(connection.execute(select(FACES.c.id)).scalars()) == {"a", "b", "c"}


@pytest.mark.slow
def test_operations_that_together_wait_for_another_server_that_waits_for_them_run_alone(
    postgres_server: PostgreSQL,
) -> None:
    store = open_store(postgres_server.new_database())
    writer = Writer(store)
    entered, may_go_on, has_first, has_second = (threading.Event() for _ in range(4))

    def add(connection: Connection, name: str) -> None:
        connection.execute(update(FACES).where(FACES.c.id == name).values(seen_ms=FACES.c.seen_ms + 1))

    def hold(connection: Connection) -> None:
        entered.set()
        may_go_on.wait(PATIENCE_SECONDS)

    def add_first(connection: Connection) -> None:
        add(connection, "first")
        has_first.set()
        has_second.wait(PATIENCE_SECONDS)

    def add_both() -> None:
        with store.begin() as connection:
            for name in ("deadlock_timeout = 60000", "lock_timeout = 0"):  # the other transaction is aborted
                connection.execute(text(f"SET LOCAL {name}"))
            has_first.wait(PATIENCE_SECONDS)
            add(connection, "second")
            has_second.set()
            add(connection, "first")

    with store.begin() as connection:
        for name in ("first", "second"):
            connection.execute(FACES.insert().values(id=name, seen_ms=0))
    writer.submit(hold)
    entered.wait(PATIENCE_SECONDS)
    futures = [writer.submit(add_first), writer.submit(lambda connection: add(connection, "second"))]
    may_go_on.set()
    add_both()
    assert [future.exception(PATIENCE_SECONDS) for future in futures] == [None, None]
    writer.close(10)
    with store.read() as connection:
        assert connection.execute(select(FACES.c.seen_ms)).scalars().all() == [2, 2]
    store.close()


def test_required_writes_are_retried_until_the_database_responds_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Meanwhile it blocks nothing else, and the number of waiting calls is bounded."""
    monkeypatch.setattr("onward.service.store.LOCK_SECONDS", 0.05)
    monkeypatch.setattr("onward.service.writer.MAX_KEPT", 2)
    monkeypatch.setattr("onward.service.writer.KEPT_SECONDS", 0.0)
    path = tmp_path / "onward.db"
    store = open_store(URL.create("sqlite", database=str(path)))
    writer = Writer(store)
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")

    def adding(name: str) -> Callable[[Connection], object]:
        return lambda connection: connection.execute(FACES.insert().values(id=name, seen_ms=1))

    for name in ("a", "b", "one too many"):
        writer.ensure(adding(name))
    assert isinstance(writer.submit(adding("c")).exception(PATIENCE_SECONDS), DatabaseAway)
    other.execute("ROLLBACK")
    other.close()
    writer.submit(adding("d")).result(PATIENCE_SECONDS)
    writer.close(10)
    with store.read() as connection:
        assert set(connection.execute(select(FACES.c.id)).scalars()) == {"a", "b", "d"}
    store.close()


def test_a_full_disk_is_reported_in_one_message_with_the_size_that_is_needed(tmp_path: Path) -> None:
    store = open_store(URL.create("sqlite", database=str(tmp_path / "onward.db")))
    full = r"database or disk is full; 100\.0 MB should be free\."
    with pytest.raises(DatabaseAway, match=full), store.begin() as connection:
        connection.exec_driver_sql("PRAGMA max_page_count = 1")
        connection.execute(META.insert().values(name="x" * 100_000, value=1))
    store.close()
