"""Keeps the process's memory small: one heap for all threads, and what only loading needed is handed back."""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

_ARENA_MAX = -8
"""M_ARENA_MAX of mallopt(3)."""
_DONT_NEED = 4
"""MADV_DONTNEED: a mapped file's unchanged pages leave this process, not the system's cache; they come back when
they are touched (madvise(2))."""


class Mapping(NamedTuple):
    """A part of this process's memory that shows a file. `length` and `resident` in bytes; `kept`: it may differ from
    the file, or may be written."""

    start: int
    length: int
    path: str
    resident: int
    kept: bool


def hand_back(*names: str) -> int:
    """Let go of the pages of mapped files whose names begin so; gives how many bytes were resident.

    Takes milliseconds; for any thread. Nothing is lost whatever uses those files later. Linux only: elsewhere, and
    where the system does not say which pages are its files', nothing happens.
    """
    if not sys.platform.startswith("linux"):
        return 0
    try:
        listing = Path("/proc/self/smaps").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return 0
    system = ctypes.CDLL(None)
    freed = 0
    for mapping in mappings(listing):
        if mapping.kept or not Path(mapping.path).name.startswith(names):
            continue
        refused = system.madvise(ctypes.c_void_p(mapping.start), ctypes.c_size_t(mapping.length), _DONT_NEED)
        freed += 0 if refused else mapping.resident
    return freed


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


def mappings(listing: str) -> Iterator[Mapping]:
    """The file mappings of a /proc/PID/smaps (proc_pid_smaps(5)): a line with range, permissions and path, then
    fields in kB."""
    head: list[str] = []
    sizes: dict[str, int] = {}
    for line in [*listing.splitlines(), "0-0 ---p 0 0 0"]:
        words = line.split(maxsplit=5)
        if words[0].endswith(":"):
            if words[-1] == "kB":
                sizes[words[0]] = int(words[1]) * 1024
            continue
        if len(head) == 6 and head[5].startswith("/"):
            start, end = (int(part, 16) for part in head[0].split("-"))
            kept = "w" in head[1] or sizes.get("Anonymous:", 1) > 0
            yield Mapping(start, end - start, head[5], sizes.get("Rss:", 0), kept)
        head, sizes = words, {}
