"""A server's way to its database: operations that are awaited, and what the disk has room for."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

from sqlalchemy import Connection

from onward.errors import Overloaded
from onward.machine import bytes_in_words
from onward.offload import on_thread
from onward.service.keys import record_change
from onward.service.store import RESERVE_BYTES, DatabaseAway, Store
from onward.service.writer import Writer

T = TypeVar("T")
ANSWER_SECONDS = 30.0
AWAY = "The database does not answer. Retry later."
DISK_FULL = "The disk of this server's database is nearly full: {} should be free for this. Ask its operator for room."


def order_of(key_id: str, batch_id: str) -> str:
    """Return the key of `Writer` for an operation on a batch: it comes after those on the key's usage, which is locked
    first, and batches come in one order."""
    return f"{key_id}\0{batch_id}"


class Desk:
    """Operations on a store, awaited on an event loop. `face` is the id of this server there."""

    def __init__(self, store: Store, writer: Writer, face: str) -> None:
        self.face = face
        self._store = store
        self._writer = writer

    @property
    def now_ms(self) -> int:
        return self._store.clock()

    async def transact(self, run: Callable[[Connection], T], key_id: str = "") -> T:
        """Run an operation in a transaction, for a key (see `Writer`), and return its result. Raises Overloaded where
        the database is away: then the operation may have been run, or not."""
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                return await asyncio.wrap_future(self._writer.submit(run, key_id))
        except (DatabaseAway, TimeoutError):
            raise Overloaded(AWAY, retry_after=5) from None

    def ensure(self, run: Callable[[Connection], object], key_id: str = "") -> None:
        """Run an operation in a transaction soon, or as soon as the database answers. Does not wait."""
        self._writer.ensure(run, key_id)

    async def look_up(self, run: Callable[[Connection], T]) -> T:
        """Return what an operation reads, on a thread, while others may write. Raises Overloaded if the database is
        away."""

        def read() -> T:
            with self._store.read() as connection:
                return run(connection)

        try:
            return await on_thread(read, "onward-reads")
        except DatabaseAway:
            raise Overloaded(AWAY, retry_after=5) from None

    async def record_change(self, action: str, detail: str, actor: str | None, key_id: str) -> None:
        """Record who did something, by a key or, where `actor` is None, as whoever runs this server. Raises Overloaded
        where the database is away."""
        now = self.now_ms
        await self.transact(
            lambda connection: record_change(connection, action, detail, now, key_id=key_id, actor=actor), key_id
        )

    async def check_disk(self, num_bytes: int) -> None:
        """Raise Overloaded where the disk of the database has no room for so much more. The ledger keeps a reserve."""
        if not await self.has_room(num_bytes):
            raise Overloaded(DISK_FULL.format(bytes_in_words(RESERVE_BYTES + num_bytes)), retry_after=60)

    async def has_room(self, num_bytes: int = 0) -> bool:
        """Return whether the disk of the database has room for so much more than the ledger. A disk may take long to
        answer."""
        return await on_thread(lambda: self._store.has_room(num_bytes), "onward-reads")
