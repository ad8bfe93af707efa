"""Files of keys in the store: what was uploaded, in parts of a megabyte; and output of batches, which are its lines."""

from __future__ import annotations

import secrets
import string
from collections.abc import Iterator
from typing import Any

from sqlalchemy import ColumnElement, Connection, and_, bindparam, delete, func, insert, or_, select, update

from onward.service.batch_records import PART_BYTES, StoredFile, next_moment
from onward.service.limits import Limits
from onward.service.reservations import lock_usage
from onward.service.tables import CONTENTS, FACES, FILES, LINES

LINES_PER_READ = 200
_ALPHABET = string.ascii_letters + string.digits
_TIME_ALPHABET, _TIME_DIGITS = string.digits + string.ascii_lowercase, 12
"""In an order that every collation of a database has; until the year 2119."""
_COLUMNS = [column for column in FILES.c if column.name not in ("key_id", "face")]
_IS_ORPHAN = and_(FILES.c.face != "", FILES.c.face.not_in(select(FACES.c.id)))
_FIND_PURGED = select(*_COLUMNS).where(or_(FILES.c.expires_ms <= bindparam("now"), _IS_ORPHAN))


def new_file_id() -> str:
    """Return `file-` and 22 letters and digits (behaviour §18.1). Those of one server are in the order of their making,
    which is how files of one millisecond are listed."""
    rest, digits = next_moment(), list[str]()
    for _ in range(_TIME_DIGITS):
        rest, digit = divmod(rest, len(_TIME_ALPHABET))
        digits.append(_TIME_ALPHABET[digit])
    random = (secrets.choice(_ALPHABET) for _ in range(22 - _TIME_DIGITS))
    return "file-" + "".join((*reversed(digits), *random))


def is_id(text: str) -> bool:
    """Return whether a text may be an id: PostgreSQL has no text with a NUL."""
    return "\0" not in text


def begin_upload(connection: Connection, file_id: str, key_id: str, face: str, now_ms: int) -> None:
    """Add a file that a server receives: it exists for nobody else until `finish_upload`."""
    values: dict[str, Any] = {"purpose": "", "filename": "", "bytes": 0, "created_ms": now_ms, "batch_id": ""}
    connection.execute(insert(FILES).values(id=file_id, key_id=key_id, face=face, lines=0, **values))


def add_part(connection: Connection, file_id: str, key_id: str, number: int, data: bytes, limits: Limits) -> int | None:
    """Append a part to a file that is received. Where the key may not store it, nothing is added, and the bytes that it
    stores are returned."""
    if limits.stored_bytes is not None:
        lock_usage(connection, key_id)  # uploads of one key take turns
        stored = stored_bytes(connection, key_id)
        if stored + len(data) > limits.stored_bytes:
            return stored
    connection.execute(insert(CONTENTS).values(file_id=file_id, number=number, data=data))
    connection.execute(update(FILES).where(FILES.c.id == file_id).values(bytes=FILES.c.bytes + len(data)))
    return None


def finish_upload(
    connection: Connection, file_id: str, purpose: str, filename: str, expires_ms: int | None
) -> StoredFile | None:
    """Let a file that was received exist. None if it is gone: its server was taken for dead."""
    values = {"purpose": purpose, "filename": filename, "expires_ms": expires_ms, "face": ""}
    connection.execute(update(FILES).where(FILES.c.id == file_id).values(**values))
    row = connection.execute(select(*_COLUMNS).where(FILES.c.id == file_id)).mappings().first()
    return None if row is None else StoredFile(**row)


def stored_bytes(connection: Connection, key_id: str) -> int:
    """Return the bytes of all files of a key, those that are being received included."""
    return int(connection.execute(select(func.sum(FILES.c.bytes)).where(FILES.c.key_id == key_id)).scalar() or 0)


def find_file(connection: Connection, key_id: str, file_id: str, now_ms: int) -> StoredFile | None:
    """Return a file of a key; None for another's, one that has expired and one that is still received."""
    if not is_id(file_id):
        return None
    query = select(*_COLUMNS).where(_exists(key_id, now_ms), FILES.c.id == file_id)
    row = connection.execute(query).mappings().first()
    return None if row is None else StoredFile(**row)


def list_files(
    connection: Connection,
    key_id: str,
    now_ms: int,
    limit: int,
    *,
    purpose: str,
    after: StoredFile | None,
    newest: bool,
) -> list[StoredFile]:
    """Return files of a key after one of them, by time. `purpose` "": of any."""
    order = [FILES.c.created_ms, FILES.c.id]
    wanted = [_exists(key_id, now_ms)]
    if purpose:
        wanted.append(FILES.c.purpose == purpose)
    if after is not None:
        wanted.append(follows(FILES, after.created_ms, after.id, newest=newest))
    ordered = [column.desc() for column in order] if newest else order
    rows = connection.execute(select(*_COLUMNS).where(*wanted).order_by(*ordered).limit(limit)).mappings()
    return [StoredFile(**row) for row in rows]


def follows(table: Any, created_ms: int, row_id: str, *, newest: bool) -> ColumnElement[bool]:
    """Return the condition of rows that come after one in a list, which has the newest first or last."""
    created, named = table.c.created_ms, table.c.id
    if newest:
        return or_(created < created_ms, and_(created == created_ms, named < row_id))
    return or_(created > created_ms, and_(created == created_ms, named > row_id))


def delete_file(connection: Connection, file: StoredFile) -> None:
    """Delete a file, and what it contains."""
    if file.batch_id:
        connection.execute(delete(LINES).where(LINES.c.batch_id == file.batch_id, LINES.c.state == file.lines))
    connection.execute(delete(CONTENTS).where(CONTENTS.c.file_id == file.id))
    connection.execute(delete(FILES).where(FILES.c.id == file.id))


def forget_upload(connection: Connection, file_id: str) -> None:
    """Delete what has arrived of a file that is received no longer; the file, too, if it is complete after all."""
    connection.execute(delete(CONTENTS).where(CONTENTS.c.file_id == file_id))
    connection.execute(delete(FILES).where(FILES.c.id == file_id))


def forget_files(connection: Connection, key_id: str) -> None:
    """Delete all files of a key, but for the lines of its batches."""
    owned = select(FILES.c.id).where(FILES.c.key_id == key_id)
    connection.execute(delete(CONTENTS).where(CONTENTS.c.file_id.in_(owned)))
    connection.execute(delete(FILES).where(FILES.c.key_id == key_id))


def purge_files(connection: Connection, now_ms: int) -> None:
    """Delete files that have expired, and those that a dead server was receiving."""
    for row in connection.execute(_FIND_PURGED, {"now": now_ms}).mappings().all():
        delete_file(connection, StoredFile(**row))


def read_parts(connection: Connection, file: StoredFile, after: int = -1) -> Iterator[tuple[int, bytes]]:
    """Yield the next parts of a file, one or some, each with its number: the next call continues after the last."""
    if file.batch_id:
        wanted = LINES.c.batch_id == file.batch_id, LINES.c.state == file.lines, LINES.c.number > after
        last = _last_of_a_part(connection, wanted, after)
        columns = LINES.c.number, LINES.c.result
        query = select(*columns).where(*wanted, LINES.c.number <= last).order_by(LINES.c.number)
    else:
        query = select(CONTENTS.c.number, CONTENTS.c.data).where(
            CONTENTS.c.file_id == file.id, CONTENTS.c.number == after + 1
        )
    for number, data in connection.execute(query):
        yield number, bytes(data)


def _last_of_a_part(connection: Connection, wanted: tuple[ColumnElement[bool], ...], after: int) -> int:
    """Return the number of the last line that is read together with the next one: as many as are about a part."""
    sizes = select(LINES.c.number, func.length(LINES.c.result)).where(*wanted).order_by(LINES.c.number)
    last, num_bytes = after, 0
    for number, size in connection.execute(sizes.limit(LINES_PER_READ)):
        if num_bytes and num_bytes + size > PART_BYTES:
            break
        last, num_bytes = number, num_bytes + size
    return last


def _exists(key_id: str, now_ms: int) -> ColumnElement[bool]:
    return and_(
        FILES.c.key_id == key_id,
        FILES.c.face == "",
        or_(FILES.c.expires_ms.is_(None), FILES.c.expires_ms > now_ms),
    )
