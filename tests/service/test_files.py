"""Files in both databases: whose they are, when they are gone, and what a key may store."""

from __future__ import annotations

import re
import time

import pytest
from sqlalchemy import Connection, func, select

from onward.service import batch_records, files
from onward.service.batch_records import StoredFile, new_batch_id
from onward.service.files import (
    add_part,
    begin_upload,
    delete_file,
    find_file,
    finish_upload,
    forget_files,
    forget_upload,
    list_files,
    new_file_id,
    purge_files,
    read_parts,
    stored_bytes,
)
from onward.service.limits import NO_LIMITS, Limits
from onward.service.reservations import beat
from onward.service.store import Store
from onward.service.tables import CONTENTS

from .conftest import Clock


def add(
    connection: Connection, file_id: str, data: bytes, now: int, key: str = "key_a", life: int = 1000
) -> StoredFile:
    begin_upload(connection, file_id, key, "face", now)
    for number, begin in enumerate(range(0, len(data), 4)):
        assert add_part(connection, file_id, key, number, data[begin : begin + 4], NO_LIMITS) is None
    found = finish_upload(connection, file_id, "batch", "in.jsonl", now + life)
    assert found is not None
    return found


def contents(connection: Connection, file: StoredFile) -> bytes:
    found, after = b"", -1
    while parts := list(read_parts(connection, file, after)):
        found += b"".join(data for _, data in parts)
        after = parts[-1][0]
    return found


def test_a_file_is_its_keys_until_it_expires_or_is_deleted(store: Store, clock: Clock) -> None:
    now = clock.now
    with store.begin() as connection:
        file = add(connection, "file-1", b"0123456789\x00\xff", now)
        assert (file.bytes, contents(connection, file)) == (12, b"0123456789\x00\xff")
        assert find_file(connection, "key_a", "file-1", now) == file
        assert find_file(connection, "key_b", "file-1", now) is None
        assert find_file(connection, "key_a", "file-1", now + 1000) is None, "it has expired"
        purge_files(connection, now + 999)
        assert stored_bytes(connection, "key_a") == 12
        purge_files(connection, now + 1000)
        assert stored_bytes(connection, "key_a") == 0
        second = add(connection, "file-2", b"abc", now)
        delete_file(connection, second)
        assert find_file(connection, "key_a", "file-2", now) is None
        add(connection, "file-3", b"abc", now)
        forget_files(connection, "key_a")
        assert connection.execute(select(func.count()).select_from(CONTENTS)).scalar_one() == 0


def test_a_file_that_is_received_exists_for_nobody_and_goes_with_its_server(store: Store, clock: Clock) -> None:
    now = clock.now
    with store.begin() as connection:
        beat(connection, "living", {}, now)
        for face in ("living", "dead"):
            begin_upload(connection, f"file-{face}", "key_a", face, now)
            add_part(connection, f"file-{face}", "key_a", 0, b"abc", NO_LIMITS)
            assert find_file(connection, "key_a", f"file-{face}", now) is None
        assert list_files(connection, "key_a", now, 10, purpose="", after=None, newest=True) == []
        assert stored_bytes(connection, "key_a") == 6, "it counts already"
        purge_files(connection, now)
        assert stored_bytes(connection, "key_a") == 3
        assert finish_upload(connection, "file-dead", "batch", "x", None) is None
        forget_upload(connection, "file-living")
        assert stored_bytes(connection, "key_a") == 0


def test_a_file_whose_commit_was_not_reported_is_removed_with_its_upload(store: Store, clock: Clock) -> None:
    """The client was told that the database does not respond."""
    with store.begin() as connection:
        add(connection, "file-1", b"abc", clock.now)
        forget_upload(connection, "file-1")
        assert find_file(connection, "key_a", "file-1", clock.now) is None
        assert connection.execute(select(func.count()).select_from(CONTENTS)).scalar_one() == 0


def test_a_key_stores_no_more_than_it_may(store: Store, clock: Clock) -> None:
    limits = Limits(stored_bytes=10)
    with store.begin() as connection:
        begin_upload(connection, "file-1", "key_a", "face", clock.now)
        assert add_part(connection, "file-1", "key_a", 0, b"x" * 10, limits) is None
        assert add_part(connection, "file-1", "key_a", 1, b"x", limits) == 10
        assert stored_bytes(connection, "key_a") == 10
        begin_upload(connection, "file-2", "key_b", "face", clock.now)
        assert add_part(connection, "file-2", "key_b", 0, b"x" * 10, limits) is None


def test_lists_follow_time_even_within_a_millisecond(store: Store, clock: Clock) -> None:
    now = clock.now
    with store.begin() as connection:
        files = [add(connection, f"file-{name}", b"x", now + name // 2) for name in range(6)]
        add(connection, "file-z", b"x", now, key="key_b")
        newest = list_files(connection, "key_a", now, 10, purpose="batch", after=None, newest=True)
        assert newest == files[::-1]
        for index in range(6):
            after = list_files(connection, "key_a", now, 2, purpose="", after=files[index], newest=False)
            assert after == files[index + 1 : index + 3]
            before = list_files(connection, "key_a", now, 2, purpose="", after=files[index], newest=True)
            assert before == files[:index][::-1][:2]
        assert list_files(connection, "key_a", now, 9, purpose="batch_output", after=None, newest=True) == []


def test_files_of_one_millisecond_are_listed_as_they_were_made(store: Store, clock: Clock) -> None:
    made = [new_file_id() for _ in range(20)]
    with store.begin() as connection:
        for each in made:
            add(connection, each, b"", clock.now)
        listed, after = list[str](), None
        while found := list_files(connection, "key_a", clock.now, 3, purpose="", after=after, newest=False):
            listed, after = [*listed, *(each.id for each in found)], found[-1]
        newest = list_files(connection, "key_a", clock.now, 20, purpose="", after=None, newest=True)
    assert listed == made
    assert [each.id for each in newest] == made[::-1]
    assert all(re.fullmatch(r"file-[A-Za-z0-9]{22}", each) for each in made)


def test_ids_stay_in_order_where_the_clock_goes_back(monkeypatch: pytest.MonkeyPatch) -> None:
    moments = iter((1 << 50, 1 << 49, 1 << 49))
    monkeypatch.setattr(batch_records, "next_moment", batch_records._Moments())
    monkeypatch.setattr(files, "next_moment", batch_records.next_moment)
    monkeypatch.setattr(time, "time_ns", lambda: next(moments))
    first, batch, second = new_file_id(), new_batch_id(7_000), new_file_id()
    assert first < second and second[:-10] != first[:-10]
    assert re.fullmatch(r"batch_00000007[0-9a-f]{24}", batch)


def test_batches_of_one_second_are_in_order() -> None:
    made = [new_batch_id(7_000) for _ in range(20)]
    assert made == sorted(made)
