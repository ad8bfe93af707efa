"""The ledger: a row for each request that was computed, written once, as its reservation is settled; and its sums."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Sequence
from functools import cache
from typing import Any

from msgspec.structs import asdict, astuple
from sqlalchemy import ColumnElement, Connection, and_, bindparam, case, delete, func, or_, select, text

from onward.service.grant import Grant
from onward.service.records import CLIENT_LEFT, LedgerRow, Question, Sums
from onward.service.reservations import lock_usage, settle_request
from onward.service.tables import KEYS, REQUESTS

COLUMNS: dict[str, ColumnElement[Any]] = {
    "api_key_id": REQUESTS.c.key_id,
    "key_name": REQUESTS.c.key_name,
    "model": REQUESTS.c.model,
    "batch": case((REQUESTS.c.batch != "", 1), else_=0),
}
"""What rows can be grouped by."""

# Statements with parameters are made once: making one takes longer than running it.
_ROW_NAMES = LedgerRow.__struct_fields__
_FIND_KEYS = (
    select(KEYS.c.id).where(KEYS.c.id.in_(bindparam("ids", expanding=True))).with_for_update(read=True, key_share=True)
)
_INSERT = f"insert INTO requests ({', '.join(_ROW_NAMES)}) VALUES"
"""In small letters: in a Turkish locale, an I has none, and Python's sqlite3 counts no rows of an INSERT."""
_ADD = text(f"{_INSERT} ({', '.join(':' + name for name in _ROW_NAMES)}) ON CONFLICT (id) DO NOTHING")
_DELIVER = (
    "ON CONFLICT (id) DO UPDATE SET delivered_tokens = excluded.delivered_tokens "
    "WHERE excluded.delivered_tokens > requests.delivered_tokens"
)
MAX_TOGETHER = 32
"""Rows of one statement: SQLite, as it is built here and there, takes 999 values."""


def write_row(connection: Connection, row: LedgerRow, grant: Grant | None, reservation_id: str | None) -> None:
    """Add a request to the ledger, as `write_rows` does, and settle what it had reserved, once: by the transaction that
    adds the row. Another one of the same row may be about to commit, of a server that was killed or cut off."""
    if grant is None or reservation_id is None:
        write_rows(connection, [(row, "" if grant is None else grant.id)])
    elif not lock_usage(connection, grant.id):
        return  # the key was forgotten meanwhile
    elif connection.execute(_ADD, asdict(row)).rowcount:
        tokens, cost = row.prompt_tokens + row.completion_tokens, row.prompt_cost + row.completion_cost
        settle_request(connection, reservation_id, grant, tokens, cost, row.ended_ms, is_batch=bool(row.batch))
    else:
        _write(connection, [row])


def write_rows(connection: Connection, rows: Sequence[tuple[LedgerRow, str]]) -> None:
    """Add requests to the ledger, each with the id of its key, "" for none. The second time only more delivered tokens
    count: a transaction may be run again because its answer was lost, and a stream read on after the request has ended.
    A key that was forgotten meanwhile leaves no row."""
    keys = {"", *_known_keys(connection, {key_id for _, key_id in rows} - {""})}
    by_delivered = sorted((row for row, key_id in rows if key_id in keys), key=lambda row: row.delivered_tokens)
    _write(connection, list({row.id: row for row in by_delivered}.values()))


def _write(connection: Connection, rows: Sequence[LedgerRow]) -> None:
    """Write rows of different requests, many in a statement: with each, the thread gives the interpreter lock up, and a
    busy event loop would have it back only after a while."""
    begin = 0
    while begin < len(rows):
        number = min(MAX_TOGETHER, 1 << (len(rows) - begin).bit_length() - 1)  # so that there are few statements
        values = itertools.chain.from_iterable(map(astuple, rows[begin : begin + number]))
        connection.exec_driver_sql(_statement(connection.dialect.name, number), tuple(values))
        begin += number


@cache
def _statement(dialect: str, number: int) -> str:
    """Return what writes so many rows."""
    row = ", ".join(["?" if dialect == "sqlite" else "%s"] * len(_ROW_NAMES))
    return f"{_INSERT} {', '.join([f'({row})'] * number)} {_DELIVER}"


def _known_keys(connection: Connection, ids: Collection[str]) -> Sequence[str]:
    """Return those of the ids that keys have. None of them is forgotten before the transaction ends."""
    return connection.execute(_FIND_KEYS, {"ids": list(ids)}).scalars().all() if ids else ()


def forget_rows(connection: Connection, before_ms: int, limit: int) -> int:
    """Delete at most `limit` requests that ended before a time; return their number."""
    old = select(REQUESTS.c.id).where(REQUESTS.c.ended_ms < before_ms).limit(limit)
    return connection.execute(delete(REQUESTS).where(REQUESTS.c.id.in_(old))).rowcount


def sums(connection: Connection, question: Question) -> list[Sums]:
    """Return the sums of each bucket and group with usage, by time, then by group. Failed requests do not count."""
    width = question.width * 1000
    bucket = (REQUESTS.c.ended_ms - REQUESTS.c.ended_ms % width).label("bucket")
    groups = [COLUMNS[name].label(name) for name in question.group_by]
    names = [func.max(REQUESTS.c.key_name).label("key_name")] if "api_key_id" in question.group_by else []
    counted = ("prompt_tokens", "cached_tokens", "completion_tokens", "prompt_cost", "completion_cost")
    totals = [func.sum(REQUESTS.c[name]).label(name) for name in counted]
    found = (
        select(bucket, *groups, *names, func.count().label("requests"), *totals)
        .where(_wanted(question))
        .group_by(bucket, *groups)
        .order_by(bucket, *groups)
    )
    return [_sums(row._mapping, question) for row in connection.execute(found)]


def _wanted(question: Question) -> ColumnElement[bool]:
    columns = REQUESTS.c
    return and_(
        columns.ended_ms >= question.start * 1000,
        columns.ended_ms < question.end * 1000,
        or_(columns.status < 400, columns.status == CLIENT_LEFT),
        *([columns.model.in_(question.models)] if question.models else []),
        *([columns.key_id.in_(question.key_ids)] if question.key_ids else []),
        *([] if question.batch is None else [COLUMNS["batch"] == int(question.batch)]),
    )


def _sums(row: Any, question: Question) -> Sums:
    return Sums(
        max(question.start, int(row["bucket"]) // 1000),
        {name: row[name] for name in COLUMNS if name in row},
        *(
            int(row[name])
            for name in (
                *("requests", "prompt_tokens", "cached_tokens"),
                *("completion_tokens", "prompt_cost", "completion_cost"),
            )
        ),
    )
