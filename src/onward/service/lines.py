"""Lines of batches in the store: a queue that all servers share. A line waits, runs at one server, then has a result.

That a line runs is written before it is computed, so that after any death it is known what was being computed. Whoever
finishes a line must still hold it: a server that was taken for dead meanwhile finishes nothing, so no line has two
results.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from typing import NamedTuple

from sqlalchemy import ColumnElement, Connection, TextClause, delete, func, insert, select, text, update

from onward.service.batch_records import BatchLine, NewLine, Result
from onward.service.tables import BATCHES, FACES, LINES

WAITING, RUNNING, OUTPUT, ERROR = range(4)
"""The states of a line. `OUTPUT` and `ERROR` are those of the files that it belongs to."""
SUSPECT_LOSSES = 2
"""A line that ran at so many deaths of servers may be their cause: it is computed alone."""
_IS_SUSPECT = text("losses >= 2")
"""A literal, as in the condition of the index of suspects."""
MAX_STRIKES = 3
"""After so many deaths while a line ran alone it is not tried again."""
_COUNT_DEAD = (
    select(LINES.c.face, func.count().label("number"))
    .where(
        LINES.c.face > "",  # by the index: lines that do not run are many
        LINES.c.state == RUNNING,
        LINES.c.face.not_in(select(FACES.c.id)),
    )
    .group_by(LINES.c.face)
)
"""Made once, as what every server asks several times per second: making it takes longer than running it."""


def add_lines(connection: Connection, batch_id: str, lines: Sequence[NewLine]) -> None:
    if lines:
        given = {"batch_id": batch_id, "state": WAITING, "result": b"", "face": "", "losses": 0, "strikes": 0}
        connection.execute(insert(LINES), [given | line._asdict() for line in lines])


def drop_lines(connection: Connection, batch_id: str) -> None:
    connection.execute(delete(LINES).where(LINES.c.batch_id == batch_id))


def claim(
    connection: Connection, face: str, batch_ids: Sequence[str], *, may_run_alone: bool
) -> list[BatchLine] | None:
    """Take a line of each of these batches in turn, as often as a batch is named, and write that it runs here. Returns
    fewer lines where fewer wait.

    A suspect is taken alone, if `may_run_alone` (nothing runs here); otherwise nothing is taken while one waits, and
    the answer is None.
    """
    wanted = Counter(batch_ids)
    for batch_id in wanted:
        if suspects := _waiting(connection, batch_id, 1, suspects=True):
            return _take(connection, face, batch_id, suspects, is_suspect=True) if may_run_alone else None
    taken: list[BatchLine] = []
    for batch_id, number in wanted.items():
        taken += _take(connection, face, batch_id, _waiting(connection, batch_id, number, suspects=False))
    return taken


def _waiting(connection: Connection, batch_id: str, number: int, *, suspects: bool) -> list[int]:
    """Return the numbers of the next lines of a batch, which no other server takes until the transaction ends."""
    kind = _IS_SUSPECT if suspects else LINES.c.losses < SUSPECT_LOSSES
    wanted = LINES.c.batch_id == batch_id, LINES.c.state == WAITING, LINES.c.strikes < MAX_STRIKES
    query = select(LINES.c.number).where(*wanted, kind)
    rows = connection.execute(query.order_by(LINES.c.number).limit(number).with_for_update(skip_locked=True))
    return list(rows.scalars())


def _take(
    connection: Connection, face: str, batch_id: str, numbers: Sequence[int], *, is_suspect: bool = False
) -> list[BatchLine]:
    if not numbers:
        return []
    these = LINES.c.batch_id == batch_id, LINES.c.number.in_(numbers)
    connection.execute(update(LINES).where(*these).values(state=RUNNING, face=face))
    batch = connection.execute(select(BATCHES.c.key_id, BATCHES.c.created_ms).where(BATCHES.c.id == batch_id)).one()
    columns = LINES.c.number, LINES.c.custom_id, LINES.c.request
    return [
        BatchLine(
            batch_id=batch_id,
            key_id=batch.key_id,
            number=row.number,
            custom_id=bytes(row.custom_id),
            request=bytes(row.request),
            created_ms=batch.created_ms,
            is_suspect=is_suspect,
        )
        for row in connection.execute(select(*columns).where(*these).order_by(LINES.c.number))
    ]


def finish_line(connection: Connection, face: str, line: BatchLine, result: Result) -> bool:
    """Write the result of a line that runs here. Returns False, and writes nothing, where it does not any more."""
    done = connection.execute(
        update(LINES)
        .where(
            LINES.c.batch_id == line.batch_id,
            LINES.c.number == line.number,
            LINES.c.state == RUNNING,
            LINES.c.face == face,
        )
        .values(state=OUTPUT if result.is_output else ERROR, result=result.data, request=b"", face="")
    )
    if not done.rowcount:
        return False
    counted = BATCHES.c.num_completed if result.is_output else BATCHES.c.num_failed
    connection.execute(
        update(BATCHES)
        .where(BATCHES.c.id == line.batch_id)
        .values(
            {
                counted: counted + 1,
                BATCHES.c.prompt_tokens: BATCHES.c.prompt_tokens + result.prompt_tokens,
                BATCHES.c.completion_tokens: BATCHES.c.completion_tokens + result.completion_tokens,
                BATCHES.c.reasoning_tokens: BATCHES.c.reasoning_tokens + result.reasoning_tokens,
            }
        )
    )
    return True


def give_back(
    connection: Connection, face: str, line: BatchLine, *, is_lost: bool = False, is_strike: bool = False
) -> None:
    """Let a line that runs here wait again. `is_lost`: the engine has died with it; `is_strike`: it may be why."""
    this = (
        *(LINES.c.batch_id == line.batch_id, LINES.c.number == line.number),
        *(LINES.c.state == RUNNING, LINES.c.face == face),
    )
    counts = {"losses": LINES.c.losses + int(is_lost), "strikes": LINES.c.strikes + int(is_strike)}
    connection.execute(update(LINES).where(*this).values(state=WAITING, face="", **counts))


def give_back_all_but(connection: Connection, face: str, held: Collection[tuple[str, int]]) -> None:
    """Let the lines wait again that are noted as running at a server and do not: it never heard that it has them.
    `held` are the batches and numbers of those that it knows."""
    query = select(LINES.c.batch_id, LINES.c.number).where(LINES.c.face == face, LINES.c.state == RUNNING)
    for batch_id, number in connection.execute(query).all():
        if (batch_id, number) not in held:
            this = LINES.c.batch_id == batch_id, LINES.c.number == number
            connection.execute(update(LINES).where(*this).values(state=WAITING, face=""))


def give_back_of_dead(connection: Connection) -> int:
    """Let the lines of servers that are dead wait again, and return their number. A line is struck only where it ran
    alone: otherwise the server's death says little about it."""
    dead = connection.execute(_COUNT_DEAD).all()
    for face, number in dead:
        values = {"losses": LINES.c.losses + 1, "strikes": LINES.c.strikes + int(number == 1)}
        theirs = LINES.c.face == face, LINES.c.state == RUNNING
        connection.execute(update(LINES).where(*theirs).values(state=WAITING, face="", **values))
    return sum(number for _, number in dead)


class Left(NamedTuple):
    """What is left of a batch: whether lines wait, run anywhere, or wait and are not tried again."""

    waits: bool
    runs: bool
    is_struck: bool


def left_of(connection: Connection, batch_id: str) -> Left:
    waits, runs = (_has(connection, batch_id, state) for state in (WAITING, RUNNING))
    return Left(waits, runs, bool(unrun(connection, batch_id, 1, struck=True)))


def _has(connection: Connection, batch_id: str, state: int) -> bool:
    query = select(LINES.c.number).where(LINES.c.batch_id == batch_id, LINES.c.state == state).limit(1)
    return connection.execute(query).first() is not None


def counts_by_state(connection: Connection, batch_id: str) -> dict[int, int]:
    """Return the number of a batch's lines in each state that occurs."""
    counted = select(LINES.c.state, func.count().label("number")).where(LINES.c.batch_id == batch_id)
    query = counted.group_by(LINES.c.state)
    return {row.state: row.number for row in connection.execute(query)}


def result_bytes(connection: Connection, batch_id: str, state: int) -> int:
    """Return the size of the file of a batch's lines in a state."""
    query = select(func.sum(func.length(LINES.c.result))).where(LINES.c.batch_id == batch_id, LINES.c.state == state)
    return int(connection.execute(query).scalar() or 0)


def unrun(connection: Connection, batch_id: str, limit: int, *, struck: bool = False) -> list[tuple[int, bytes]]:
    """Return numbers and custom_ids of lines that wait; `struck`: of those that are not tried again."""
    wanted: list[ColumnElement[bool] | TextClause] = [LINES.c.batch_id == batch_id, LINES.c.state == WAITING]
    if struck:
        wanted += [_IS_SUSPECT, LINES.c.strikes >= MAX_STRIKES]
    query = select(LINES.c.number, LINES.c.custom_id).where(*wanted).order_by(LINES.c.number).limit(limit)
    return [(row.number, bytes(row.custom_id)) for row in connection.execute(query)]


def end_unrun(connection: Connection, batch_id: str, results: dict[int, bytes], *, counts: bool) -> None:
    """Write results for lines that wait and are not computed. `counts`: as failed ones."""
    ended = 0
    for number, data in results.items():
        these = LINES.c.batch_id == batch_id, LINES.c.number == number, LINES.c.state == WAITING
        values = {"state": ERROR, "result": data, "request": b""}
        ended += connection.execute(update(LINES).where(*these).values(**values)).rowcount
    if counts and ended:
        added = {"num_failed": BATCHES.c.num_failed + ended}
        connection.execute(update(BATCHES).where(BATCHES.c.id == batch_id).values(**added))
