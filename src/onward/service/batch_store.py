"""Files and batches as the routes of a server use them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from sqlalchemy import Connection

from onward.errors import AuthenticationFailed, Overloaded
from onward.service.batch_records import PART_BYTES, StorageFull, StoredBatch, StoredFile
from onward.service.batch_runner import BatchDialect, BatchRunner
from onward.service.batches import cancel_batch, create_batch, find_batch, list_batches
from onward.service.desk import Desk, order_of
from onward.service.files import (
    add_part,
    begin_upload,
    delete_file,
    find_file,
    finish_upload,
    forget_upload,
    list_files,
    new_file_id,
    read_parts,
)
from onward.service.keys import may_store
from onward.service.limits import Limits

FORGOTTEN = "This API key does not exist any more."


class BatchStore:
    """The files and batches of keys, by their ids. All methods raise Overloaded where the database is away; those that
    add one raise AuthenticationFailed for a key that was forgotten, of which a server hears within a second."""

    def __init__(self, desk: Desk) -> None:
        self._desk = desk

    def runner(self, dialect: BatchDialect, max_lines: Callable[[], int]) -> BatchRunner:
        """Return what works on batches while it runs."""
        return BatchRunner(self._desk, dialect, max_lines)

    @property
    def now_ms(self) -> int:
        return self._desk.now_ms

    async def create_batch(self, batch: StoredBatch) -> StoredBatch:
        """Add a batch, and return it; or the one of the key that was made with the same idempotency key."""

        def create(connection: Connection) -> StoredBatch | None:
            return create_batch(connection, batch) if may_store(connection, batch.key_id) else None

        created = await self._desk.transact(create, batch.key_id)
        if created is None:
            raise AuthenticationFailed(FORGOTTEN, code="invalid_api_key")
        return created

    async def find_batch(self, key_id: str, batch_id: str) -> StoredBatch | None:
        return await self._desk.transact(lambda connection: find_batch(connection, key_id, batch_id))

    async def list_batches(self, key_id: str, limit: int, after: StoredBatch | None) -> list[StoredBatch]:
        """Return batches after one of them, the newest first."""
        return await self._desk.transact(lambda connection: list_batches(connection, key_id, limit, after))

    async def cancel_batch(self, key_id: str, batch_id: str) -> StoredBatch | None:
        """Let a batch end soon, unless it has ended otherwise; None where the key has no such batch."""
        now, order = self._desk.now_ms, order_of(key_id, batch_id)
        return await self._desk.transact(lambda connection: cancel_batch(connection, key_id, batch_id, now), order)

    async def find_file(self, key_id: str, file_id: str) -> StoredFile | None:
        now = self._desk.now_ms
        return await self._desk.transact(lambda connection: find_file(connection, key_id, file_id, now))

    async def list_files(
        self, key_id: str, limit: int, *, purpose: str, after: StoredFile | None, newest: bool
    ) -> list[StoredFile]:
        """Return files after one of them, by time. `purpose` "": of any."""
        now = self._desk.now_ms
        return await self._desk.transact(
            lambda connection: list_files(connection, key_id, now, limit, purpose=purpose, after=after, newest=newest)
        )

    async def delete_file(self, file: StoredFile) -> None:
        await self._desk.transact(lambda connection: delete_file(connection, file))

    async def parts(self, file: StoredFile) -> AsyncIterator[bytes]:
        """Yield what a file contains. It ends early where the file is deleted meanwhile."""
        after = -1

        def read(connection: Connection) -> list[tuple[int, bytes]]:
            return list(read_parts(connection, file, after))

        while file.bytes and (parts := await self._desk.look_up(read)):
            after = parts[-1][0]
            yield b"".join(data for _, data in parts)

    @asynccontextmanager
    async def receiving(self, key_id: str, limits: Limits) -> AsyncIterator[Receiving]:
        """Receive a file within the block. If it is not finished there, what has arrived is deleted, at the latest when
        the database answers again."""
        await self._desk.check_disk(0)
        receiving = Receiving(self._desk, key_id, limits)
        try:
            await receiving.begin()
            yield receiving
        except BaseException:
            receiving.discard()
            raise


class Receiving:
    """A file that is being received. Nobody sees it before `finish`."""

    def __init__(self, desk: Desk, key_id: str, limits: Limits) -> None:
        self._desk = desk
        self._key_id = key_id
        self._limits = limits
        self._id = new_file_id()
        self._created_ms = desk.now_ms
        self._num_parts = 0

    async def begin(self) -> None:
        def begin(connection: Connection) -> bool:
            if not may_store(connection, self._key_id):
                return False
            begin_upload(connection, self._id, self._key_id, self._desk.face, self._created_ms)
            return True

        if not await self._desk.transact(begin, self._key_id):
            raise AuthenticationFailed(FORGOTTEN, code="invalid_api_key")

    async def add(self, data: bytes) -> None:
        """Write the next part, of at most PART_BYTES. Raises StorageFull; Overloaded for a full disk."""
        assert len(data) <= PART_BYTES
        await self._desk.check_disk(len(data))
        number, self._num_parts = self._num_parts, self._num_parts + 1
        stored = await self._desk.transact(
            lambda connection: add_part(connection, self._id, self._key_id, number, data, self._limits), self._key_id
        )
        if stored is not None:
            raise StorageFull(self._limits.stored_bytes, stored)

    async def finish(self, purpose: str, filename: str, seconds: int) -> StoredFile:
        """Return the complete file, which is kept for so long."""
        expires_ms = self._created_ms + 1000 * seconds
        stored = await self._desk.transact(
            lambda connection: finish_upload(connection, self._id, purpose, filename, expires_ms), self._key_id
        )
        if stored is None:
            raise Overloaded("The database considered this server dead while it was receiving the file. Send it again.")
        return stored

    def discard(self) -> None:
        """Delete what was written of a file that is not complete. Does not wait."""
        self._desk.ensure(lambda connection: forget_upload(connection, self._id), self._key_id)
