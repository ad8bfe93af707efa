"""An output file that survives a kill: whole lines only, each appended by one write."""

from __future__ import annotations

import os
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import msgspec

from onward.errors import SetupError

_ID = "batch_req_"
_BEGINNING = msgspec.json.encode({"id": _ID}).removesuffix(b'"}')
"""Of every line that is written here."""


def new_id() -> str:
    """What a record's `id` is; records begin with it."""
    return _ID + secrets.token_hex(12)


class Journal:
    """One file of results, locked while open. `done` holds the key of every line in it (see `_key`).

    A line that a kill has torn is cut off at the start, so that it is answered again and never stands twice.
    """

    def __init__(self, path: Path) -> None:
        """Raises SetupError: it cannot be written, another run has it, or it holds something that is no result."""
        self.path = path
        with self._named():
            self._file, self._is_new = _opened(path)
            try:
                self._check_regular()
                self._lock()
                self.done = self._recover()
            except BaseException:
                os.close(self._file)
                raise

    def append(self, record: dict[str, Any]) -> None:
        """Add one result. It is in the file, whole, when this returns. Raises SetupError: a full disk."""
        line = memoryview(msgspec.json.encode(record) + b"\n")
        whole = os.fstat(self._file).st_size
        try:
            with self._named():
                while line:
                    line = line[os.write(self._file, line) :]
        except SetupError:
            with suppress(OSError):  # else the next run cuts it
                os.ftruncate(self._file, whole)
            raise
        self.done.add(_key(record))

    def close(self) -> None:
        """Leaves no empty file behind where there was none. Raises SetupError: a disk that failed."""
        try:
            with self._named():
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
    def _named(self) -> Iterator[None]:
        """What the system says of the file becomes a SetupError that names it."""
        try:
            yield
        except OSError as problem:
            raise SetupError(f"{self.path} cannot be written: {problem.strerror}.") from None

    def _check_regular(self) -> None:
        if not stat.S_ISREG(os.fstat(self._file).st_mode):
            raise SetupError(f"{self.path} is no regular file: give one, so that a later run can go on from it.")

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
                    self._check_torn(line, number)
                    break
                done.add(self._known(line, number))
                whole += len(line)
        os.ftruncate(self._file, whole)
        return done

    def _known(self, line: bytes, number: int) -> str | int:
        try:
            return _key(msgspec.json.decode(line))
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            raise self._stranger(number) from None

    def _check_torn(self, line: bytes, number: int) -> None:
        if not line.startswith(_BEGINNING[: len(line)]):
            raise self._stranger(number)

    def _stranger(self, number: int) -> SetupError:
        return SetupError(
            f"{self.path} line {number} is no result of a batch: give another file, or move this one away."
        )


def _opened(path: Path) -> tuple[int, bool]:
    """The file's number, and whether it was made by this."""
    flags = os.O_RDWR | os.O_APPEND
    try:
        return os.open(path, flags), False
    except FileNotFoundError:
        return os.open(path, flags | os.O_CREAT, 0o644), True


def _key(record: dict[str, Any]) -> str | int:
    """What names an input line from run to run: its custom_id, or the number of a line that was unreadable.

    Raises KeyError, TypeError or AttributeError for what is no result.
    """
    key = record["custom_id"]
    if record["response"] is None:
        key = (record["error"] or {}).get("line", key)
    if not isinstance(key, str | int):
        raise TypeError(key)
    return key
