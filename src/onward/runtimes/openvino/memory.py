"""How much memory this process may still take."""

from __future__ import annotations

import ctypes
import os
import sys
from pathlib import Path


def available_memory(root: Path = Path("/")) -> int:
    """Bytes: the free memory of the machine or, in a container, what its limit leaves if that is less.

    `root` is where proc and sys are mounted. Where a system does not say what is free, half of what it has.
    """
    if sys.platform == "win32":
        return _windows()
    meminfo = root / "proc/meminfo"
    if not meminfo.is_file():
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2
    return max(0, min([_linux(meminfo), *_container_limits(root)]))


def _linux(meminfo: Path) -> int:
    for line in meminfo.read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def _container_limits(root: Path) -> list[int]:
    """What is left of the control group's limit, version 2 then 1 (files absent: no limit)."""
    groups = root / "sys/fs/cgroup"
    pairs = [
        (groups / "memory.max", groups / "memory.current", groups / "memory.stat"),
        (
            groups / "memory/memory.limit_in_bytes",
            groups / "memory/memory.usage_in_bytes",
            groups / "memory/memory.stat",
        ),
    ]
    left = []
    for limit, usage, stat in pairs:
        try:
            left.append(int(limit.read_text()) - int(usage.read_text()) + _reclaimable(stat))
        except (OSError, ValueError):  # absent, or "max"
            continue
    return left


def _reclaimable(stat: Path) -> int:
    """File pages that the kernel gives back on demand, counted as used by the group."""
    for line in stat.read_text().splitlines():
        name, _, value = line.partition(" ")
        if name in ("inactive_file", "total_inactive_file"):
            return int(value)
    return 0


def _windows() -> int:
    class Status(ctypes.Structure):
        _fields_ = (
            ("length", ctypes.c_ulong),
            ("load", ctypes.c_ulong),
            *((name, ctypes.c_ulonglong) for name in ("total", "available", "b", "c", "d", "e", "f")),
        )

    status = Status(length=ctypes.sizeof(Status))
    kernel = getattr(ctypes, "windll").kernel32  # noqa: B009  (absent from other systems' type stubs)
    kernel.GlobalMemoryStatusEx(ctypes.byref(status))
    return int(status.available)
