"""The log of requests in the database."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from sqlalchemy import Connection, delete, insert, select

from onward.service.request_log import LoggedRequest, decoded
from onward.service.tables import REQUEST_LOG


class RequestTable:
    """A RequestLog in the database of a team, which closes it."""

    def __init__(self, add: Callable[[LoggedRequest], None]) -> None:
        self.add = add

    def close(self) -> None: ...


def insert_request(connection: Connection, request: LoggedRequest) -> None:
    values = {"id": request.id, "at_ms": request.at_ms, "key_id": request.key_id}
    connection.execute(insert(REQUEST_LOG).values(**values, document=request.encoded().decode()))


def forget_requests(connection: Connection, before_ms: int, limit: int) -> int:
    """Delete at most `limit` requests that ended before a time; return their number."""
    old = select(REQUEST_LOG.c.id).where(REQUEST_LOG.c.at_ms < before_ms).limit(limit)
    return connection.execute(delete(REQUEST_LOG).where(REQUEST_LOG.c.id.in_(old))).rowcount


def read_requests(connection: Connection) -> Iterator[LoggedRequest]:
    """Yield all requests, the oldest first."""
    rows = connection.execution_options(yield_per=100).execute(
        select(REQUEST_LOG.c.document).order_by(REQUEST_LOG.c.at_ms, REQUEST_LOG.c.id)
    )
    for row in rows:
        yield decoded(row.document)
