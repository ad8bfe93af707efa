"""A server's processes, and what the system reports for all of them together: processor time and resident memory."""

from __future__ import annotations

import os
import re
from dataclasses import asdict, dataclass
from pathlib import Path

KIB = 1024


@dataclass(frozen=True, slots=True)
class Memory:
    """Resident bytes: `kv` is the KV cache, `file` pages of files, `anonymous` everything else, `peak` the most
    that was ever resident. `proportional` counts a page that several processes share as a part of it for each."""

    peak: int
    anonymous: int
    file: int
    kv: int
    proportional: int

    @property
    def resident(self) -> int:
        return self.anonymous + self.file + self.kv

    def __add__(self, other: Memory) -> Memory:
        return Memory(*(mine + its for mine, its in zip(asdict(self).values(), asdict(other).values(), strict=True)))


def process_tree(pid: int) -> list[int]:
    """Return a process and its descendants, parents first. Where the system does not list them: the process alone."""
    found = [pid]
    for each in found:
        for children in Path(f"/proc/{each}/task").glob("*/children"):
            try:
                found += [int(child) for child in children.read_text(encoding="ascii").split()]
            except OSError:  # the thread has ended
                continue
    return found


def cpu_seconds(pid: int) -> float | None:
    """Return the processor time of a process and its descendants since their start; None where the system does not
    report it."""
    found = cpu_by_process(pid)
    return sum(found) if found else None


def cpu_by_process(pid: int) -> list[float]:
    """Return the processor time of a process, then of each descendant. Empty where the system does not report it."""
    return [seconds for seconds in map(_own_cpu_seconds, process_tree(pid)) if seconds is not None]


def _own_cpu_seconds(pid: int) -> float | None:
    try:
        content = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8")
    except OSError:
        return None
    fields = content.rpartition(")")[2].split()  # the name before it may contain spaces
    user, system = int(fields[11]), int(fields[12])
    return (user + system) / os.sysconf("SC_CLK_TCK")


def memory_by_process(pid: int) -> list[Memory]:
    """Return the memory of a process, then of each descendant. Empty where the system does not report it."""
    return [memory for memory in map(_memory, process_tree(pid)) if memory is not None]


def resident_memory(pid: int) -> dict[str, int] | None:
    """Return resident bytes of a process and its descendants together: `peak` (the sum of their peaks), and now `kv`
    (KV cache), `anonymous` (without it) and `file` (a page that several share counts for each).

    None where the system does not report them.
    """
    found = memory_by_process(pid)
    if not found:
        return None
    first, *others = found
    sizes = asdict(sum(others, first))
    del sizes["proportional"]
    return sizes


def _memory(pid: int) -> Memory | None:
    """Return the memory of one process, None if the system does not report it or it has ended."""
    process = Path(f"/proc/{pid}")
    try:
        status = process.joinpath("status").read_text(encoding="ascii")
        smaps = process.joinpath("smaps").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    kv = kv_cache_bytes(smaps)
    return Memory(
        peak=_kib(status, "VmHWM") * KIB,
        anonymous=max(0, _kib(status, "RssAnon") * KIB - kv),
        file=_kib(status, "RssFile") * KIB,
        kv=kv,
        proportional=sum(int(size) for size in re.findall(r"^Pss: +(\d+) kB", smaps, re.MULTILINE)) * KIB,
    )


def kv_cache_bytes(smaps: str) -> int:
    """Return the resident bytes of the KV cache, from the text of /proc/PID/smaps; 0 on a kernel without huge pages.

    It is the only memory for which a server requests huge pages ("hg" in proc(5)), except large numpy arrays, which a
    server does not keep; the heap stays marked where one was.
    """
    mappings = re.split(r"^(?=[0-9a-f]+-[0-9a-f]+ )", smaps, flags=re.MULTILINE)
    huge = [each for each in mappings if re.search(r"^VmFlags:.* hg\b", each, re.MULTILINE) and not _is_named(each)]
    return sum(_kib(each, "Rss") for each in huge) * KIB


def _is_named(mapping: str) -> bool:
    """Return whether a mapping is of a file or the heap: its first line has a sixth field."""
    return len(mapping.partition("\n")[0].split()) > 5


def _kib(text: str, field: str) -> int:
    found = re.search(rf"^{field}:\s+(\d+) kB", text, re.MULTILINE)
    return int(found[1]) if found else 0
