"""Rows from the spool to the ledger: batched where nothing waits for them, each exactly once."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from sqlalchemy import Connection, select

from onward.service import recorder as recorder_module
from onward.service.grant import Grant
from onward.service.limits import Limits, Reservation
from onward.service.recorder import GATHER_SECONDS, Recorder
from onward.service.records import LedgerRow
from onward.service.spool import Spool
from onward.service.spool_file import SpoolEntry
from onward.service.store import DatabaseAway, Store
from onward.service.tables import REQUESTS
from onward.service.writer import Writer
from tests.server.fakes import in_loop, skip
from tests.waiting import until

from .spool_rows import EMPTY
from .test_ledger import count
from .test_reservations import begin, new_grant, reserved, usage_of


class CountingWriter(Writer):
    """A writer that counts operations, whose database can be away."""

    is_away = False
    num_operations = 0

    def submit(self, run: Callable[[Connection], Any], key: str = "") -> Future[Any]:
        self.num_operations += 1
        if self.is_away:
            future: Future[Any] = Future()
            future.set_exception(DatabaseAway("it was unplugged."))
            return future
        return super().submit(run, key)


class Bench:
    """A recorder over a store, with its writer and spool."""

    def __init__(self, store: Store, folder: Path) -> None:
        self.store = store
        self.grants: dict[str, Grant] = {}
        self.away: list[str] = []
        self.spool = Spool(folder, "face")
        self.writer = CountingWriter(store)
        self.recorder = Recorder(self.spool, self.writer, lambda: self.grants, self.away.append)

    def end(self, id: str, grant: Grant | None = None, reservation: str | None = None, **given: Any) -> SpoolEntry:
        """Record a request that has ended; nothing is written while the database is away."""
        row = replace(EMPTY, id=id, ended_ms=self.store.clock(), key_id="" if grant is None else grant.id, **given)
        entry = SpoolEntry(row, row.key_id, reservation)
        self.spool.end(entry)
        if not self.writer.is_away:
            self.recorder.record(entry)
        return entry

    async def settled(self) -> None:
        await until(lambda: not self.spool.num_waiting)

    def rows(self) -> dict[str, LedgerRow]:
        with self.store.read() as connection:
            found = connection.execute(select(REQUESTS)).mappings().all()
        names = LedgerRow.__struct_fields__
        return {row["id"]: LedgerRow(**{name: row[name] for name in names}) for row in found}


@contextmanager
def bench_of(store: Store, folder: Path) -> Iterator[Bench]:
    bench = Bench(store, folder)
    try:
        yield bench
    finally:
        bench.recorder.flush()
        bench.writer.close()
        bench.spool.close()


def test_rows_that_reserved_nothing_are_written_together_and_are_the_same(store: Store, tmp_path: Path) -> None:
    grant = new_grant(store, Limits())

    @in_loop
    async def test() -> None:
        with bench_of(store, tmp_path) as bench:
            ended = [bench.end(f"r{i}", grant if i % 2 else None, completion_tokens=i) for i in range(40)]
            await bench.settled()
            assert bench.writer.num_operations == 1
            assert bench.rows() == {entry.row.id: entry.row for entry in ended}

    test()


def test_what_a_key_waits_for_is_written_at_once(store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recorder_module, "GATHER_SECONDS", 1000)
    grant = new_grant(store, Limits(tokens_per_day=100))
    assert isinstance(begin(store, "reserved", grant, 60), Reservation)

    @in_loop
    async def test() -> None:
        with bench_of(store, tmp_path) as bench:
            bench.end("first")
            await bench.settled()
            bench.end("gathered")
            bench.end("r", grant, "reserved", completion_tokens=5)
            await until(lambda: not reserved(store))
            assert bench.writer.num_operations == 2 and bench.spool.num_waiting

    test()
    assert usage_of(store, grant).day_tokens == 5 and count(store) == 3


def test_rows_that_come_one_by_one_are_written_once_per_second(store: Store, tmp_path: Path) -> None:
    @in_loop
    async def test() -> None:
        with bench_of(store, tmp_path) as bench:
            for number in range(40):
                bench.end(f"r{number}")
                await skip(GATHER_SECONDS / 10)
                await asyncio.sleep(0)
            await bench.settled()
            assert 4 <= bench.writer.num_operations <= 6 and count(store) == 40

    test()


def test_rows_that_are_asked_for_before_their_time_set_no_more_timers(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    timers: list[float] = []

    @in_loop
    async def test() -> None:
        with bench_of(store, tmp_path) as bench, monkeypatch.context() as patch:
            patch.setattr(asyncio.get_running_loop(), "call_at", lambda when, _: timers.append(when))
            for number in range(40):
                bench.end(f"r{number}")
                bench.recorder.flush()

    test()
    assert len(timers) == 1 and count(store) == 40


def test_a_row_that_cannot_be_written_holds_up_no_other(store: Store, tmp_path: Path) -> None:
    @in_loop
    async def test() -> None:
        with bench_of(store, tmp_path) as bench:
            for i in range(3):
                bench.end(f"r{i}")
            bench.end("wrong", status=None)  # the column is NOT NULL
            await until(lambda: bench.spool.num_waiting <= 1)
            assert bench.rows().keys() == {"r0", "r1", "r2"}
            assert [entry.row.id for entry in bench.spool.ended()] == ["wrong"]

    test()


def test_a_row_that_cannot_be_written_leaves_nothing_reserved(store: Store, tmp_path: Path) -> None:
    grant = new_grant(store, Limits(tokens_per_day=100))
    assert isinstance(begin(store, "reserved", grant, 60), Reservation)

    @in_loop
    async def test() -> None:
        with bench_of(store, tmp_path) as bench:
            bench.end("wrong", grant, "reserved", status=None)  # the column is NOT NULL
            await until(lambda: not reserved(store))
            assert bench.spool.num_waiting == 1

    test()
    assert (usage_of(store, grant).day_tokens, usage_of(store, grant).num_running) == (0, 0)


@pytest.mark.parametrize("is_known", [True, False])
def test_a_stream_resumed_while_the_database_is_unreachable_settles_its_reservation(
    store: Store, tmp_path: Path, is_known: bool
) -> None:
    """The row is replaced by one with more delivered tokens before the database has the first."""
    grant = new_grant(store, Limits(tokens_per_day=100))
    assert isinstance(begin(store, "reserved", grant, 60), Reservation)

    @in_loop
    async def test() -> None:
        with bench_of(store, tmp_path) as bench:
            bench.grants = {grant.id: grant} if is_known else {}
            bench.writer.is_away = True
            bench.end("r", grant, "reserved", completion_tokens=9, delivered_tokens=2)
            bench.end("r", grant, completion_tokens=9, delivered_tokens=9)
            bench.recorder.record_ended()
            assert bench.away == ["it was unplugged."]
            bench.writer.is_away = False
            bench.recorder.record_ended()
            await bench.settled()
            assert bench.rows()["r"].delivered_tokens == 9

    test()
    assert (reserved(store), usage_of(store, grant).day_tokens, usage_of(store, grant).num_running) == (0, 9, 0)


def test_rows_of_one_request_in_one_group_are_one_row(store: Store, tmp_path: Path) -> None:
    @in_loop
    async def test() -> None:
        with bench_of(store, tmp_path) as bench:
            bench.end("r", completion_tokens=9, delivered_tokens=2)
            bench.end("r", completion_tokens=9, delivered_tokens=7)
            await bench.settled()
            bench.end("r", completion_tokens=9, delivered_tokens=9)
            await skip(GATHER_SECONDS)
            await bench.settled()
            assert {id: row.delivered_tokens for id, row in bench.rows().items()} == {"r": 9}

    test()
