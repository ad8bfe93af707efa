"""Databases for tests: files of SQLite, and a PostgreSQL server that runs as an unprivileged user."""

from __future__ import annotations

import getpass
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import URL, Connection, create_engine, text

from onward.service.keys import create_key
from onward.service.limits import Limits
from onward.service.store import Clock, DatabaseAway, Store, open_store, unix_ms
from tests.processes import children_of, is_running, kill
from tests.waiting import wait_for


@cache
def _empty_database() -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "onward.db"
        open_store(URL.create("sqlite", database=str(path))).close()
        return path.read_bytes()


def new_store(path: Path, clock: Clock = unix_ms) -> Store:
    """Open a new file of SQLite. Its tables are copied: to create them takes five times as long as all the rest."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(_empty_database())
    path.chmod(0o600)
    return open_store(URL.create("sqlite", database=str(path)), clock)


@contextmanager
def store_with(folder: Path, **keys: dict[str, Any]) -> Iterator[Store]:
    """Open a new file of SQLite with keys, by name: the secret of each is `sk-NAME`."""
    store = new_store(folder / "onward.db")
    with store.begin() as connection:
        for name, given in keys.items():
            create_key(connection, f"sk-{name}", name, given.pop("limits", Limits()), store.clock(), **given)
    yield store
    store.close()


class BreakingStore(Store):
    """A store whose database can be unreachable, or become so right after a commit, whose success is then not
    reported."""

    is_away = False
    forgets = False

    @contextmanager
    def begin(self) -> Iterator[Connection]:
        if self.is_away:
            raise DatabaseAway("it was unplugged.")
        with super().begin() as connection:
            yield connection
        if self.forgets:
            raise DatabaseAway("it was unplugged.")


class PostgreSQL:
    """A server of its own in a temporary folder, reached by a Unix socket there."""

    def __init__(self, folder: Path, bin: Path, user: str | None) -> None:
        self.folder = folder
        self._bin = bin
        self._user = user
        self._data = folder / "data"
        self.process: subprocess.Popen[bytes] | None = None
        self._run("initdb", "-D", str(self._data), "-U", "onward", "--auth=trust", "--no-sync")
        self.start()

    def _run(self, program: str, *arguments: str) -> None:
        subprocess.run(
            [self._bin / program, *arguments], user=self._user, cwd=self.folder, check=True, capture_output=True
        )

    def start(self) -> None:
        self.process = process = subprocess.Popen(
            [
                *(self._bin / "postgres", "-D", self._data, "-k", self.folder),
                *("-c", "listen_addresses=", "-c", "fsync=off", "-c", "max_connections=50"),
            ],
            user=self._user,
            cwd=self.folder,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        wait_for(lambda: process.poll() is not None or self._answers(), "PostgreSQL")
        assert process.poll() is None, "PostgreSQL did not start"

    def _answers(self) -> bool:
        command = [str(self._bin / "pg_isready"), "-q", "-h", str(self.folder)]
        return subprocess.run(command, capture_output=True, check=False).returncode == 0

    def kill(self) -> None:
        """End the server as a power failure would. Returns when none of its processes is left: the next server does not
        start while one of them still has its memory."""
        assert self.process is not None
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGSTOP)  # it would replace processes that end
            os.waitid(os.P_PID, self.process.pid, os.WSTOPPED)
            children = children_of(self.process.pid)
            kill(*children, self.process.pid)
            wait_for(lambda: not any(map(is_running, children)), "the end of PostgreSQL's processes")
        self.process.wait()
        (self._data / "postmaster.pid").unlink(missing_ok=True)

    def new_database(self, template: str = "template1") -> URL:
        name = f"test_{uuid.uuid4().hex[:12]}"
        engine = create_engine(self.url("postgres"), isolation_level="AUTOCOMMIT")
        with engine.connect() as connection:
            connection.execute(text(f"CREATE DATABASE {name} TEMPLATE {template}"))
        engine.dispose()
        return self.url(name)

    def copy_of(self, url: URL) -> URL:
        """Copy a database that has no connections."""
        return self.new_database(url.database or "")

    def url(self, name: str) -> URL:
        return URL.create("postgresql+psycopg", username="onward", database=name, query={"host": str(self.folder)})


@contextmanager
def postgresql() -> Iterator[PostgreSQL]:
    """A running server. Skips the test, with the reason, where Debian's package is missing."""
    pytest.importorskip("psycopg", reason="the extra onward[postgres] is not installed")
    bins = sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda path: int(path.parent.name))
    if not bins or not (bins[-1] / "initdb").exists():
        pytest.skip("PostgreSQL is not installed (Debian: apt-get install postgresql)")
    user = None
    if os.geteuid() == 0:  # it refuses to run as root
        user = "postgres"
        try:
            pwd.getpwnam(user)
        except KeyError:
            pytest.skip("PostgreSQL does not run as root, and there is no user postgres")
    folder = Path(tempfile.mkdtemp(prefix="onward-pg-"))  # a socket's path is short
    shutil.chown(folder, user or getpass.getuser())
    folder.chmod(0o755)
    server = PostgreSQL(folder, bins[-1], user)
    try:
        yield server
    finally:
        server.kill()
        shutil.rmtree(folder, ignore_errors=True)
