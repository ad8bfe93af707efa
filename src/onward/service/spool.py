"""What a server's database does not have yet, in a file that outlives the server: rows of requests that run or have
ended, appended in groups by one thread. A written page survives the death of the process, so nothing waits for a disk.
The file of a dead server is adopted by the next one in the folder.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import os
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

from onward.errors import SetupError
from onward.file_locks import try_lock
from onward.machine import room_wanted
from onward.service.records import LedgerRow
from onward.service.spool_file import SUFFIX, SpoolEntry, SpoolFile, lines, put_line, read_entries

log = logging.getLogger("onward.service")

TICK_SECONDS = 0.05
"""How often the counts of running requests are written: half of what a killed server may leave uncounted."""
ADOPT_SECONDS = 10.0
"""How often this server looks for files of servers that have died."""
RETRY_SECONDS = 1.0
"""How long to wait before writing to a failing file is tried again."""
MAX_ROWS = 100_000
"""Rows that may wait for the database."""
MIN_REWRITE_BYTES = 4_000_000
"""A file that has grown by this is rewritten without what is no longer needed."""


class Spool:
    """The file of one server. Methods may be called on any thread, `written` and `flushed` on that of an event loop.

    `adopted` is called, on the spool's thread, after rows of a dead server were added. `monotonic` is a clock in
    seconds. Raises SetupError for a folder that cannot be used.
    """

    def __init__(
        self,
        folder: Path,
        face: str,
        adopted: Callable[[], None] = lambda: None,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._folder = folder
        self._face = face
        self._adopted = adopted
        self._monotonic = monotonic
        self._lock = threading.Lock()
        """Held while the entries, the changes and those who wait are read or changed."""
        self._wake = threading.Event()
        self._is_resting = True
        """Whether the thread waits for more to do than its next tick."""
        self._entries: dict[str, SpoolEntry] = {}
        self._running: dict[str, SpoolEntry] = {}
        """Those of requests that run."""
        self._changes: list[tuple[str, Any]] = []
        self._num_changes = self._num_written = 0
        self._waiting: list[tuple[int, asyncio.AbstractEventLoop, asyncio.Event]] = []
        self._must_count = False
        self._counted = 0.0
        """When the counts of running requests were written last, by the monotonic clock."""
        self._is_closed = False
        self._refused: set[Path] = set()
        self._names = (f"{face}-{number}" for number in itertools.count())
        self._must_rewrite = False
        self._rewrite_at = MIN_REWRITE_BYTES
        self._looked = monotonic()
        self.problem = ""
        """Why the file cannot be written; "" while it can."""
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._file = SpoolFile(folder, self._names)
            self._adopt()
        except OSError as error:
            wanted = room_wanted(error, MIN_REWRITE_BYTES)
            raise SetupError(
                f"The folder {folder} cannot keep rows that wait for the database: {error.strerror}{wanted}. Name "
                "another one with --data-dir."
            ) from None
        self._thread = threading.Thread(target=self._run, name="onward-spool", daemon=True)
        self._thread.start()

    @property
    def num_waiting(self) -> int:
        """Number of requests that have ended and are not in the database."""
        return len(self._entries) - len(self._running)

    @property
    def is_full(self) -> bool:
        return self.num_waiting >= MAX_ROWS

    def ended(self) -> list[SpoolEntry]:
        """Return what the database should have."""
        with self._lock:
            return [entry for entry in self._entries.values() if entry.progress is None]

    def begin(self, entry: SpoolEntry) -> None:
        """Add a request that runs. The file has it with the next tick; who cannot wait for that calls `written`."""
        with self._lock:
            self._entries[entry.row.id] = self._running[entry.row.id] = entry
            self._change("put", entry)
            self._wake_resting()

    def end(self, entry: SpoolEntry) -> None:
        """Add a request that has ended, in the place of what was known of it, which may have a reservation still."""
        with self._lock:
            before = self._entries.get(entry.row.id)
            if before is not None and entry.reservation_id is None:
                entry.reservation_id = before.reservation_id
            self._running.pop(entry.row.id, None)
            self._entries[entry.row.id] = entry
            self._change("put", entry)
            self._wake_resting()

    def drop(self, rows: Iterable[LedgerRow]) -> None:
        """Forget rows that the database has, each unless there is a newer one of the same request."""
        with self._lock:
            for row in rows:
                entry = self._entries.get(row.id)
                if entry is not None and entry.row is row and entry.progress is None:
                    del self._entries[row.id]
                    self._change("drop", row.id)

    def _change(self, kind: str, value: Any) -> None:
        self._changes.append((kind, value))
        self._num_changes += 1

    def _wake_resting(self) -> None:
        """Let a thread that rests take a turn. One that does not has a tick soon: a turn for each request would take
        more from the engine than all that is written. Called with the lock held."""
        if self._is_resting:
            self._is_resting = False
            self._wake.set()

    async def written(self, entry: SpoolEntry) -> None:
        """Return when the file has an entry, or cannot be written."""
        if not entry.is_written:
            await self._next_turn()

    async def flushed(self) -> None:
        """Return when the file has everything that is known now, also of requests that run; or cannot be written."""
        with self._lock:
            self._num_changes += 1  # a turn that has begun does not know all of it
            self._must_count = True
        await self._next_turn()

    async def _next_turn(self) -> None:
        """Return when the file has all changes that are known now, or cannot be written."""
        loop, done = asyncio.get_running_loop(), asyncio.Event()
        with self._lock:
            self._waiting.append((self._num_changes, loop, done))
        loop.call_soon(self._wake.set)  # when all of this step wait
        await done.wait()

    def close(self) -> None:
        """End the thread. The file stays only if something is in it that the database does not have."""
        self._is_closed = True
        self._wake.set()
        self._thread.join()
        self._file.close(removes=not self._entries)

    def _run(self) -> None:
        while not self._is_closed:
            self._wake.wait(self._pause())
            self._wake.clear()
            self._turn()
        self._turn()

    def _pause(self) -> float:
        if self.problem:
            return RETRY_SECONDS
        with self._lock:
            self._is_resting = not (self._running or self._changes)
        return ADOPT_SECONDS if self._is_resting else max(0.0, self._counted + TICK_SECONDS - self._monotonic())

    def _turn(self) -> None:
        """Write what is new, and notify those who wait for it."""
        now = self._monotonic()
        try:
            if now - self._looked >= ADOPT_SECONDS:
                self._looked = now
                if self._adopt():
                    self._adopted()
            self._write_changes()
            self.problem = ""
        except OSError as error:
            if not self.problem:
                wanted = room_wanted(error, self._rewrite_at)
                log.error("rows for the ledger cannot be written to %s: %s%s", self._folder, error.strerror, wanted)
            self.problem = error.strerror or "it cannot be written"
            self._must_rewrite = True
        with self._lock:
            waiting, self._waiting = self._waiting, []
            written = float("inf") if self.problem else self._num_written
            self._waiting = [each for each in waiting if each[0] > written]
        for number, loop, event in waiting:
            if number <= written:
                with suppress(RuntimeError):  # the loop is closed
                    loop.call_soon_threadsafe(event.set)

    def _write_changes(self) -> None:
        """Append what has changed; write the file anew where it has grown, or could not be written. Raises OSError.

        Counts of running requests are read once in TICK_SECONDS; sooner where a request waits for its own entry anyway,
        but not for each of these."""
        now = self._monotonic()
        with self._lock:
            changes, self._changes = self._changes, []
            number = self._num_changes
            counts = self._must_count or now >= self._counted + TICK_SECONDS / 2
            running = list(self._running.values()) if counts else []
            self._must_count = False
        if counts:
            self._counted = now
        progress = {entry.row.id: entry.last for entry in running if entry.has_advanced()}
        if self._must_rewrite or self._file.size > self._rewrite_at:
            self._rewrite()
        elif changes or progress:
            self._file.append(lines(changes, progress))
        for kind, value in changes:
            if kind == "put":
                value.is_written = True
        self._num_written = number

    def _rewrite(self) -> None:
        """Write what is needed to another file, and remove the one before. Raises OSError, and keeps that one then."""
        with self._lock:
            entries = list(self._entries.values())
        file = SpoolFile(self._folder, self._names)
        try:
            file.append(b"".join(put_line(entry) for entry in entries))
        except OSError:
            file.close(removes=True)
            raise
        for entry in entries:
            entry.is_written = True
        before, self._file = self._file, file
        before.close(removes=True)
        self._must_rewrite = False
        self._rewrite_at = 2 * file.size + MIN_REWRITE_BYTES

    def _adopt(self) -> int:
        """Take over the files of servers that have died; return the number of rows. They are in this server's file
        before those are removed, and a row that is in both is written once. Raises OSError."""
        count = 0
        for path in sorted(self._folder.glob("*" + SUFFIX)):
            if path.name.startswith(f"{self._face}-") or path in self._refused:
                continue
            with suppress(FileNotFoundError):  # another server was faster
                file = os.open(path, os.O_RDWR)
                try:
                    if try_lock(file):
                        count += self._adopt_file(path)
                finally:
                    os.close(file)
        if count:
            log.warning("rows of %d requests of servers that have died are added to the ledger", count)
        return count

    def _adopt_file(self, path: Path) -> int:
        try:
            entries = read_entries(path)
        except ValueError as problem:
            self._refused.add(path)
            log.error("%s is left as it is: %s", path, problem)
            return 0
        with self._lock:
            new = [entry for entry in entries if entry.row.id not in self._entries]
            for entry in new:
                self._entries[entry.row.id] = entry
                self._change("put", entry)
        self._write_changes()
        path.unlink()
        return len(new)
