"""Percentiles, the machine's description, and the JSON envelope that every benchmark writes."""

from __future__ import annotations

import json
import os
import platform
import statistics
import sys
import time
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

BUSY_LOAD = 0.5
"""One-minute load average above which figures are doubtful."""


def percentile(values: Sequence[float], percent: float) -> float | None:
    """The value below which `percent` per cent of `values` lie, interpolated; None when there are none."""
    if not values:
        return None
    ordered = sorted(values)
    place = (len(ordered) - 1) * percent / 100
    low = int(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


def spread(values: Sequence[float], scale: float = 1.0) -> dict[str, float | None]:
    """p50, p95, p99 and mean of `values`, each times `scale`."""
    found = {f"p{percent}": percentile(values, percent) for percent in (50, 95, 99)}
    found["mean"] = statistics.fmean(values) if values else None
    return {name: None if value is None else value * scale for name, value in found.items()}


def median_of(values: Sequence[float]) -> dict[str, float]:
    """Median, least, greatest and count of rounds."""
    return {
        "median": statistics.median(values),
        "least": min(values),
        "greatest": max(values),
        "rounds": len(values),
    }


def warming(size: int) -> int:
    """Size of the round before those that count, which warms up."""
    return max(1, size // 3)


def machine() -> dict[str, Any]:
    """What figures depend on beside the code. `load` is the one-minute load average now, None where unknown."""
    return {
        "cpu": cpu_name(),
        "cores": os.cpu_count(),
        "memory_gib": round(_memory_bytes() / 2**30, 1),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "openvino": metadata.version("openvino"),
        "load": round(os.getloadavg()[0], 2) if hasattr(os, "getloadavg") else None,
        "date": time.strftime("%Y-%m-%d"),
    }


def cpu_name() -> str:
    """The processor's name, as far as the system tells it."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor() or "unknown"
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else "unknown"


def begin() -> dict[str, Any]:
    """Before the first measurement: warn when the machine is busy, and describe it for `write_report`."""
    warn_if_busy()
    return machine()


def warn_if_busy() -> None:
    """Say on stderr when other programs compute: figures from a busy machine are for nobody."""
    if hasattr(os, "getloadavg") and os.getloadavg()[0] > BUSY_LOAD:
        print(f"warning: the load average is {os.getloadavg()[0]:.1f}: these are no figures", file=sys.stderr)


def command_line(module: str, arguments: Sequence[str]) -> str:
    """The command as a reader would repeat it."""
    return " ".join(["python", "-m", f"benchmarks.{module}", *arguments])


def write_report(path: Path | None, module: str, figures: dict[str, Any], at_start: dict[str, Any]) -> None:
    """Write command, machine (as it was `at_start`) and figures to `path`; nothing without one."""
    if path is None:
        return
    report = {"command": command_line(module, sys.argv[1:]), "machine": at_start, "figures": figures}
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")


def _memory_bytes() -> int:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return 0
