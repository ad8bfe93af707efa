"""What a server's database does not have yet, in a file that outlives the server: rows of requests that run or have
ended. The file of a dead server is adopted by the next one in the folder.

The event loop writes, some microseconds into the system's cache, which outlives a process: a thread that is woken for
that takes a core from the engine, and costs more. Nothing waits for the disk, unless the system holds up all writes to
it. What takes longer is done on a thread, which `tend` starts. So a kill leaves of a request

- nothing, or half a line: nothing of it was sent;
- the line of its beginning, and the counts of at most TICK_SECONDS before its last token;
- the counts of all its tokens, from before the last byte of its answer on;
- its end; or nothing again, once the database has it. Where the line that says so is missing, the database is told a
  second time, and takes no row twice.

A file that is written anew has everything that the one before has, and says so, before that one is removed; nothing is
appended meanwhile. After an error nothing more is appended to a file, whose last line may be half of one.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path

from onward.errors import SetupError
from onward.file_locks import try_lock
from onward.machine import room_wanted
from onward.service.records import LedgerRow
from onward.service.spool_file import (
    SUFFIX,
    WHOLE,
    SpoolEntry,
    SpoolFile,
    drop_line,
    progress_line,
    put_line,
    read_entries,
)

log = logging.getLogger("onward.service")

TICK_SECONDS = 0.05
"""How often the counts of running requests are written: half of what a killed server may leave uncounted."""
ADOPT_SECONDS = 10.0
"""How often this server looks for files of servers that have died."""
MAX_ROWS = 100_000
"""Rows that may wait for the database."""
MIN_REWRITE_BYTES = 4_000_000
"""A file that has grown by this is written anew without what is no longer needed."""
MAX_TOGETHER = 1000
"""Rows that are written at once: those who want to write wait for it."""


class Spool:
    """The file of one server. `begin`, `note` and `end` are called on its event loop, the other methods on any thread.

    `adopted` is called, on the thread of `tend`, after rows of a dead server were added. `monotonic` is a clock in
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
        """Held while the entries are changed, and while something is written to the file."""
        self._entries: dict[str, SpoolEntry] = {}
        self._running: dict[str, SpoolEntry] = {}
        """Those of requests that run. Used on the event loop."""
        self._is_ticking = False
        self._tending: threading.Thread | None = None
        self._missed: list[bytes] | None = None
        """What is appended while the file is written anew, which the new one gets last."""
        self._is_closed = False
        self._refused: set[Path] = set()
        self._names = (f"{face}-{number}" for number in itertools.count())
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
        """Add a request that runs."""
        self._running[entry.row.id] = entry
        self._put(entry)
        if not self._is_ticking:
            self._is_ticking = True
            asyncio.get_running_loop().call_later(TICK_SECONDS, self._tick)

    def note(self, entries: Iterable[SpoolEntry]) -> None:
        """Write the counts of requests that run, where there are new ones."""
        progress = {entry.row.id: entry.last for entry in entries if entry.has_advanced()}
        if progress:
            line = progress_line(progress)
            with self._lock:
                self._append(line)

    def _tick(self) -> None:
        self._is_ticking = bool(self._running) and not self._is_closed
        if self._is_ticking:
            asyncio.get_running_loop().call_later(TICK_SECONDS, self._tick)
            self.note(self._running.values())

    def end(self, entry: SpoolEntry) -> None:
        """Add a request that has ended, in the place of what was known of it, which may have a reservation still."""
        before = self._entries.get(entry.row.id)
        if before is not None and entry.reservation_id is None:
            entry.reservation_id = before.reservation_id
        self._running.pop(entry.row.id, None)
        self._put(entry)

    def _put(self, *entries: SpoolEntry) -> None:
        lines = b"".join(map(put_line, entries))
        with self._lock:
            self._entries.update((entry.row.id, entry) for entry in entries)
            self._append(lines)

    def drop(self, rows: Iterable[LedgerRow]) -> None:
        """Forget rows that the database has, each unless there is a newer one of the same request."""
        dropped: list[str] = []
        with self._lock:
            for row in rows:
                entry = self._entries.get(row.id)
                if entry is not None and entry.row is row and entry.progress is None:
                    del self._entries[row.id]
                    dropped.append(row.id)
            if dropped:
                self._append(drop_line(dropped))

    def _append(self, lines: bytes) -> None:
        """Write lines, unless the file cannot be written: all of them come with the next one, then. Called with the
        lock held."""
        if self._missed is not None:
            self._missed.append(lines)
        if self.problem or self._is_closed:
            return
        try:
            self._file.append(lines)
        except OSError as error:
            wanted = room_wanted(error, self._rewrite_at)
            log.error("rows for the ledger cannot be written to %s: %s%s", self._folder, error.strerror, wanted)
            self.problem = error.strerror or "it cannot be written"
        if self._file.size > self._rewrite_at:
            self._tend()

    def tend(self) -> None:
        """Do what is due of that which takes long, on a thread: try again to write, adopt files of servers that have
        died. Called about once per second."""
        with self._lock:
            if self.problem or self._monotonic() - self._looked >= ADOPT_SECONDS:
                self._tend()

    def _tend(self) -> None:
        """Do what is due, on a thread, unless one is at it. Called with the lock held."""
        if not self._is_closed and (self._tending is None or not self._tending.is_alive()):
            thread = threading.Thread(target=self._run, name="onward-spool", daemon=True)
            with suppress(RuntimeError):  # no more threads can be started: later
                thread.start()
                self._tending = thread

    def _run(self) -> None:
        if self.problem or self._file.size > self._rewrite_at:
            try:
                self._rewrite()
            except OSError as error:
                with self._lock:
                    self._rewrite_at = self._file.size + MIN_REWRITE_BYTES
                if not self.problem:  # the file itself is sound, and stays in use
                    log.warning("%s cannot be written anew: %s", self._file.path, error.strerror)
        now = self._monotonic()
        if now - self._looked >= ADOPT_SECONDS:
            self._looked = now
            try:
                if self._adopt():
                    self._adopted()
            except OSError as error:
                log.warning("files of other servers cannot be looked for in %s: %s", self._folder, error.strerror)

    def _rewrite(self) -> None:
        """Write what is needed to another file, and remove the one before. Raises OSError, and keeps that one then."""
        with self._lock:
            entries = list(self._entries.values())
            self._missed = []
        file: SpoolFile | None = None
        try:
            file = SpoolFile(self._folder, self._names, is_copy=True)
            for some in _groups(entries):
                file.append(b"".join(map(put_line, some)))
            with self._lock:
                file.append(b"".join(self._missed) + WHOLE)
                self._file.close(removes=True)
                self._file, file = file, None
                self._rewrite_at = 2 * self._file.size + MIN_REWRITE_BYTES
                self.problem = ""
        finally:
            with self._lock:
                self._missed = None
            if file is not None:
                file.close(removes=True)

    def _adopt(self) -> int:
        """Take over the files of servers that have died; return the number of rows. They are in this server's file
        before those are removed, and a row that is in both is written once. Raises OSError for the folder."""
        count = 0
        paths = sorted(self._folder.glob("*" + SUFFIX), key=lambda path: (len(path.name), path.name), reverse=True)
        for path in paths:  # of one server's the last first: it was killed before it removed the other one
            if path.name.startswith(f"{self._face}-") or path in self._refused:
                continue
            try:
                file = os.open(path, os.O_RDWR)
                try:
                    if try_lock(file):
                        count += self._adopt_file(path)
                finally:
                    os.close(file)
            except FileNotFoundError:
                pass  # another server was faster
            except OSError as error:
                self._leave(path, error.strerror)
        if count:
            log.warning("rows of %d requests of servers that have died are added to the ledger", count)
        return count

    def _adopt_file(self, path: Path) -> int:
        try:
            entries = read_entries(path)
        except ValueError as problem:
            self._leave(path, problem)
            return 0
        with self._lock:
            new = [entry for entry in entries if entry.row.id not in self._entries]
        for some in _groups(new):
            self._put(*some)
        if not self.problem and not self._is_closed:
            try:
                path.unlink()
            except OSError as error:  # its rows are here nevertheless
                self._leave(path, error.strerror)
        return len(new)

    def _leave(self, path: Path, why: object) -> None:
        """Leave a file alone from now on: it says nothing about this server's own."""
        self._refused.add(path)
        log.error("%s is left as it is: %s", path, why)

    def close(self) -> None:
        """Give the file up. It stays only if something is in it that the database does not have."""
        with self._lock:
            self._is_closed = True
        if self._tending is not None:
            self._tending.join()
        if self.problem and self._entries:
            with suppress(OSError):  # it may have room by now
                self._rewrite()
        self._file.close(removes=not self._entries)


def _groups(entries: list[SpoolEntry]) -> Iterator[list[SpoolEntry]]:
    """Yield the entries, MAX_TOGETHER at a time."""
    for begin in range(0, len(entries), MAX_TOGETHER):
        yield entries[begin : begin + MAX_TOGETHER]
