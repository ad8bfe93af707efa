"""An output file that survives a kill: whole lines only, each appended by one write."""

from __future__ import annotations

import os
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import msgspec

from onward.errors import SetupError


class Journal:
    """One file of results, locked while open. `done` holds the key of every line in it (see `_key`).

    A line that a kill has torn is cut off at the start, so that it is answered again and never stands twice.
    """

    def __init__(self, path: Path) -> None:
        """Raises SetupError: another run has it, or it holds something that is no result."""
        self.path = path
        try:
            self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
        except OSError as problem:
            raise SetupError(f"{path} cannot be written: {problem.strerror}.") from None
        try:
            self._lock()
            self.done = self._recover()
        except BaseException:
            os.close(self._file)
            raise

    def append(self, record: dict[str, Any]) -> None:
        """Add one result. It is in the file, whole, when this returns."""
        line = memoryview(msgspec.json.encode(record) + b"\n")
        while line:
            line = line[os.write(self._file, line) :]
        self.done.add(_key(record))

    def close(self) -> None:
        os.fsync(self._file)
        empty = os.fstat(self._file).st_size == 0
        os.close(self._file)
        if empty:
            self.path.unlink(missing_ok=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _lock(self) -> None:
        try:
            import fcntl
        except ImportError:  # Windows has no such locks
            return
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise SetupError(f"Another run is writing {self.path}: wait for it, or give another file.") from None

    def _recover(self) -> set[str | int]:
        done: set[str | int] = set()
        whole = 0
        with open(os.dup(self._file), "rb") as file:  # noqa: PTH123 - a path cannot be opened by number
            file.seek(0)
            for number, line in enumerate(file, 1):
                if not line.endswith(b"\n"):
                    break
                done.add(self._known(line, number))
                whole += len(line)
        os.ftruncate(self._file, whole)
        return done

    def _known(self, line: bytes, number: int) -> str | int:
        try:
            return _key(msgspec.json.decode(line))
        except (ValueError, KeyError, TypeError, RecursionError):
            raise SetupError(
                f"{self.path} line {number} is no result of a batch: give another file, or move this one away."
            ) from None


def _key(record: dict[str, Any]) -> str | int:
    """What names an input line from run to run: its custom_id, or the number of a line that was unreadable.

    Raises KeyError or TypeError for what is no result.
    """
    key = record["custom_id"]
    if record["response"] is None:
        key = (record["error"] or {}).get("line", key)
    if not isinstance(key, str | int):
        raise TypeError(key)
    return key
