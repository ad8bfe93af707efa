"""What the machine, or the container or service that this process runs in, leaves: memory, processors, disk.

Limits are those of control groups, version 2 or 1, of this process's own group and of all groups around it. In every
function, `root` is where proc and sys are mounted. Cheap to import. psutil is not used: it reports the memory of the
whole machine, and no limit of a control group.
"""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_NO_ROOM = frozenset({errno.ENOSPC, errno.EFBIG, getattr(errno, "EDQUOT", errno.ENOSPC)})
"""A full disk, a limit of the process (`ulimit -f`), and a quota."""


def bytes_in_words(count: float) -> str:
    """Return a size such as `12 B`, `3.4 kB` or `56.7 MB`, in powers of 1000."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.0f} B" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} TB"


def room_wanted(error: OSError, num_bytes: float) -> str:
    """Return `; 3.4 MB are needed there` for an error of a disk or a quota without room, "" for others, and where the
    size is not known."""
    return f"; {bytes_in_words(num_bytes)} are needed there" if num_bytes and error.errno in _NO_ROOM else ""


@dataclass(frozen=True, slots=True)
class AvailableMemory:
    """Memory in bytes that may still be allocated, and the control group's limit where that is what bounds it."""

    free_bytes: int
    limit_bytes: int | None = None


def available_memory(root: Path = Path("/")) -> AvailableMemory:
    """Return what is free on the machine, or what the tightest control group leaves if that is less.

    Where the system does not say what is free, half of its memory is assumed to be.
    """
    if sys.platform == "win32":
        return AvailableMemory(_windows_free_bytes())
    meminfo = root / "proc/meminfo"
    if not meminfo.is_file():
        return AvailableMemory(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2)
    machine = AvailableMemory(_linux_free_bytes(meminfo))
    return min([machine, *_group_memory(root)], key=lambda each: each.free_bytes)


def address_space_limit() -> int | None:
    """Return how many bytes of address space this process may use (`ulimit -v`); None where nothing limits it."""
    if sys.platform == "win32":
        return None
    import resource

    soft, _ = resource.getrlimit(resource.RLIMIT_AS)
    return None if soft == resource.RLIM_INFINITY else soft


def cpu_quota(root: Path = Path("/")) -> int | None:
    """Return the whole CPUs (at least 1) of the tightest quota; None where there is none below the core count."""
    quotas = [cpus for folder in _groups(root, "cpu") if (cpus := _quota(folder)) is not None]
    tightest = min(quotas, default=float("inf"))
    return max(1, int(tightest)) if tightest < (os.cpu_count() or 1) else None


def compute_threads(root: Path = Path("/")) -> int:
    """Return how many threads compute a model: one per core that this process may use, or what the tightest quota
    allows. Two threads of one core share its arithmetic, and would wait for each other."""
    usable = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set(range(os.cpu_count() or 1))
    cores = {_core(root, cpu) for cpu in usable}
    return min(cpu_quota(root) or len(cores), len(cores))


def _core(root: Path, cpu: int) -> str:
    """Return what names the core that a logical processor belongs to; itself where the system does not say."""
    try:
        siblings = root / f"sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list"
        return siblings.read_text(encoding="utf-8").strip()
    except OSError:
        return str(cpu)


def resident_bytes() -> int:
    """Return the resident memory of this process, 0 where the system does not list it (all but Linux)."""
    try:
        pages = Path("/proc/self/statm").read_text(encoding="utf-8").split()[1]
    except OSError:
        return 0
    return int(pages) * os.sysconf("SC_PAGE_SIZE")


def _linux_free_bytes(meminfo: Path) -> int:
    for line in meminfo.read_text(encoding="utf-8").splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def _groups(root: Path, controller: str) -> Iterator[Path]:
    """Yield the folders of this process's control groups with that controller, the innermost first.

    Inside a container, the group's path may be the host's and lead nowhere: the root of the mount is then its own.
    """
    mounted = root / "sys/fs/cgroup"
    try:
        lines = os.fsdecode((root / "proc/self/cgroup").read_bytes()).splitlines()
    except OSError:
        lines = []
    paths = {names: path for _, names, path in (line.split(":", 2) for line in lines)}
    versions = [(mounted, paths.get("", "/"))]
    own = next((path for names, path in paths.items() if controller in names.split(",")), "/")
    versions.append((mounted / controller, own))
    for base, path in versions:
        inner = Path(path.lstrip("/"))
        if ".." not in inner.parts:
            yield from (base / each for each in (inner, *inner.parents) if each != Path())
        yield base


def _group_memory(root: Path) -> Iterator[AvailableMemory]:
    for folder in _groups(root, "memory"):
        for limit, usage in (
            ("memory.max", "memory.current"),
            ("memory.high", "memory.current"),  # processes beyond it are slowed down until they free memory
            ("memory.limit_in_bytes", "memory.usage_in_bytes"),
        ):
            try:
                limit_bytes = int((folder / limit).read_text(encoding="utf-8"))
                used_bytes = max(
                    0, int((folder / usage).read_text(encoding="utf-8")) - _reclaimable_bytes(folder / "memory.stat")
                )
            except (OSError, ValueError):  # absent, or "max"
                continue
            yield AvailableMemory(max(0, limit_bytes - used_bytes), limit_bytes)


def _reclaimable_bytes(stat: Path) -> int:
    """Return the file pages, of the group and those within it, that count as used but are freed on demand."""
    fields = dict(line.split(" ", 1) for line in stat.read_text(encoding="utf-8").splitlines() if " " in line)
    return int(fields.get("total_inactive_file", fields.get("inactive_file", 0)))


def _quota(folder: Path) -> float | None:
    """Return the CPUs, possibly a fraction, that the group in `folder` may use; None for any number."""
    try:
        quota, period = (folder / "cpu.max").read_text(encoding="utf-8").split()
    except (OSError, ValueError):
        try:
            quota = (folder / "cpu.cfs_quota_us").read_text(encoding="utf-8")
            period = (folder / "cpu.cfs_period_us").read_text(encoding="utf-8")
        except OSError:
            return None
    try:
        cpus = int(quota) / int(period)
    except (ValueError, ZeroDivisionError):  # "max"
        return None
    return cpus if cpus > 0 else None


def _windows_free_bytes() -> int:
    import ctypes

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
