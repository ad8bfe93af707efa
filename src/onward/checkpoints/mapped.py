"""Files as memory: their bytes are read when they are used."""

from __future__ import annotations

import mmap
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
