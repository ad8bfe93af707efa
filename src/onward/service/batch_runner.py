"""A server's part in the work on batches: it validates, takes lines that all servers share, and ends what is done.

It knows rows and a dialect: what a line means, how it is computed and what is written of it are the dialect's.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from sqlalchemy import Connection

from onward.errors import Overloaded
from onward.service.batch_records import BatchLine, BudgetSpent, Computed, EngineLost, StoredBatch, TryLater
from onward.service.batch_validator import LINES_PER_GROUP, BatchValidator, Checks
from onward.service.batches import cancel_unread, finish, open_batches
from onward.service.desk import Desk, order_of
from onward.service.files import purge_files
from onward.service.ledger import write_row
from onward.service.lines import (
    Left,
    claim,
    end_unrun,
    finish_line,
    give_back,
    give_back_all_but,
    give_back_of_dead,
    left_of,
    unrun,
)
from onward.service.reservations import lock_usage, settle_request

log = logging.getLogger("onward.service")

POLL_SECONDS = 0.5
"""How soon a server notices what others have done."""
RETRY_SECONDS = 1.0
"""How long a line waits that the engine does not take now, and a result that the database does not take."""
PAUSE_SECONDS = 20.0
"""How long the lines of a key wait whose budget is spent, before it is checked again."""


class BatchDialect(Checks, Protocol):
    """What the runner does not know. `key_is_valid` says whether a key may still have its lines computed, `weight_of`
    what its share of them is: a key of weight 3 has three lines running for each one of a key of weight 1."""

    def not_computed(self, batch_id: str, number: int, custom_id: bytes, code: str) -> bytes: ...
    def key_is_valid(self, key_id: str) -> bool: ...
    def weight_of(self, key_id: str) -> int: ...

    async def compute(self, line: BatchLine) -> Computed:
        """Compute a line. Raises TryLater, BudgetSpent, EngineLost."""
        ...


@dataclass(frozen=True, slots=True)
class _Ending:
    """How a batch ends whose lines are not all computed: status and code of its other lines; `counts`: as failed."""

    status: str
    code: str
    counts: bool = False


class BatchRunner:
    """Works on batches, on at most `max_lines()` lines at a time. Belongs to one event loop."""

    def __init__(
        self,
        desk: Desk,
        dialect: BatchDialect,
        max_lines: Callable[[], int],
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._desk = desk
        self._dialect = dialect
        self._max_lines = max_lines
        self._monotonic = monotonic
        self._validator = BatchValidator(desk, dialect)
        self._wake = asyncio.Event()
        self._tended = float("-inf")
        self._running: dict[tuple[str, int], tuple[BatchLine, asyncio.Task[None]]] = {}
        self._num_leaving = 0
        """How many lines are being given back, perhaps a second time. None is taken meanwhile: it could be one of them,
        and be given back again while it is computed."""
        self._active: list[StoredBatch] = []
        """Batches of which lines may be taken here, the oldest first."""
        self._paused: dict[str, float] = {}
        """Until when the lines of a key wait."""
        self._validating: asyncio.Task[None] | None = None
        self._may_hold_more = False
        """Whether the database may say that lines run here which do not."""

    @property
    def num_running(self) -> int:
        return len(self._running)

    def wake(self) -> None:
        """Set when there is something new to do."""
        self._tended = float("-inf")
        self._wake.set()

    async def run(self) -> None:
        """Work until the task is cancelled; then the lines that run wait for the next server."""
        try:
            while True:
                self._wake.clear()
                try:
                    if self._monotonic() - self._tended >= POLL_SECONDS:
                        self._tended = self._monotonic()
                        await self._tend()
                    await self._fill()
                except Overloaded:
                    pass  # the database is away, and /health says so
                except Exception:
                    log.exception("batches could not be worked on")
                with suppress(TimeoutError):
                    async with asyncio.timeout(POLL_SECONDS):
                        await self._wake.wait()
        finally:
            await self._stop()

    async def _stop(self) -> None:
        tasks = [task for _, task in self._running.values()]
        tasks += [self._validating] if self._validating is not None else []
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _tend(self) -> None:
        """Decide which of the batches that have not ended are worked on, and which end."""
        now, face = self._desk.now_ms, self._desk.face
        held = None if not self._may_hold_more else set(self._running)

        def look(connection: Connection) -> list[tuple[StoredBatch, Left]]:
            give_back_of_dead(connection)
            if held is not None:
                give_back_all_but(connection, face, held)
            purge_files(connection, now)
            return [(batch, left_of(connection, batch.id)) for batch in open_batches(connection)]

        found = await self._desk.transact(look)
        self._may_hold_more = False
        endings = {batch.id: self._ending_of(batch, now) for batch, _ in found}
        self._active = [batch for batch, _ in found if batch.status == "in_progress" and endings[batch.id] is None]
        self._cancel_all_but({batch.id for batch in self._active})
        if self._validating is None and any(batch.status == "validating" for batch, _ in found):
            self._validating = asyncio.create_task(self._validate())
        for batch, left in found:
            if batch.status != "validating" and not left.runs:
                await self._advance(batch, left, endings[batch.id])

    def _ending_of(self, batch: StoredBatch, now: int) -> _Ending | None:
        """Return how a batch ends before all its lines are computed; None if it does not."""
        if batch.status == "cancelling":
            return _Ending("cancelled", "batch_cancelled")
        if batch.status != "in_progress":
            return None
        if now >= batch.expires_ms:
            return _Ending("expired", "batch_expired")
        if not self._dialect.key_is_valid(batch.key_id):
            return _Ending("completed", "invalid_api_key", counts=True)
        return None

    def _cancel_all_but(self, batch_ids: set[str]) -> None:
        for line, task in self._running.values():
            if line.batch_id not in batch_ids:
                task.cancel()

    async def _advance(self, batch: StoredBatch, left: Left, ending: _Ending | None) -> None:
        """End a batch of which nothing runs, if nothing is left or the rest is not to be computed."""
        now, order = self._desk.now_ms, order_of(batch.key_id, batch.id)
        if batch.status == "cancelling" and batch.in_progress_ms is None:
            await self._desk.transact(lambda connection: cancel_unread(connection, batch, now), order)
            return
        if ending is not None:
            await self._end_unrun(batch, ending.code, counts=ending.counts)
        elif left.is_struck:
            await self._end_unrun(batch, "server_error", counts=True, struck=True)
            self.wake()
            return
        elif left.waits:
            return
        status = "completed" if ending is None else ending.status
        if await self._desk.transact(lambda connection: finish(connection, batch, status, now), order):
            self.wake()

    async def _end_unrun(self, batch: StoredBatch, code: str, *, counts: bool, struck: bool = False) -> None:
        """Write results for the lines of a batch that wait and are not computed; `struck`: only for those that are not
        tried again."""
        make = self._dialect.not_computed

        def end(connection: Connection) -> bool:
            found = unrun(connection, batch.id, LINES_PER_GROUP, struck=struck)
            results = {number: make(batch.id, number, custom_id, code) for number, custom_id in found}
            end_unrun(connection, batch.id, results, counts=counts)
            return bool(found)

        while await self._desk.transact(end, order_of(batch.key_id, batch.id)):
            pass

    async def _fill(self) -> None:
        """Take lines for which there is room, several at once, and begin to compute them."""
        max_lines = self._max_lines()
        free = max_lines - len(self._running)
        if self._running and free < max(1, max_lines // 8):
            return
        if any(line.is_suspect for line, _ in self._running.values()):
            return
        if not self._active or not await self._desk.has_room():
            return
        while free > 0 and not self._num_leaving and (wanted := self._choose(free)):
            taken = await self._claim(wanted)
            if taken is None:
                return  # until nothing runs here
            for line in taken:
                self._begin(line)
            if any(line.is_suspect for line in taken):
                return
            free -= len(taken)
            lacking = Counter(wanted) - Counter(line.batch_id for line in taken)
            self._active = [batch for batch in self._active if batch.id not in lacking]

    async def _claim(self, wanted: Sequence[str]) -> list[BatchLine] | None:
        is_idle = not self._running
        may_hold_more, self._may_hold_more = self._may_hold_more, True  # if the database goes away, and had taken them
        taken = await self._desk.transact(
            lambda connection: claim(connection, self._desk.face, wanted, may_run_alone=is_idle)
        )
        self._may_hold_more = may_hold_more
        return taken

    def _choose(self, number: int) -> list[str]:
        """Return the batches of the next lines to take, as often as there are lines: keys that have fewer running, by
        their weight, come first; of a key's batches the oldest."""
        now = self._monotonic()
        first: dict[str, str] = {}
        for batch in self._active:
            if self._paused.get(batch.key_id, 0.0) <= now:
                first.setdefault(batch.key_id, batch.id)
        held = Counter(line.key_id for line, _ in self._running.values())
        weights = {key_id: self._dialect.weight_of(key_id) for key_id in first}
        chosen = []
        for _ in range(number if first else 0):
            key_id = min(first, key=lambda each: held[each] / weights[each])
            held[key_id] += 1
            chosen.append(first[key_id])
        return chosen

    def _begin(self, line: BatchLine) -> None:
        place = line.batch_id, line.number
        task = asyncio.create_task(self._run_line(line))
        self._running[place] = line, task

        def done(_: asyncio.Task[None]) -> None:
            del self._running[place]
            if all(other.batch_id != line.batch_id for other, _ in self._running.values()):
                self._tended = float("-inf")  # it may have been the last line
            self._wake.set()

        task.add_done_callback(done)

    async def _run_line(self, line: BatchLine) -> None:
        try:
            computed = await self._compute(line)
            await self._finish(line, computed)
        except BudgetSpent:
            self._paused[line.key_id] = self._monotonic() + PAUSE_SECONDS
            await self._give_back(line)
        except EngineLost:
            await self._give_back(line, is_lost=True, is_strike=line.is_suspect)
        except asyncio.CancelledError:
            self._desk.ensure(partial(give_back, face=self._desk.face, line=line), order_of(line.key_id, line.batch_id))
            raise
        except Exception:
            log.exception("line %d of %s could not be computed", line.number, line.batch_id)
            await self._give_back(line, is_lost=True, is_strike=line.is_suspect)

    async def _compute(self, line: BatchLine) -> Computed:
        while True:
            try:
                return await self._dialect.compute(line)
            except TryLater:
                await asyncio.sleep(RETRY_SECONDS)

    async def _finish(self, line: BatchLine, computed: Computed) -> None:
        """Write a result, with the line's row in the ledger and what it has used, all or nothing."""
        face, now = self._desk.face, self._desk.now_ms
        row, grant, reserved = computed.row, computed.grant, computed.reservation_id

        def release(connection: Connection) -> None:
            if reserved is not None and grant is not None:
                settle_request(connection, reserved, grant, 0, 0, now, is_batch=True)

        def write(connection: Connection) -> None:
            if grant is not None:
                lock_usage(connection, grant.id)
            if finish_line(connection, face, line, computed.result) and row is not None:
                write_row(connection, row, grant, reserved)
            else:
                release(connection)

        try:
            await self._write(line, write)  # if it was written, nothing is written again
        except Exception:
            if reserved is not None:
                self._desk.ensure(release, order_of(line.key_id, line.batch_id))
            raise

    async def _give_back(self, line: BatchLine, *, is_lost: bool = False, is_strike: bool = False) -> None:
        """Let a line wait for the next server."""
        self._num_leaving += 1
        try:
            face = self._desk.face
            await self._write(line, partial(give_back, face=face, line=line, is_lost=is_lost, is_strike=is_strike))
        finally:
            self._num_leaving -= 1

    async def _write(self, line: BatchLine, write: Callable[[Connection], None]) -> None:
        """Run an operation on a line that runs here; where the database is away, again until it answers. It is run even
        if this call is cancelled: what the line had reserved is settled."""
        order = order_of(line.key_id, line.batch_id)
        try:
            while True:
                with suppress(Overloaded):
                    await self._desk.transact(write, order)
                    return
                await asyncio.sleep(RETRY_SECONDS)
        except asyncio.CancelledError:
            self._desk.ensure(write, order)
            raise

    async def _validate(self) -> None:
        """Validate the oldest batch that nobody validates."""
        try:
            if await self._validator.validate_next():
                self.wake()
        except Overloaded:
            pass  # the database is away, and /health says so
        except Exception:
            log.exception("a batch could not be validated")
        finally:
            self._validating = None
