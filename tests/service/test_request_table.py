"""The log of requests in the database, read while servers write to it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from sqlalchemy import Connection, delete

from onward.service.keys import forget_key
from onward.service.limits import Limits
from onward.service.request_log import LoggedRequest
from onward.service.request_table import PAGE, insert_request, read_requests
from onward.service.store import Store
from onward.service.tables import REQUEST_LOG

from .test_reservations import new_grant


def request(number: int, at_ms: int) -> LoggedRequest:
    return LoggedRequest(
        id=f"req_{number:04}", at_ms=at_ms, key_id="", key_name="", route="/v1/completions", model="toy",
        fingerprint="fp", seed=1, status=200, body={}, choices=[], prompt_tokens=1, completion_tokens=1,
    )  # fmt: skip


def test_all_requests_are_read_the_oldest_first_whatever_the_number_of_equal_times(store: Store) -> None:
    ordered = [request(number, at_ms=1000 + number // (PAGE + 7)) for number in range(3 * PAGE)]
    with store.begin() as connection:
        for each in reversed(ordered):
            insert_request(connection, each)
    assert list(read_requests(store)) == ordered
    with store.begin() as connection:
        connection.execute(delete(REQUEST_LOG).where(REQUEST_LOG.c.id >= f"req_{2 * PAGE:04}"))
    assert list(read_requests(store)) == ordered[: 2 * PAGE], "the last page is full"


def test_a_request_that_ends_after_its_key_was_forgotten_is_not_kept(store: Store) -> None:
    grant = new_grant(store, Limits())
    with store.begin() as connection:
        forget_key(connection, "alice", store.clock())
        insert_request(connection, replace(request(1, at_ms=1), key_id=grant.id))
        insert_request(connection, replace(request(2, at_ms=2), key_id="key_of_a_file"))
    assert [each.id for each in read_requests(store)] == ["req_0002"]


def test_no_transaction_is_open_while_a_request_is_used(store: Store) -> None:
    with store.begin() as connection:
        for number in range(2 * PAGE + 1):
            insert_request(connection, request(number, at_ms=number))
    num_open, read = 0, store.read

    @contextmanager
    def counted() -> Iterator[Connection]:
        nonlocal num_open
        with read() as connection:
            num_open += 1
            yield connection
        num_open -= 1

    store.read = counted  # type: ignore[method-assign]
    for place, _ in enumerate(read_requests(store)):
        assert num_open == 0
        if place == PAGE:  # a later row is found, although it did not exist at the beginning
            with store.begin() as writing:
                insert_request(writing, request(9999, at_ms=9999))
    assert place == 2 * PAGE + 1
