"""Files as memory: their bytes are read when they are used."""

from __future__ import annotations

import mmap
import os
import sys
import weakref
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib.array_utils import byte_bounds
from numpy.typing import NDArray

from onward.errors import CheckpointError


class MappedFile(mmap.mmap):
    """A file as memory. To read it there may end the process, by SIGBUS, where the file was cut short meanwhile."""

    path: Path
    descriptor: int
    """The same file, of which bytes are read where a process has to live on."""

    def read_at(self, begin: int, size: int) -> bytes:
        """Return bytes as they are in the file now. Raises CheckpointError if it was cut short meanwhile."""
        try:
            found = _read(self.descriptor, size, begin)
            while len(found) < size and (part := _read(self.descriptor, size - len(found), begin + len(found))):
                found += part
        except OSError as error:
            raise CheckpointError(f"{self.path} cannot be read ({error.strerror}).") from None
        if len(found) < size:
            raise CheckpointError(f"{self.path} was cut short while it was read: copy or download it again.")
        return found


def mapped(path: Path) -> MappedFile:
    """Return a file as memory. Raises CheckpointError for one that is missing, empty, or may not be read."""
    try:
        with path.open("rb") as file:
            found = MappedFile(file.fileno(), 0, access=mmap.ACCESS_READ)
            found.path, found.descriptor = path, os.dup(file.fileno())
    except FileNotFoundError:
        raise CheckpointError(f"{path} does not exist.") from None
    except (OSError, ValueError) as error:  # ValueError: an empty file cannot be mapped
        reason = getattr(error, "strerror", None) or "it is empty"
        raise CheckpointError(f"{path} cannot be read ({reason}).") from None
    weakref.finalize(found, os.close, found.descriptor)
    return found


def _read(descriptor: int, size: int, begin: int) -> bytes:
    if sys.platform != "win32":
        return os.pread(descriptor, size, begin)
    os.lseek(descriptor, begin, os.SEEK_SET)
    return os.read(descriptor, size)


def copied(view: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Return the bytes of an array. Those of a mapped file are read, which is not a signal where it was cut short, but
    a CheckpointError: for what is read in a process that has to live on."""
    owner = _map_of(view)
    if owner is None or not view.flags.c_contiguous:
        return view
    low, _ = byte_bounds(view)
    begin = int(low) - np.frombuffer(owner, np.uint8).ctypes.data
    return np.frombuffer(owner.read_at(begin, view.nbytes), np.uint8).reshape(view.shape)


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


def _map_of(view: NDArray[Any]) -> MappedFile | None:
    """Return the mapped file that an array is a view of, None for other arrays."""
    owner: object = view
    while isinstance(owner, np.ndarray):
        owner = owner.base
    if isinstance(owner, memoryview):
        owner = owner.obj
    return owner if isinstance(owner, MappedFile) else None


def drop_pages(view: NDArray[Any]) -> None:
    """Drop the pages of a mapped file that lie within an array, which is a view of it: they are read again when they
    are used again. Others stay: if they were dropped too, threads that read them would wait for each other's page
    faults.

    Nothing happens to other arrays, and where the system has no such call.
    """
    owner = _map_of(view)
    if owner is None or not hasattr(mmap, "MADV_DONTNEED"):
        return
    begin = np.frombuffer(owner, np.uint8).ctypes.data
    low, high = (int(place) - begin for place in byte_bounds(view))
    first, last = -(-low // mmap.PAGESIZE) * mmap.PAGESIZE, high // mmap.PAGESIZE * mmap.PAGESIZE
    if first < last:
        owner.madvise(mmap.MADV_DONTNEED, first, last - first)
