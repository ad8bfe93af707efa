"""Files that are mapped one behind the other, as one range of memory. Linux only."""

from __future__ import annotations

import ctypes
import mmap
import os
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np

GRANULARITY = 1 << 16
"""Bytes: each file begins at a multiple of it. Pages of all processors are smaller, or as large."""
_FIXED = 0x10
"""MAP_FIXED."""
_FAILED = ctypes.c_void_p(-1).value


def can_join() -> bool:
    """Return whether files can be joined on this system."""
    return sys.platform == "linux"


def begins(sizes: Sequence[int]) -> list[int]:
    """Return where files of these sizes begin, and where the last one ends, rounded up."""
    found = [0]
    for size in sizes:
        found.append(found[-1] + -(-size // GRANULARITY) * GRANULARITY)
    return found


def joined(paths: Sequence[Path]) -> mmap.mmap:
    """Return a mapping of files for reading; bytes between them are zeros. Raises OSError."""
    if not can_join():
        raise OSError("files cannot be joined on this system")
    sizes = [path.stat().st_size for path in paths]
    *places, total = begins(sizes)
    # An anonymous mapping reserves the range, and unmaps all of it at its end.
    memory = mmap.mmap(-1, total, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, prot=mmap.PROT_READ)
    address = int(np.frombuffer(memory, np.uint8).ctypes.data)
    for path, size, place in zip(paths, sizes, places, strict=True):
        if size:
            _map(path, size, address + place)
    return memory


def _map(path: Path, size: int, address: int) -> None:
    """Map a file at an address, in place of what is mapped there."""
    library = ctypes.CDLL(None, use_errno=True)
    library.mmap.restype = ctypes.c_void_p
    library.mmap.argtypes = [
        ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long,
    ]  # fmt: skip
    with path.open("rb") as file:
        found = library.mmap(address, size, mmap.PROT_READ, mmap.MAP_SHARED | _FIXED, file.fileno(), 0)
    if found in (None, _FAILED):
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code), str(path))
