"""The log of requests in the database."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from sqlalchemy import Connection, delete, insert, select, tuple_

from onward.service.keys import is_forgotten
from onward.service.request_log import LoggedRequest, decoded
from onward.service.store import Store
from onward.service.tables import REQUEST_LOG

PAGE = 100
"""How many requests are read in one transaction."""


class RequestTable:
    """A RequestLog in the database of a team, which closes it."""

    def __init__(self, add: Callable[[LoggedRequest], None]) -> None:
        self.add = add

    def close(self) -> None: ...


def insert_request(connection: Connection, request: LoggedRequest) -> None:
    """Add a request, unless its key was forgotten meanwhile."""
    if request.key_id and is_forgotten(connection, request.key_id):
        return
    values = {"id": request.id, "at_ms": request.at_ms, "key_id": request.key_id}
    connection.execute(insert(REQUEST_LOG).values(**values, document=request.encoded().decode()))


def forget_requests(connection: Connection, before_ms: int, limit: int) -> int:
    """Delete at most `limit` requests that ended before a time; return their number."""
    old = select(REQUEST_LOG.c.id).where(REQUEST_LOG.c.at_ms < before_ms).limit(limit)
    return connection.execute(delete(REQUEST_LOG).where(REQUEST_LOG.c.id.in_(old))).rowcount


def read_requests(store: Store) -> Iterator[LoggedRequest]:
    """Yield all requests, the oldest first. No transaction is open while one is yielded: whoever takes hours for them
    does not keep the database from clearing up after its writers. Raises DatabaseAway."""
    columns = REQUEST_LOG.c
    page = select(columns.document).order_by(columns.at_ms, columns.id).limit(PAGE)
    after = page
    while True:
        with store.read() as connection:
            found = [decoded(row.document) for row in connection.execute(after)]
        yield from found
        if len(found) < PAGE:
            return
        after = page.where(tuple_(columns.at_ms, columns.id) > (found[-1].at_ms, found[-1].id))
