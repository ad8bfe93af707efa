"""An output file that survives a kill: complete lines only, each appended with one write."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator, KeysView
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import msgspec

from onward.errors import SetupError
from onward.file_locks import NoLocks, try_lock
from onward.machine import room_wanted

_ID = "batch_req_"
_WITH_DIGEST = re.compile(_ID + "([0-9a-f]{32})")
_BEGINNING = b'{"id": "' + _ID.encode()


def record_id(digest: str) -> str:
    """Return the `id` of a record, its first key, which says which request it belongs to."""
    return _ID + digest


class BatchJournal:
    """One file of results, locked while open. `digests` has the key of every line in it (see `key_of`), and the digest
    of its request, "" where it states none.

    A last line that is incomplete after a kill is removed when the file is opened, so that its request runs again.
    """

    RECORD_START = _BEGINNING
    """The beginning of every line written here, and of no file of others: a last line that begins with it is removed if
    it is incomplete, and any other is refused."""
    RECORD_NAME = "a batch result"

    def __init__(self, path: Path, num_expected: int = 0) -> None:
        """Open the file, in which `num_expected` lines will be in the end (0: nobody knows).

        Raises SetupError if the file is not writable, another run has it open, or a line of it is not a result.
        """
        self.path = path
        self._num_expected = num_expected
        with self._convert_errors():
            self._file, self._is_new = _opened(path)
            try:
                self._check_regular()
                self._lock()
                self.digests = self._recover()
            except BaseException:
                os.close(self._file)
                raise

    def append(self, record: dict[str, Any]) -> None:
        """Append one result; it is in the file when this returns. Raises SetupError, such as for a full disk."""
        self.write(msgspec.json.encode(record) + b"\n", self.key_of(record), _digest_of(record))

    def write(self, data: bytes, key: str | int, digest: str = "") -> None:
        """Append one result, as a line of JSON. Raises as `append` does."""
        line = memoryview(data)
        complete_bytes = os.fstat(self._file).st_size
        try:
            with self._convert_errors(self._bytes_left(complete_bytes, len(line))):
                while line:
                    line = line[os.write(self._file, line) :]
        except SetupError:
            with suppress(OSError):  # otherwise the next run removes it
                os.ftruncate(self._file, complete_bytes)
            raise
        self.digests[key] = digest

    @property
    def keys(self) -> KeysView[str | int]:
        """The key of every line."""
        return self.digests.keys()

    def key_of(self, record: dict[str, Any]) -> str | int:
        """Return what identifies an input line across runs: its custom_id, or the line number of an invalid line.

        Raises KeyError, TypeError or AttributeError if the record is not a result.
        """
        key = record["custom_id"]
        if record["response"] is None:
            key = (record["error"] or {}).get("line", key)
        if not isinstance(key, str | int):
            raise TypeError(key)
        return key

    def close(self) -> None:
        """Close the file; remove it if it is new and empty. Raises SetupError if the disk fails."""
        try:
            with self._convert_errors():
                os.fsync(self._file)
            empty = os.fstat(self._file).st_size == 0
        finally:
            os.close(self._file)
        if empty and self._is_new:
            self.path.resolve().unlink(missing_ok=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @contextmanager
    def _convert_errors(self, bytes_left: float = 0) -> Iterator[None]:
        """Convert OSError to a SetupError that names the file, and on a full disk how much is left to write."""
        try:
            yield
        except OSError as problem:
            wanted = room_wanted(problem, bytes_left)
            raise SetupError(f"{self.path} cannot be written: {problem.strerror}{wanted}.") from None

    def _bytes_left(self, complete_bytes: int, line_bytes: int) -> float:
        """Estimate the bytes of the lines that are not in the file yet, from the size of one of them."""
        mean = complete_bytes / len(self.digests) if self.digests else line_bytes
        return line_bytes + mean * max(0, self._num_expected - len(self.digests) - 1)

    def _check_regular(self) -> None:
        if not stat.S_ISREG(os.fstat(self._file).st_mode):
            raise SetupError(f"{self.path} is not a regular file; use one, so that a later run can continue from it.")

    def _lock(self) -> None:
        """Keep other runs from writing the file, where its file system has locks."""
        with suppress(NoLocks):
            if not try_lock(self._file):
                raise SetupError(f"Another run is writing {self.path}: wait for it, or use another file.")

    def _recover(self) -> dict[str | int, str]:
        digests: dict[str | int, str] = {}
        complete_bytes = 0
        with open(os.dup(self._file), "rb") as file:  # noqa: PTH123 - a path cannot be opened by number
            file.seek(0)
            for number, line in enumerate(file, 1):
                if not line.endswith(b"\n"):
                    self._check_incomplete(line, number)
                    break
                key, digest = self._parse(line, number)
                digests[key] = digest
                complete_bytes += len(line)
        os.ftruncate(self._file, complete_bytes)
        return digests

    def _parse(self, line: bytes, number: int) -> tuple[str | int, str]:
        try:
            record = msgspec.json.decode(line)
            return self.key_of(record), _digest_of(record)
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            raise self._not_a_result(number) from None

    def _check_incomplete(self, line: bytes, number: int) -> None:
        if not line.startswith(self.RECORD_START[: len(line)]):
            raise self._not_a_result(number)

    def _not_a_result(self, number: int) -> SetupError:
        return SetupError(
            f"{self.path} line {number} is not {self.RECORD_NAME}: use another file, or move this one away."
        )


def _digest_of(record: dict[str, Any]) -> str:
    found = _WITH_DIGEST.fullmatch(str(record.get("id")))
    return found[1] if found else ""


def _opened(path: Path) -> tuple[int, bool]:
    """Return the file descriptor, and whether the file is new."""
    flags = os.O_RDWR | os.O_APPEND
    try:
        return os.open(path, flags), False
    except FileNotFoundError:
        return os.open(path, flags | os.O_CREAT, 0o644), True
