"""The ledger: rows are written once, and their sums are those of an independent count."""

from __future__ import annotations

import locale
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from sqlalchemy import Connection, func, select, text

from onward.service.grant import Grant
from onward.service.keys import forget_key
from onward.service.ledger import forget_rows, sums, write_row
from onward.service.limits import Limits, Reservation
from onward.service.records import LedgerRow, Question, edges
from onward.service.store import Store
from onward.service.tables import REQUESTS
from tests.waiting import wait_for

from .spool_rows import EMPTY
from .test_reservations import begin, new_grant, usage_of


def write(store: Store, row: LedgerRow, grant: Grant | None = None, reservation: str | None = None) -> None:
    with store.begin() as connection:
        write_row(connection, row, grant, reservation)


def count(store: Store) -> int:
    with store.read() as connection:
        return int(connection.execute(select(func.count()).select_from(REQUESTS)).scalar_one())


@contextmanager
def beside(store: Store, run: Callable[[Connection], object]) -> Iterator[Connection]:
    """Open a transaction, and commit it while another one, which runs `run` when the block has ended, waits for it."""

    def run_beside() -> None:
        with store.begin() as connection:
            if not store.is_sqlite:
                connection.execute(text("SET LOCAL lock_timeout = 0"))
            run(connection)

    def waits() -> bool:
        with store.read() as connection:
            return bool(connection.execute(text("SELECT count(*) FROM pg_locks WHERE NOT granted")).scalar_one())

    other = threading.Thread(target=run_beside)
    with store.begin() as connection:
        yield connection
        other.start()
        if not store.is_sqlite:  # which begins one transaction at a time
            wait_for(waits, "the second transaction")
    other.join()


def test_a_row_that_is_written_twice_counts_and_settles_once(store: Store) -> None:
    grant = new_grant(store, Limits(tokens_per_day=100))
    assert isinstance(begin(store, "r", grant, 60), Reservation)
    row = replace(EMPTY, id="a", key_id=grant.id, prompt_tokens=20, completion_tokens=5, ended_ms=store.clock())
    for _ in range(3):
        write(store, row, grant, "r")
    assert (count(store), usage_of(store, grant).day_tokens, usage_of(store, grant).num_running) == (1, 25, 0)


def test_a_row_that_is_written_twice_settles_once_in_a_turkish_locale(store: Store) -> None:
    """There, Python's sqlite3 takes no statement for an INSERT that is written in capital letters."""
    before = locale.setlocale(locale.LC_CTYPE)
    try:
        locale.setlocale(locale.LC_CTYPE, "tr_TR.UTF-8")
    except locale.Error:
        pytest.skip("this system has no Turkish locale")
    try:
        test_a_row_that_is_written_twice_counts_and_settles_once(store)
    finally:
        locale.setlocale(locale.LC_CTYPE, before)


def test_a_row_that_is_about_to_be_committed_is_settled_by_that_transaction_alone(store: Store) -> None:
    """The database is committing a row when its server is killed or cut off, and the row is written again."""
    grant = new_grant(store, Limits(tokens_per_day=100))
    assert isinstance(begin(store, "r", grant, 60), Reservation)
    row = replace(EMPTY, id="a", key_id=grant.id, prompt_tokens=20, completion_tokens=5, ended_ms=store.clock())

    def write_again(connection: Connection) -> None:
        write_row(connection, row, grant, "r")

    with beside(store, write_again) as connection:
        write_row(connection, row, grant, "r")
    assert (count(store), usage_of(store, grant).day_tokens, usage_of(store, grant).num_running) == (1, 25, 0)


def test_nothing_is_left_of_a_forgotten_key(store: Store) -> None:
    grant = new_grant(store, Limits())
    write(store, replace(EMPTY, id="a", key_id=grant.id), grant)
    with store.begin() as connection:
        forget_key(connection, "alice", store.clock())
    write(store, replace(EMPTY, id="b", key_id=grant.id), grant)
    assert count(store) == 0


@pytest.mark.parametrize("reservation", ["r", None])
def test_a_row_that_is_about_to_be_committed_is_forgotten_with_its_key(store: Store, reservation: str | None) -> None:
    grant = new_grant(store, Limits(tokens_per_day=100))
    assert isinstance(begin(store, "r", grant, 60), Reservation)
    with beside(store, lambda connection: forget_key(connection, "alice", store.clock())) as connection:
        write_row(connection, replace(EMPTY, id="a", key_id=grant.id), grant, reservation)
    assert count(store) == 0


def test_old_rows_are_forgotten_some_at_a_time(store: Store) -> None:
    for number in range(7):
        write(store, replace(EMPTY, id=str(number), ended_ms=number))
    with store.begin() as connection:
        assert [forget_rows(connection, 5, 3) for _ in range(3)] == [3, 2, 0]
    assert count(store) == 2


def by_hand(rows: list[LedgerRow], question: Question) -> dict[tuple[object, ...], list[int]]:
    found: dict[tuple[object, ...], list[int]] = defaultdict(lambda: [0] * 6)
    for row in rows:
        second = row.ended_ms // 1000
        is_wanted = (not question.models or row.model in question.models) and (
            not question.key_ids or row.key_id in question.key_ids
        )
        is_wanted = is_wanted and question.batch in (None, row.batch != "")
        if not (question.start <= second < question.end) or row.status == 500 or not is_wanted:
            continue
        names = {"api_key_id": row.key_id, "model": row.model, "batch": int(row.batch != "")}
        group = tuple(names[name] for name in question.group_by)
        start = max(question.start, second - second % question.width)
        counted = (1, row.prompt_tokens, row.cached_tokens, row.completion_tokens, row.prompt_cost, 1)
        total = found[start, *group]
        total[:] = [a + b for a, b in zip(total, counted, strict=True)]
    return dict(found)


def test_sums_are_those_of_a_count_by_hand(store: Store) -> None:
    rows = [
        replace(
            EMPTY, id=f"{number}", ended_ms=number * 17_000 + 999, key_id="ab"[number % 2], model="xyz"[number % 3],
            status=(200, 499, 500)[number % 3 if number % 5 else 0], prompt_tokens=number, cached_tokens=number // 2,
            completion_tokens=3 * number, prompt_cost=number, completion_cost=1, batch="batch_1" * (number % 4 == 1),
        )
        for number in range(60)
    ]  # fmt: skip
    with store.begin() as connection:
        for row in rows:
            write_row(connection, row, None, None)
    for question in (
        Question(17, 900, 60),
        Question(17, 900, 60, ("api_key_id", "model")),
        Question(0, 10_000, 3600, ("model",), models=("x", "z"), key_ids=("a",)),
        Question(0, 10_000, 3600, ("batch",)),
        Question(0, 10_000, 3600, batch=True),
        Question(0, 10_000, 3600, ("model",), batch=False),
    ):
        with store.read() as connection:
            found = {
                (one.start, *(one.group[name] for name in question.group_by)): [
                    *(one.requests, one.prompt_tokens, one.cached_tokens, one.completion_tokens),
                    *(one.prompt_cost, one.completion_cost),
                ]
                for one in sums(connection, question)
            }
        assert found == by_hand(rows, question) and found


@given(st.integers(0, 10**6), st.integers(1, 10**5), st.sampled_from([60, 3600, 86_400]))
def test_buckets_have_no_holes_and_all_but_the_first_are_aligned(start: int, length: int, width: int) -> None:
    bounds = [*edges(start, start + length, width), start + length]
    assert bounds[0] == start and bounds == sorted(set(bounds))
    assert all(bound % width == 0 for bound in bounds[1:-1])
    assert all(after - before <= width for before, after in pairwise(bounds))
