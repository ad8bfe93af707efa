"""Reads the file of a batch into the queue of lines, if all of it is valid."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Protocol

from sqlalchemy import Connection

from onward.offload import on_thread
from onward.service.batch_records import NewLine, StoredBatch, StoredFile
from onward.service.batches import fail, start, take_validation
from onward.service.desk import Desk
from onward.service.files import find_file, read_parts
from onward.service.lines import add_lines, drop_lines

LINES_PER_GROUP = 500
"""Lines of one transaction."""


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


class BatchValidator:
    def __init__(self, desk: Desk, checks: Checks) -> None:
        self._desk = desk
        self._checks = checks

    async def validate_next(self) -> bool:
        """Validate the oldest batch that nobody validates, if there is one. Raises Overloaded; then it is validated
        again."""
        batch = await self._desk.transact(lambda connection: take_validation(connection, self._desk.face))
        if batch is not None:
            await self._validate(batch)
        return batch is not None

    async def _validate(self, batch: StoredBatch) -> None:
        """Read the lines of a batch into the queue, and start it; or say what is wrong with them."""
        desk, now = self._desk, self._desk.now_ms
        file = await desk.transact(lambda connection: find_file(connection, batch.key_id, batch.input_file_id, now))
        if file is None:
            errors = self._checks.missing_file(batch)
            await desk.transact(lambda connection: fail(connection, batch, errors, now), batch.key_id)
            return
        await desk.transact(lambda connection: drop_lines(connection, batch.id), batch.key_id)
        check = self._checks.check(batch)
        await self._read(batch, file, check)
        now = desk.now_ms
        if errors := check.errors:
            await desk.transact(lambda connection: fail(connection, batch, errors, now), batch.key_id)
        elif not await desk.transact(
            lambda connection: start(connection, batch, check.model, check.num_requests, now), batch.key_id
        ):
            await desk.transact(lambda connection: drop_lines(connection, batch.id), batch.key_id)

    async def _read(self, batch: StoredBatch, file: StoredFile, check: InputCheck) -> None:
        after = -1

        def read(connection: Connection) -> list[tuple[int, bytes]]:
            return list(read_parts(connection, file, after))

        while parts := await self._desk.look_up(read):
            after = parts[-1][0]
            for _, data in parts:
                await self._add(batch, check, await on_thread(partial(check.feed, data)))
        await self._add(batch, check, check.end())

    async def _add(self, batch: StoredBatch, check: InputCheck, lines: Sequence[tuple[int, bytes, bytes]]) -> None:
        """Add lines to the queue, unless one was found that is not valid."""
        for begin in range(0, 0 if check.errors else len(lines), LINES_PER_GROUP):
            group = [NewLine(*line) for line in lines[begin : begin + LINES_PER_GROUP]]
            await self._desk.transact(partial(add_lines, batch_id=batch.id, lines=group), batch.key_id)
