"""Copies of a database: every row as a line of JSON, compressed; restored into an empty database of either kind."""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
import os
import zlib
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from sqlalchemy import Column, Connection, LargeBinary, Table, func, insert, select, text, update

from onward.errors import SetupError
from onward.service.store import Store
from onward.service.tables import KEYS, META, METADATA, RESERVATIONS, USAGES, VERSION

FORMAT = "onward database 1"
ROWS_PER_INSERT, BYTES_PER_INSERT = 500, 8_000_000
ROWS_PER_READ = 8
"""A row may have a megabyte."""


def tables() -> list[Table]:
    """Return all tables, those that others refer to first."""
    first = (META, KEYS)
    return [*first, *(table for name, table in sorted(METADATA.tables.items()) if table not in first)]


def back_up(store: Store, path: Path) -> int:
    """Write a consistent snapshot of all rows to a new file that only this user can read; return their number. Servers
    keep running meanwhile. Raises SetupError; DatabaseAway."""
    partial = path.with_name(path.name + ".partial")
    if path.exists():
        raise SetupError(f"The file {path} exists: remove it, or choose another name.")
    try:
        with os.fdopen(os.open(partial, os.O_CREAT | os.O_TRUNC | os.O_WRONLY, 0o600), "wb") as raw:
            with gzip.GzipFile(fileobj=raw, mode="wb", mtime=0) as file, store.read() as connection:
                count = _write(connection, file)
            raw.flush()
            os.fsync(raw.fileno())
        partial.replace(path)
    except OSError as error:
        raise SetupError(f"The backup cannot be written to {path}: {error.strerror}.") from None
    finally:
        with suppress(OSError):
            partial.unlink()
    return count


def _write(connection: Connection, file: gzip.GzipFile) -> int:
    digest, count = hashlib.sha256(), 0

    def line(value: object) -> None:
        encoded = json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode() + b"\n"
        digest.update(encoded)
        file.write(encoded)

    line({"format": FORMAT, "version": VERSION})
    for table in tables():
        rows = connection.execution_options(yield_per=ROWS_PER_READ).execute(select(table))
        for row in rows:
            line(
                [
                    table.name,
                    *(base64.b64encode(value).decode() if isinstance(value, bytes) else value for value in row),
                ]
            )
            count += 1
    file.write(json.dumps({"rows": count, "sha256": digest.hexdigest()}).encode() + b"\n")
    return count


def restore(store: Store, path: Path) -> int:
    """Add the rows of a backup to an empty database, all or none; return their number. Raises SetupError."""
    count = sum(1 for _ in _rows(path))  # the whole file is checked before anything is written
    with store.begin() as connection:
        for table in tables():
            if table is not META and connection.execute(select(func.count()).select_from(table)).scalar_one():
                raise SetupError(
                    "The database is not empty: restore a backup into a new one (another --data-dir or --database)."
                )
        group: list[dict[str, Any]] = []
        num_bytes = 0
        before: Table | None = None
        for table, row in _rows(path):
            if table is META:
                connection.execute(update(META).where(META.c.name == row["name"]).values(value=row["value"]))
                continue
            is_full = len(group) == ROWS_PER_INSERT or num_bytes > BYTES_PER_INSERT
            if group and (table is not before or is_full):
                connection.execute(insert(before), group)  # type: ignore[arg-type]
                group, num_bytes = [], 0
            group.append(row)
            num_bytes += sum(len(value) for value in row.values() if isinstance(value, bytes))
            before = table
        if group and before is not None:
            connection.execute(insert(before), group)
    return count


def _rows(path: Path) -> Iterator[tuple[Table, dict[str, Any]]]:
    """Yield the rows of a backup. Raises SetupError, at the end at the latest, where it is not complete."""
    broken = SetupError(f"{path} is not a complete backup of `onward database backup`.")
    digest, count = hashlib.sha256(), 0
    try:
        with gzip.open(path, "rb") as file:
            line = file.readline(1000)
            head = json.loads(line)
            if head["format"] != FORMAT:
                raise broken
            if head["version"] != VERSION:
                raise SetupError(
                    f"{path} has schema version {head['version']}, but this version of Onward writes {VERSION}: "
                    "restore it with the version that wrote it, which is upgraded when a server starts."
                )
            while True:
                digest.update(line)
                line = file.readline()
                values = json.loads(line)
                if isinstance(values, dict):
                    break
                table = METADATA.tables[values[0]]
                count += 1
                yield table, dict(zip(table.columns.keys(), map(_value, table.columns, values[1:]), strict=True))
            if values != {"rows": count, "sha256": digest.hexdigest()} or file.read(1):
                raise broken
    except (ValueError, KeyError, TypeError, EOFError, zlib.error, gzip.BadGzipFile):
        raise broken from None
    except OSError as error:
        raise SetupError(f"The backup {path} cannot be read: {error.strerror}.") from None


def _value(column: Column[Any], value: Any) -> Any:
    return base64.b64decode(value) if isinstance(column.type, LargeBinary) else value


def problems(store: Store) -> list[str]:
    """Return what is wrong with a database, one sentence each."""
    found: list[str] = []
    with store.read() as connection:
        if store.is_sqlite:
            for row in connection.execute(text("PRAGMA integrity_check")).scalars():
                if row != "ok":
                    found.append(f"The file is damaged: {row}.")
            for broken in connection.execute(text("PRAGMA foreign_key_check")):
                found.append(f"A row of {broken[0]} belongs to a row of {broken[2]} that does not exist.")
        found += _check_reservations(connection)
    return found


def _check_reservations(connection: Connection) -> list[str]:
    of_requests = select(RESERVATIONS.c.key_id, func.count().label("number")).where(RESERVATIONS.c.is_batch == 0)
    counted = of_requests.group_by(RESERVATIONS.c.key_id)
    running = {row.key_id: row.number for row in connection.execute(counted)}
    names = {row.id: row.name for row in connection.execute(select(KEYS.c.id, KEYS.c.name))}
    return [
        f"The key {names.get(row.key_id, row.key_id)} counts {row.num_running} running requests, but has "
        f"{running.get(row.key_id, 0)} reservations."
        for row in connection.execute(select(USAGES.c.key_id, USAGES.c.num_running))
        if row.num_running != running.get(row.key_id, 0)
    ]
