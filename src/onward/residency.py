"""Keeps the process's memory small: one heap for all threads, and what only loading needed is handed back."""

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

_ARENA_MAX = -8
"""M_ARENA_MAX of mallopt(3)."""
_DONT_NEED = 4
"""MADV_DONTNEED: a mapped file's unchanged pages leave this process, not the system's cache; they come back when
they are touched (madvise(2))."""


_MAPPED_FILE = re.compile(r"^([0-9a-f]+)-([0-9a-f]+) (\S+) \S+ \S+ \S+ +(/.*)\n((?:\w+:.*\n)*)", re.MULTILINE)
"""A file's part in /proc/PID/smaps (proc_pid_smaps(5)): from, to, permissions, path; then the lines of its fields."""


class Mapping(NamedTuple):
    """A part of this process's memory that shows a file. `length` and `resident` in bytes; `kept`: it may differ from
    the file, or may be written."""

    start: int
    length: int
    path: str
    resident: int
    kept: bool


def drop_file_pages(*names: str) -> int:
    """Let go of the pages of mapped files whose names begin so; gives how many bytes were resident.

    Only where no other thread can unmap such a file meanwhile: the system knows pages by their address, and memory
    that took the file's place would become zeros. Nor does the garbage collector run, which could unmap one on any
    thread. Takes tens of milliseconds. Nothing is lost whatever uses those files later. Linux only: elsewhere, and
    where the system does not say which pages are its files', nothing happens.
    """
    if not sys.platform.startswith("linux"):
        return 0
    with _gc_paused():
        try:
            listing = Path("/proc/self/smaps").read_text(encoding="utf-8", errors="replace")
        except OSError:
            return 0
        return sum(_let_go(each) for each in mappings(listing, names) if not each.kept)


def _let_go(mapping: Mapping) -> int:
    """Bytes that were resident, 0 when the system refuses."""
    madvise = ctypes.CDLL(None).madvise
    refused = madvise(ctypes.c_void_p(mapping.start), ctypes.c_size_t(mapping.length), _DONT_NEED)
    return 0 if refused else mapping.resident


@contextmanager
def _gc_paused() -> Iterator[None]:
    """Keeps the garbage collector still."""
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collects:
            gc.enable()


def share_heap() -> None:
    """Let threads that start from now on allocate from one heap. By default glibc gives each its own, and what one
    has freed is of no use to the others: some 8 MiB more on a tiny model. Nothing happens where the environment says
    otherwise, or the C library has no such call."""
    if "MALLOC_ARENA_MAX" in os.environ or "arena_max" in os.environ.get("GLIBC_TUNABLES", ""):
        return
    try:
        ctypes.CDLL(None).mallopt(_ARENA_MAX, 1)
    except (AttributeError, OSError, TypeError):
        return


def trim_heap() -> None:
    """Give freed memory that the allocator keeps back to the system: after loading that is tens of megabytes. Takes
    milliseconds; for any thread. Where the C library has no such call (it is glibc's), nothing happens."""
    try:
        ctypes.CDLL(None).malloc_trim(0)
    except (AttributeError, OSError, TypeError):
        return


def mappings(listing: str, names: tuple[str, ...] = ("",)) -> Iterator[Mapping]:
    """The mappings in a /proc/PID/smaps of files whose names begin so."""
    for found in _MAPPED_FILE.finditer(listing):
        if not found[4].rpartition("/")[2].startswith(names):
            continue
        start, end = int(found[1], 16), int(found[2], 16)
        kept = "w" in found[3] or _size("Anonymous", found[5]) != 0
        yield Mapping(start, end - start, found[4], _size("Rss", found[5]) or 0, kept)


def _size(name: str, fields: str) -> int | None:
    """A field in bytes, None where the system does not give it."""
    found = re.search(rf"^{name}: +(\d+) kB$", fields, re.MULTILINE)
    return int(found[1]) * 1024 if found else None
