"""Batches in the store, and what becomes of them: validated, worked on, ended. Their lines are in `lines`."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from sqlalchemy import Connection, delete, func, insert, select, update

from onward.service.batch_records import StoredBatch, StoredFile
from onward.service.files import follows, is_id, new_file_id
from onward.service.lines import ERROR, OUTPUT, counts_by_state, drop_lines, result_bytes
from onward.service.tables import BATCHES, FACES, FILES, LINES

OUTPUT_PURPOSE = "batch_output"
OPEN = ("validating", "in_progress", "finalizing", "cancelling")
"""The statuses of batches that have not ended."""
_COLUMNS = [BATCHES.c[field.name] for field in fields(StoredBatch)]
_FIND_OPEN = select(*_COLUMNS).where(BATCHES.c.status.in_(OPEN)).order_by(BATCHES.c.created_ms, BATCHES.c.id)


def create_batch(connection: Connection, batch: StoredBatch) -> StoredBatch:
    """Add a batch, and return it; or the one of the key that was made with the same idempotency key."""
    if batch.idempotency_key is not None:
        same = BATCHES.c.key_id == batch.key_id, BATCHES.c.idempotency_key == batch.idempotency_key
        if (row := connection.execute(select(*_COLUMNS).where(*same)).mappings().first()) is not None:
            return StoredBatch(**row)
    connection.execute(insert(BATCHES).values({name: getattr(batch, name) for name in StoredBatch.__slots__}))
    return batch


def find_batch(connection: Connection, key_id: str, batch_id: str) -> StoredBatch | None:
    """Return a batch of a key; None for another's."""
    if not is_id(batch_id):
        return None
    query = select(*_COLUMNS).where(BATCHES.c.id == batch_id, BATCHES.c.key_id == key_id)
    row = connection.execute(query).mappings().first()
    return None if row is None else StoredBatch(**row)


def list_batches(connection: Connection, key_id: str, limit: int, after: StoredBatch | None) -> list[StoredBatch]:
    """Return batches of a key after one of them, the newest first."""
    wanted = [BATCHES.c.key_id == key_id]
    if after is not None:
        wanted.append(follows(BATCHES, after.created_ms, after.id, newest=True))
    query = select(*_COLUMNS).where(*wanted).order_by(BATCHES.c.created_ms.desc(), BATCHES.c.id.desc()).limit(limit)
    return [StoredBatch(**row) for row in connection.execute(query).mappings()]


def cancel_batch(connection: Connection, key_id: str, batch_id: str, now_ms: int) -> StoredBatch | None:
    """Let a batch end soon, and return it, unless it has ended otherwise; None where the key has no such batch."""
    found = find_batch(connection, key_id, batch_id)
    if found is None or found.status not in ("validating", "in_progress"):
        return found
    move(connection, found, "cancelling", now_ms)
    return find_batch(connection, key_id, batch_id)


def open_batches(connection: Connection) -> list[StoredBatch]:
    """Return the batches that have not ended, the oldest first."""
    return [StoredBatch(**row) for row in connection.execute(_FIND_OPEN).mappings()]


def move(connection: Connection, batch: StoredBatch, status: str, now_ms: int, **values: Any) -> bool:
    """Give a batch another status, at a time. Returns False where it has another one than it is known with."""
    values |= {f"{status}_ms": now_ms, "status": status}
    known = BATCHES.c.id == batch.id, BATCHES.c.status == batch.status
    return bool(connection.execute(update(BATCHES).where(*known).values(**values)).rowcount)


def is_validated_here(connection: Connection, batch: StoredBatch) -> bool:
    """Return whether the server that took a batch still validates it. That stays so until the transaction ends."""
    known = BATCHES.c.id == batch.id, BATCHES.c.status == "validating", BATCHES.c.face == batch.face
    return connection.execute(select(BATCHES.c.id).where(*known).with_for_update()).first() is not None


def num_open(connection: Connection, key_id: str) -> int:
    """Return how many batches of a key were read, and have not ended."""
    query = select(func.count()).select_from(BATCHES)
    return int(connection.execute(query.where(BATCHES.c.key_id == key_id, BATCHES.c.status.in_(OPEN[1:]))).scalar_one())


def take_validation(connection: Connection, face: str) -> StoredBatch | None:
    """Return a batch that no living server validates, and let this one validate it; None if there is none."""
    others = select(FACES.c.id).where(FACES.c.id != face)
    free = BATCHES.c.status == "validating", BATCHES.c.face.not_in(others)
    query = select(*_COLUMNS).where(*free).order_by(BATCHES.c.created_ms).limit(1).with_for_update(skip_locked=True)
    row = connection.execute(query).mappings().first()
    if row is None:
        return None
    connection.execute(update(BATCHES).where(BATCHES.c.id == row["id"]).values(face=face))
    return StoredBatch(**{**row, "face": face})


def fail(connection: Connection, batch: StoredBatch, errors: str, now_ms: int) -> None:
    """End a batch whose file is not valid: nothing of it is computed."""
    if move(connection, batch, "failed", now_ms, errors=errors, face=""):
        connection.execute(delete(LINES).where(LINES.c.batch_id == batch.id))


def start(connection: Connection, batch: StoredBatch, model: str, num_lines: int, now_ms: int) -> bool:
    """Let the lines of a batch be computed. Returns False where it was cancelled meanwhile."""
    return move(connection, batch, "in_progress", now_ms, model=model, num_lines=num_lines, face="")


def finish(connection: Connection, batch: StoredBatch, status: str, now_ms: int) -> bool:
    """Advance a batch of which no line waits or runs towards its end: a completed one is finalized first, then gets its
    files. Returns whether its status changed."""
    states = counts_by_state(connection, batch.id)
    if any(state not in (OUTPUT, ERROR) for state in states):
        return False
    if status == "completed" and batch.status == "in_progress":
        return move(connection, batch, "finalizing", now_ms)
    if not move(connection, batch, status, now_ms):
        return False  # another server has ended it
    for state, name in ((OUTPUT, "output"), (ERROR, "error")):
        if states.get(state):
            files = {f"{name}_file_id": _add_file(connection, batch, state, name, now_ms)}
            connection.execute(update(BATCHES).where(BATCHES.c.id == batch.id).values(**files))
    return True


def cancel_unread(connection: Connection, batch: StoredBatch, now_ms: int) -> None:
    """End a batch that was cancelled before its lines were read."""
    drop_lines(connection, batch.id)
    move(connection, batch, "cancelled", now_ms, face="")


def _add_file(connection: Connection, batch: StoredBatch, state: int, name: str, now_ms: int) -> str:
    """Add the file of a batch's lines in a state, and return its id."""
    expires_ms = None if batch.output_seconds is None else now_ms + 1000 * batch.output_seconds
    file = StoredFile(
        id=new_file_id(),
        purpose=OUTPUT_PURPOSE,
        filename=f"{batch.id}_{name}.jsonl",
        bytes=result_bytes(connection, batch.id, state),
        created_ms=now_ms,
        expires_ms=expires_ms,
        batch_id=batch.id,
        lines=state,
    )
    values = {field.name: getattr(file, field.name) for field in fields(StoredFile)}
    connection.execute(insert(FILES).values(**values, key_id=batch.key_id, face=""))
    return file.id


def end_batches(connection: Connection, key_id: str, now_ms: int) -> None:
    """End all batches of a key at once, whose files nobody will read."""
    owned = BATCHES.c.key_id == key_id, BATCHES.c.status.in_(OPEN)
    connection.execute(update(BATCHES).where(*owned).values(status="cancelled", cancelled_ms=now_ms, face=""))


def forget_batches(connection: Connection, key_id: str) -> None:
    """Delete all batches of a key, with their lines: also those that a server is adding, which has locked the batch."""
    owned = select(BATCHES.c.id).where(BATCHES.c.key_id == key_id).order_by(BATCHES.c.id)
    for batch_id in connection.execute(owned).scalars().all():
        drop_lines(connection, batch_id)
        connection.execute(delete(BATCHES).where(BATCHES.c.id == batch_id))
        drop_lines(connection, batch_id)
