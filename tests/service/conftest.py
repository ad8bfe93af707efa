"""A store of each database for the tests of this folder."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from sqlalchemy import URL

from onward.service.store import Store, open_store
from tests.examples import slow_but

from .databases import PostgreSQL, new_store, postgresql


class Clock:
    """A clock that tests set, in Unix milliseconds. It begins at 2026-11-26 12:00 UTC."""

    def __init__(self) -> None:
        self.now = 1_795_694_400_000

    def __call__(self) -> int:
        return self.now


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[PostgreSQL]:
    with postgresql() as server:
        yield server


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture(params=slow_but(["sqlite"], ["sqlite", "postgresql"]))
def url(request: pytest.FixtureRequest, tmp_path: Path) -> URL:
    """The URL of an empty database."""
    if request.param == "sqlite":
        return URL.create("sqlite", database=str(tmp_path / "onward.db"))
    server: PostgreSQL = request.getfixturevalue("postgres_server")
    return server.new_database()


@pytest.fixture
def store(url: URL, clock: Clock) -> Iterator[Store]:
    with ExitStack() as stack:
        is_file = url.get_backend_name() == "sqlite"
        opened = new_store(Path(url.database or ""), clock) if is_file else open_store(url, clock)
        stack.callback(opened.close)
        yield opened
