"""The file of a spool: what its lines say, who owns it, and what is left of one whose server was killed.

A file is a list of lines: a CRC-32 in hexadecimal, a space, JSON. Whoever holds a file's lock owns it. What a process
has written outlives it, so a kill leaves the lines in the order in which they were appended, the last one perhaps not
whole: its checksum shows it. A file that was made in the place of another one counts from its line "whole" on: until
then that one has everything.
"""

from __future__ import annotations

import logging
import os
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import replace

from onward.file_locks import try_lock
from onward.service.records import LedgerRow

log = logging.getLogger("onward.service")

SUFFIX = ".spool"
FORMAT = 1
PROGRESS = (
    *("ended_ms", "status", "prompt_tokens", "cached_tokens", "completion_tokens", "computed_tokens"),
    *("delivered_tokens", "first_token_ms", "prompt_cost", "completion_cost", "finish_reasons"),
)
"""What changes of a row while its request runs."""
_CREATE_FLAGS = os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_APPEND | getattr(os, "O_BINARY", 0)
SpoolProgress = tuple[Any, ...]


@dataclass(slots=True)
class SpoolEntry:
    """A request that the database does not have. `row` is how it is billed if nothing more is heard of it; `key_id`
    that of the database's key that it belongs to, "" for others; `progress` returns what PROGRESS is now, None once
    the request has ended. `last` is the progress that the file has."""

    row: LedgerRow
    key_id: str
    reservation_id: str | None
    progress: Callable[[], SpoolProgress] | None = None
    last: SpoolProgress = ()

    def has_advanced(self) -> bool:
        """Bring `last` up to date; return whether there is more than a later time."""
        assert self.progress is not None
        before, self.last = self.last, self.progress()
        return self.last[1:] != before[1:]


class SpoolFile:
    """A new file that this process owns until it closes it or ends. Methods raise OSError."""

    def __init__(self, folder: Path, names: Iterator[str], *, is_copy: bool = False) -> None:
        """`names` are tried in turn. `is_copy`: it counts only once it has WHOLE."""
        while True:
            self.path = folder / f"{next(names)}{SUFFIX}"
            self._file = os.open(self.path, _CREATE_FLAGS, 0o600)
            if try_lock(self._file) and self.path.exists():
                break
            os.close(self._file)  # another server has taken the empty file for that of a dead one
        self.size = 0
        try:
            self.append(_line({"spool": FORMAT, "copy": is_copy}))
        except OSError:
            self.close(removes=True)
            raise

    def append(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            count = os.write(self._file, view)
            self.size += count
            view = view[count:]

    def close(self, *, removes: bool) -> None:
        """Give the file up. It is removed first: another server that gets its lock finds none. Never raises."""
        if removes:
            with suppress(OSError):  # Windows removes only what is closed
                self.path.unlink()
        with suppress(OSError):
            os.close(self._file)
        if removes:
            with suppress(OSError):
                self.path.unlink()


def put_line(entry: SpoolEntry) -> bytes:
    row = _advanced(entry.row, entry.last) if entry.progress is not None and entry.last else entry.row
    return _line({"put": row, "key": entry.key_id, "reservation": entry.reservation_id})


def drop_line(ids: Sequence[str]) -> bytes:
    return _line({"drop": ids})


def progress_line(progress: Mapping[str, SpoolProgress]) -> bytes:
    return _line({"progress": progress})


def _line(value: object) -> bytes:
    encoded = msgspec.json.encode(value)
    return b"%08x %s\n" % (zlib.crc32(encoded), encoded)


WHOLE = _line({"whole": True})
"""The line of a copy that has everything which the file before it had."""


def _advanced(row: LedgerRow, progress: SpoolProgress) -> LedgerRow:
    return replace(row, **dict(zip(PROGRESS, progress, strict=True)))


def read_entries(path: Path) -> list[SpoolEntry]:
    """Return what a file has that was not dropped; nothing of a copy without its line WHOLE. Lines that are not whole
    are left out: a server that is killed may leave the last one so. Raises OSError; ValueError for a file of another
    version."""
    found: dict[str, SpoolEntry] = {}
    is_whole = True
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            checksum, _, encoded = line.rstrip(b"\n").partition(b" ")
            if checksum != b"%08x" % zlib.crc32(encoded):
                log.warning("line %d of %s is not whole", number, path)
                continue
            value = msgspec.json.decode(encoded)
            if value.get("spool", FORMAT) != FORMAT:
                raise ValueError("it was written by another version of Onward, which has to read it.")
            is_whole = value.get("whole", is_whole and not value.get("copy"))
            _replay(value, found)
    return list(found.values()) if is_whole else []


def _replay(value: dict[str, Any], found: dict[str, SpoolEntry]) -> None:
    if "put" in value:
        row = LedgerRow(**value["put"])
        found[row.id] = SpoolEntry(row, value["key"], value["reservation"])
    for id in value.get("drop", ()):
        found.pop(id, None)
    for id, progress in value.get("progress", {}).items():
        if id in found:
            found[id].row = _advanced(found[id].row, progress)
