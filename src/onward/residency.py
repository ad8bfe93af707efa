"""Keep the process's resident memory small: one heap for all threads; drop what only loading needed."""

from __future__ import annotations

import ctypes
import gc
import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

_M_ARENA_MAX = -8
"""A parameter of mallopt(3)."""
_MADV_DONTNEED = 4
"""Of madvise(2): clean pages of a mapped file leave this process, not the page cache, and return when touched."""

_MAPPED_FILE = re.compile(r"^([0-9a-f]+)-([0-9a-f]+) (\S+) \S+ \S+ \S+ +(/.*)\n((?:\w+:.*\n)*)", re.MULTILINE)
"""A mapped file in /proc/PID/smaps (proc_pid_smaps(5)): start, end, permissions, path, then its lines of fields."""


class Mapping(NamedTuple):
    """A range of this process's memory that maps a file. `length` and `resident_bytes` are in bytes.

    `is_dirty`: it may differ from the file, or is writable.
    """

    start: int
    length: int
    path: str
    resident_bytes: int
    is_dirty: bool


def drop_file_pages(*name_prefixes: str) -> int:
    """Drop the clean resident pages of mapped files whose names start with one of `name_prefixes`.

    Returns how many bytes were resident. The pages stay in the system's page cache, from which the kernel reclaims
    clean pages anyway: what shrinks is the resident size of the process. `python -m benchmarks.residency` measures it:
    with the built-in model, `onward serve` is at 138 MiB instead of 262 when it is ready, and at 183 instead of 277
    after a request. Nothing is lost if the files are used later.

    Call it only where no other thread can unmap such a file meanwhile: the kernel identifies pages by address, and
    memory that took the place of a file would be zeroed. For the same reason garbage collection is paused, because it
    could unmap a file on any thread. Takes tens of milliseconds. Linux only: elsewhere, and where /proc is not
    readable, nothing happens.
    """
    if not sys.platform.startswith("linux"):
        return 0
    with _gc_paused():
        try:
            smaps = Path("/proc/self/smaps").read_text(encoding="utf-8", errors="replace")
        except OSError:
            return 0
        return sum(_drop(mapping) for mapping in mappings(smaps, name_prefixes) if not mapping.is_dirty)


def _drop(mapping: Mapping) -> int:
    """Return how many bytes were resident, 0 if the system refuses."""
    madvise = ctypes.CDLL(None).madvise
    failed = madvise(ctypes.c_void_p(mapping.start), ctypes.c_size_t(mapping.length), _MADV_DONTNEED)
    return 0 if failed else mapping.resident_bytes


def collect_later() -> None:
    """Pause the garbage collector while a process imports and loads what it keeps: it would traverse all of that again
    and again, which takes a tenth of a start, and find nothing. Until `freeze_objects`."""
    gc.disable()


def freeze_objects() -> None:
    """Have no collection traverse the objects that there are by now: those of libraries live as long as the process."""
    gc.freeze()
    gc.enable()


@contextmanager
def _gc_paused() -> Iterator[None]:
    """Disable the garbage collector inside the block, and enable it again if it was enabled."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def share_heap() -> None:
    """Make threads that start from now on allocate from one heap.

    By default glibc gives each thread its own heap, and memory freed in one cannot be reused by the others: some 8 MiB
    more on a tiny model. Does nothing where the environment configures this, or where the C library has no such call.
    """
    if "MALLOC_ARENA_MAX" in os.environ or "arena_max" in os.environ.get("GLIBC_TUNABLES", ""):
        return
    try:
        ctypes.CDLL(None).mallopt(_M_ARENA_MAX, 1)
    except (AttributeError, OSError, TypeError):
        return


def trim_heap() -> None:
    """Return freed memory that the allocator keeps to the system: tens of megabytes after loading.

    Takes milliseconds; may be called on any thread. Does nothing where the C library has no such call (it is glibc's).
    """
    try:
        ctypes.CDLL(None).malloc_trim(0)
    except (AttributeError, OSError, TypeError):
        return


def mappings(smaps: str, name_prefixes: tuple[str, ...] = ("",)) -> Iterator[Mapping]:
    """Yield the mappings, in the text of a /proc/PID/smaps, of files whose names start with one of
    `name_prefixes`."""
    for found in _MAPPED_FILE.finditer(smaps):
        if not found[4].rpartition("/")[2].startswith(name_prefixes):
            continue
        start, end = int(found[1], 16), int(found[2], 16)
        is_dirty = "w" in found[3] or _size_bytes("Anonymous", found[5]) != 0
        yield Mapping(start, end - start, found[4], _size_bytes("Rss", found[5]) or 0, is_dirty)


def _size_bytes(name: str, fields: str) -> int | None:
    """Return a field in bytes, None if it is missing."""
    found = re.search(rf"^{name}: +(\d+) kB$", fields, re.MULTILINE)
    return int(found[1]) * 1024 if found else None
