"""Data of a key that is sent while the key is being forgotten, of which servers learn late: none of it may stay."""

from __future__ import annotations

import pytest
from sqlalchemy import func, select

from onward.errors import AuthenticationFailed
from onward.service.batch_records import NewLine, StoredBatch
from onward.service.batch_store import BatchStore
from onward.service.batches import create_batch, is_validated_here
from onward.service.desk import Desk
from onward.service.keys import forget_key
from onward.service.limits import NO_LIMITS, Limits
from onward.service.lines import add_lines
from onward.service.store import Store
from onward.service.tables import BATCHES, FILES, LINES
from onward.service.writer import Writer
from tests.server.fakes import in_loop

from .test_ledger import beside
from .test_reservations import new_grant


def batch_of(key_id: str, now: int) -> StoredBatch:
    return StoredBatch(
        id="batch_1",
        key_id=key_id,
        endpoint="/v1/completions",
        input_file_id="file-1",
        completion_window="24h",
        status="validating",
        created_ms=now,
        expires_ms=now + 1000,
    )


def owners(store: Store) -> list[str]:
    """The keys of all files and batches."""
    with store.read() as connection:
        return [row.key_id for table in (FILES, BATCHES) for row in connection.execute(select(table.c.key_id))]


def test_nothing_is_stored_for_a_key_that_was_forgotten(store: Store) -> None:
    forgotten, of_a_file = new_grant(store, Limits()).id, "key_of_a_file"
    with store.begin() as connection:
        forget_key(connection, "alice", store.clock())

    async def upload(batches: BatchStore, key_id: str) -> None:
        async with batches.receiving(key_id, NO_LIMITS) as receiving:
            await receiving.finish("batch", "in.jsonl", 60)

    @in_loop
    async def test() -> None:
        writer = Writer(store)
        batches = BatchStore(Desk(store, writer, "face"))
        with pytest.raises(AuthenticationFailed):
            await upload(batches, forgotten)
        with pytest.raises(AuthenticationFailed):
            await batches.create_batch(batch_of(forgotten, store.clock()))
        await upload(batches, of_a_file)
        await batches.create_batch(batch_of(of_a_file, store.clock()))
        await upload(batches, "")
        writer.close()

    test()
    assert sorted(owners(store)) == ["", of_a_file, of_a_file]


def test_lines_that_are_about_to_be_committed_are_forgotten_with_their_key(store: Store) -> None:
    batch = batch_of(new_grant(store, Limits()).id, store.clock())
    with store.begin() as connection:
        create_batch(connection, batch)
    with beside(store, lambda connection: forget_key(connection, "alice", store.clock())) as connection:
        assert is_validated_here(connection, batch)
        add_lines(connection, batch.id, [NewLine(1, b'"a"', b"{}")])
    with store.read() as connection:
        assert connection.execute(select(func.count()).select_from(LINES)).scalar_one() == 0
    assert owners(store) == []
