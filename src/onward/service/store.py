"""The database of a team: SQLite or PostgreSQL, over SQLAlchemy Core."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import sqlalchemy
from sqlalchemy import URL, Connection, Engine, event, exc

from onward.errors import OnwardError, SetupError
from onward.machine import bytes_in_words, room_wanted
from onward.service.tables import migrate

ANSWER_SECONDS = 2.0
"""A database that has not answered for so long is away."""
LOCK_SECONDS = 2
"""How long a transaction waits for one of another process."""
STATEMENT_SECONDS = 30
CONNECT_SECONDS = 3
KEEP_ALIVE = {
    "keepalives_idle": 5, "keepalives_interval": 2, "keepalives_count": 3, "tcp_user_timeout": 10_000,
}  # fmt: skip
"""A server that vanishes silently is noticed within some 10 seconds, not after hours (libpq's parameters)."""
RESERVE_BYTES = 100_000_000
"""What files and batches leave free of the disk of a SQLite database, for the ledger."""
_DEADLOCK = "40P01"
"""Of SQLSTATE, for PostgreSQL."""
Clock = Callable[[], int]
"""Unix time in milliseconds."""


class DatabaseAway(OnwardError):
    """The database cannot be reached, is locked, full or read-only. The argument is the reason, without secrets."""


class Deadlock(DatabaseAway):
    """The database has ended this transaction, because it and another one waited for each other's rows."""


def unix_ms() -> int:
    return time.time_ns() // 1_000_000


class Store:
    """A database whose tables have the newest version. Used on any thread. `clock` is that of this machine."""

    def __init__(self, engine: Engine, clock: Clock = unix_ms) -> None:
        self._engine = engine
        self.clock = clock

    @property
    def is_sqlite(self) -> bool:
        return self._engine.dialect.name == "sqlite"

    def has_room(self, num_bytes: int) -> bool:
        """Whether so many bytes may be added to files. Always true for a database elsewhere, which knows itself."""
        if not self.is_sqlite or self._engine.url.database is None:
            return True
        return shutil.disk_usage(Path(self._engine.url.database).parent).free >= RESERVE_BYTES + num_bytes

    @contextmanager
    def begin(self) -> Iterator[Connection]:
        """Open a transaction that writes, and commit it. Raises DatabaseAway."""
        with _converted_errors(), self._engine.begin() as connection:
            yield connection

    @contextmanager
    def read(self) -> Iterator[Connection]:
        """Open a transaction that only reads, of one state of the database. Raises DatabaseAway."""
        with _converted_errors(), self._engine.connect() as connection:
            level = {} if self.is_sqlite else {"isolation_level": "REPEATABLE READ"}
            with connection.execution_options(reads=True, **level).begin():
                yield connection

    def close(self) -> None:
        self._engine.dispose()


def open_store(url: URL, clock: Clock = unix_ms, *, creates: bool = True) -> Store:
    """Open the database at a URL, and bring its tables to the newest version.

    `creates` False: a file of SQLite must exist. Raises SetupError, without the URL's password.
    """
    engine = _engine(url, creates=creates)
    store = Store(engine, clock)
    try:
        with store.begin() as connection:
            migrate(connection)
    except DatabaseAway as problem:
        engine.dispose()
        raise SetupError(f"The database {url.render_as_string()} cannot be used: {problem}") from None
    except BaseException:
        engine.dispose()
        raise
    return store


def _engine(url: URL, *, creates: bool) -> Engine:
    if url.get_backend_name() == "sqlite":
        path = Path(url.database or "")
        _prepare_file(path, creates=creates)
        engine = sqlalchemy.create_engine(url, connect_args={"timeout": LOCK_SECONDS}, hide_parameters=True)
        event.listen(engine, "connect", _configure_sqlite)
        event.listen(engine, "begin", _begin_sqlite)
        return engine
    options = f"-c statement_timeout={STATEMENT_SECONDS}s -c lock_timeout={LOCK_SECONDS}s"
    try:
        return sqlalchemy.create_engine(
            url.set(drivername="postgresql+psycopg"),
            connect_args={
                "connect_timeout": CONNECT_SECONDS,
                "options": options,
                "application_name": "onward",
                **KEEP_ALIVE,
            },
            pool_pre_ping=True,
            hide_parameters=True,  # they are what clients have sent
        )
    except ImportError:
        raise SetupError("PostgreSQL needs another package: run pip install 'onward[postgres]'.") from None


def _prepare_file(path: Path, *, creates: bool) -> None:
    """Create the file of a new SQLite database so that only this user can read it. Raises SetupError."""
    if path.exists():
        return
    if not creates:
        raise SetupError(f"There is no database at {path}. `onward serve` and `onward key new` create it.")
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        os.close(os.open(path, os.O_CREAT | os.O_WRONLY, 0o600))
    except OSError as error:
        wanted = room_wanted(error, RESERVE_BYTES)
        raise SetupError(f"The database {path} cannot be created: {error.strerror}{wanted}.") from None


def _configure_sqlite(connection: Any, _: object) -> None:
    """Set up a connection of SQLite: transactions are begun by `_begin_sqlite`; readers do not wait for the writer. A
    commit survives the end of the process, and with the disk's next flush the machine's."""
    connection.isolation_level = None
    for pragma in ("journal_mode=WAL", "synchronous=NORMAL", "foreign_keys=ON"):
        connection.execute(f"PRAGMA {pragma}").close()


def _begin_sqlite(connection: Connection) -> None:
    reads = connection.get_execution_options().get("reads", False)
    connection.exec_driver_sql("BEGIN" if reads else "BEGIN IMMEDIATE")


@contextmanager
def _converted_errors() -> Iterator[None]:
    """Raise DatabaseAway for what is the database's fault, with its reason as one sentence."""
    try:
        yield
    except (exc.OperationalError, exc.InternalError, exc.InterfaceError, exc.TimeoutError) as error:
        kind = Deadlock if getattr(getattr(error, "orig", None), "sqlstate", None) == _DEADLOCK else DatabaseAway
        raise kind(_reason(error)) from None
    except exc.DatabaseError as error:
        if isinstance(error, (exc.IntegrityError, exc.ProgrammingError, exc.DataError)):
            raise
        raise DatabaseAway(_reason(error)) from None


def _reason(error: exc.SQLAlchemyError) -> str:
    cause = str(getattr(error, "orig", None) or error).strip().splitlines()
    reason = (cause[0] if cause else "it does not answer").rstrip(".")
    if "disk is full" in reason:
        reason += f"; {bytes_in_words(RESERVE_BYTES)} should be free"
    if "readonly database" in reason:
        reason += "; its file and folder must be writable for the user who runs the server, and belong to them"
    return f"{reason}."
