"""From the spool to the ledger: rows of requests that have ended are given to the database, many in one statement."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from functools import partial

from sqlalchemy import Connection

from onward.service.grant import Grant
from onward.service.ledger import write_row, write_rows
from onward.service.reservations import settle_request
from onward.service.spool import Spool
from onward.service.spool_file import SpoolEntry
from onward.service.store import DatabaseAway
from onward.service.writer import LAST, MAX_GROUP, Writer

GATHER_SECONDS = 1.0
"""How often rows are written: a transaction costs much, a row in it little. One that settles a reservation does not
wait: its key may be waiting for that."""


class Recorder:
    """Writes what has ended, and takes out of the spool what the database has.

    `grants` are the known keys, by id; `is_away` is called with the reason if the database is away, on any thread. What
    it does not take then stays in the spool, for `record_ended`.
    """

    def __init__(
        self, spool: Spool, writer: Writer, grants: Callable[[], Mapping[str, Grant]], is_away: Callable[[str], None]
    ) -> None:
        self._spool = spool
        self._writer = writer
        self._grants = grants
        self._is_away = is_away
        self._gathered: list[SpoolEntry] = []
        self._flushes_at = -math.inf
        """When what waits is written, or was written last, by the event loop's clock."""
        self._is_due = False
        """Whether a timer is set for that."""

    def record(self, entry: SpoolEntry) -> None:
        """Write the row of a request that has ended, soon. Called on the event loop."""
        if entry.reservation_id is not None:
            self._write([entry])
            return
        self._gathered.append(entry)
        if not self._is_due:  # `flush` before that time leaves the timer
            self._is_due = True
            loop = asyncio.get_running_loop()
            self._flushes_at = max(loop.time(), self._flushes_at + GATHER_SECONDS)
            loop.call_at(self._flushes_at, self._flush_in_time)

    def _flush_in_time(self) -> None:
        self._is_due = False
        self.flush()

    def flush(self) -> None:
        """Write now what waits for others. Called on the event loop, or when it has ended."""
        gathered, self._gathered = self._gathered, []
        self._write(gathered)

    def record_ended(self) -> None:
        """Write all that has ended and that the database does not have. Called on any thread."""
        self._write(self._spool.ended())

    def _write(self, entries: list[SpoolEntry]) -> None:
        together = [entry for entry in entries if entry.reservation_id is None]
        for start in range(0, len(together), MAX_GROUP):
            some = together[start : start + MAX_GROUP]
            write_some = partial(write_rows, rows=[(entry.row, entry.key_id) for entry in some])
            self._submit(some, write_some, LAST)  # keys are locked after what they have used
        for entry in entries:
            if entry.reservation_id is not None:
                write = partial(
                    write_row, row=entry.row, grant=self._grant_of(entry), reservation_id=entry.reservation_id
                )
                self._submit([entry], write, entry.key_id)

    def _grant_of(self, entry: SpoolEntry) -> Grant:
        """Return what an entry's key may do. Of one that is not known any more, the ledger wants no row."""
        return self._grants().get(entry.key_id) or Grant(entry.key_id, "")

    def _submit(self, entries: list[SpoolEntry], write: Callable[[Connection], object], key_id: str) -> None:
        def done(future: Future[object]) -> None:
            problem = future.exception()
            if problem is None:
                self._spool.drop([entry.row for entry in entries])
            elif isinstance(problem, DatabaseAway):
                self._is_away(str(problem))
            elif len(entries) > 1:  # one of them is the cause
                for entry in entries:
                    self._write([entry])
            elif (request_id := entries[0].reservation_id) is not None:  # without its row, its key stays usable
                now_ms, grant = entries[0].row.ended_ms, self._grant_of(entries[0])
                self._writer.ensure(
                    lambda connection: settle_request(connection, request_id, grant, 0, 0, now_ms), key_id
                )

        self._writer.submit(write, key_id).add_done_callback(done)
