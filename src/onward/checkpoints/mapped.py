"""Files as memory: their bytes are read when they are used."""

from __future__ import annotations

import mmap
import os
import weakref
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib.array_utils import byte_bounds
from numpy.typing import NDArray

from onward.errors import CheckpointError


def mapped(path: Path) -> memoryview:
    """Return a file's bytes. Raises CheckpointError for a file that is missing, empty, or may not be read."""
    try:
        with path.open("rb") as file:
            return memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
    except FileNotFoundError:
        raise CheckpointError(f"{path} does not exist.") from None
    except (OSError, ValueError) as error:  # ValueError: an empty file cannot be mapped
        reason = getattr(error, "strerror", None) or "it is empty"
        raise CheckpointError(f"{path} cannot be read ({reason}).") from None


class FileWatch:
    """Looks whether mapped files still have the content that they had when this was created. A file that another one
    has taken the place of still has it."""

    def __init__(self, paths: Iterable[Path]) -> None:
        """Keeps the files open until `close`, or as long as this lives. Raises OSError."""
        self._files: list[tuple[int, Path, tuple[int, int]]] = []
        opened: list[int] = []
        self._close = weakref.finalize(self, _close_files, opened)
        for path in paths:
            opened.append(number := os.open(path, os.O_RDONLY | getattr(os, "O_BINARY", 0)))
            self._files.append((number, path, _version(number)))

    def require_unchanged(self) -> None:
        """Raise RuntimeError for a file that was written to. Takes a microsecond per file. One that can no longer be
        looked at was not: another machine has replaced it on a network file system."""
        for number, path, version in self._files:
            try:
                is_unchanged = _version(number) == version
            except OSError:
                continue
            if not is_unchanged:
                raise RuntimeError(
                    f"{path} was written to while its model was in use: replace such a file by renaming another one, "
                    "and then restart the server"
                )

    def close(self) -> None:
        """May be called again. Nothing is looked at any more."""
        self._files = []
        self._close()


def _close_files(opened: list[int]) -> None:
    for number in opened:
        os.close(number)


def _version(number: int) -> tuple[int, int]:
    status = os.fstat(number)
    return status.st_mtime_ns, status.st_size


def drop_pages(view: NDArray[Any]) -> None:
    """Drop the pages of a mapped file that lie within an array, which is a view of it: they are read again when they
    are used again. Others stay: if they were dropped too, threads that read them would wait for each other's page
    faults.

    Nothing happens to other arrays, and where the system has no such call.
    """
    owner: object = view
    while isinstance(owner, np.ndarray):
        owner = owner.base
    if isinstance(owner, memoryview):
        owner = owner.obj
    if not isinstance(owner, mmap.mmap) or not hasattr(mmap, "MADV_DONTNEED"):
        return
    begin = np.frombuffer(owner, np.uint8).ctypes.data
    low, high = (int(place) - begin for place in byte_bounds(view))
    first, last = -(-low // mmap.PAGESIZE) * mmap.PAGESIZE, high // mmap.PAGESIZE * mmap.PAGESIZE
    if first < last:
        owner.madvise(mmap.MADV_DONTNEED, first, last - first)
