"""Reads the file of a batch into the queue of lines, if all of it is valid."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Protocol

from sqlalchemy import Connection

from onward.offload import on_thread
from onward.service.batch_records import NewLine, StoredBatch, StoredFile
from onward.service.batches import fail, is_validated_here, num_open, start, take_validation
from onward.service.desk import Desk, order_of
from onward.service.files import find_file, read_parts
from onward.service.lines import add_lines, drop_lines

LINES_PER_GROUP = 500
"""Lines of one transaction."""
MAX_OPEN = 32
"""Batches of a key that may be computed at a time: each has a copy of its requests, which counts as no stored bytes."""


class _NoLongerOurs(Exception):
    """The batch was cancelled, or another server took this one for dead and validates it."""


class InputCheck(Protocol):
    """Checks an input file as it is read; on any thread, one at a time. Returns lines as `NewLine` has them. `errors`:
    why the file is not valid, as JSON, or ""."""

    @property
    def model(self) -> str: ...
    @property
    def num_requests(self) -> int: ...
    @property
    def errors(self) -> str: ...
    def feed(self, data: bytes) -> Sequence[tuple[int, bytes, bytes]]: ...
    def end(self) -> Sequence[tuple[int, bytes, bytes]]: ...


class Checks(Protocol):
    """What a dialect knows of input files."""

    def check(self, batch: StoredBatch) -> InputCheck: ...
    def missing_file(self, batch: StoredBatch) -> str:
        """Return the errors of a batch whose file does not exist, as JSON."""
        ...

    def queue_full(self, batch: StoredBatch, most: int) -> str:
        """Return the errors of a batch whose key has `most` others that have not ended, as JSON."""
        ...


class BatchValidator:
    def __init__(self, desk: Desk, checks: Checks) -> None:
        self._desk = desk
        self._checks = checks

    async def validate_next(self) -> bool:
        """Validate the oldest batch that nobody validates, if there is one. Raises Overloaded; then it is validated
        again."""
        batch = await self._desk.transact(lambda connection: take_validation(connection, self._desk.face))
        if batch is not None:
            with suppress(_NoLongerOurs):
                await self._validate(batch)
        return batch is not None

    async def _validate(self, batch: StoredBatch) -> None:
        """Read the lines of a batch into the queue, and start it; or say what is wrong with them."""
        desk, now = self._desk, self._desk.now_ms
        file, number = await desk.transact(
            lambda connection: (
                find_file(connection, batch.key_id, batch.input_file_id, now),
                num_open(connection, batch.key_id),
            )
        )
        if file is None:
            await self._fail(batch, self._checks.missing_file(batch))
            return
        if number >= MAX_OPEN:
            await self._fail(batch, self._checks.queue_full(batch, MAX_OPEN))
            return
        await self._change(batch, lambda connection: drop_lines(connection, batch.id))
        check = self._checks.check(batch)
        if await self._read(batch, file, check) != file.bytes:  # it was deleted, or has expired
            await self._fail(batch, self._checks.missing_file(batch))
        elif errors := check.errors:
            await self._fail(batch, errors)
        else:
            now = desk.now_ms
            await self._change(batch, lambda connection: start(connection, batch, check.model, check.num_requests, now))

    async def _fail(self, batch: StoredBatch, errors: str) -> None:
        now = self._desk.now_ms
        await self._change(batch, lambda connection: fail(connection, batch, errors, now))

    async def _change(self, batch: StoredBatch, run: Callable[[Connection], object]) -> None:
        """Change a batch that is validated here. Raises _NoLongerOurs, Overloaded."""

        def change(connection: Connection) -> bool:
            if not is_validated_here(connection, batch):
                return False
            run(connection)
            return True

        if not await self._desk.transact(change, order_of(batch.key_id, batch.id)):
            raise _NoLongerOurs

    async def _read(self, batch: StoredBatch, file: StoredFile, check: InputCheck) -> int:
        """Check a file, and add its lines to the queue. Returns how many bytes it had."""
        after, num_bytes = -1, 0

        def read(connection: Connection) -> list[tuple[int, bytes]]:
            return list(read_parts(connection, file, after))

        while parts := await self._desk.look_up(read):
            after = parts[-1][0]
            for _, data in parts:
                num_bytes += len(data)
                await self._add(batch, check, await on_thread(partial(check.feed, data), "onward-batches"))
        await self._add(batch, check, await on_thread(check.end, "onward-batches"))
        return num_bytes

    async def _add(self, batch: StoredBatch, check: InputCheck, lines: Sequence[tuple[int, bytes, bytes]]) -> None:
        """Add lines to the queue, unless one was found that is not valid."""
        for begin in range(0, 0 if check.errors else len(lines), LINES_PER_GROUP):
            group = [NewLine(*line) for line in lines[begin : begin + LINES_PER_GROUP]]
            await self._desk.check_disk(sum(len(line.request) for line in group))
            await self._change(batch, partial(add_lines, batch_id=batch.id, lines=group))
