"""Percentiles, the machine's description, and the JSON envelope that every benchmark writes."""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any, NoReturn

MAX_QUIET_LOAD = 0.5
"""One-minute load average above which figures are not reliable."""


class BenchmarkError(RuntimeError):
    """A run cannot be measured; the message says why."""


Report = Callable[[dict[str, Any]], None]
"""Writes figures to the file of `--json`, if there is one: at the end of a benchmark, or also before, as far as they
are known."""


def parser(module: str, description: str | None) -> argparse.ArgumentParser:
    """Return the parser of `python -m benchmarks.MODULE`, with `--json`. For `run`."""
    made = argparse.ArgumentParser(prog=f"python -m benchmarks.{module}", description=description)
    made.add_argument("--json", type=Path, help="write the figures here")
    return made


def run(parser: argparse.ArgumentParser, main: Callable[[argparse.Namespace, Report], int | None]) -> NoReturn:
    """Parse the command line, measure, and exit with the status of `main` (None: 0), as `run_main`. What `main` reports
    is written with the command and the machine as it was at the start; a busy one is warned of."""
    options = parser.parse_args()
    warn_if_busy()
    header = {"command": " ".join([parser.prog, *sys.argv[1:]]), "machine": machine()}

    def report(figures: dict[str, Any]) -> None:
        if options.json is not None:
            options.json.parent.mkdir(parents=True, exist_ok=True)
            options.json.write_text(json.dumps({**header, "figures": figures}, indent=2) + "\n", encoding="utf-8")

    run_main(lambda: main(options, report))


def run_main(main: Callable[[], int | None]) -> NoReturn:
    """Exit with the status of `main`; for a BenchmarkError, print its message and exit with status 1."""
    try:
        sys.exit(main())
    except BenchmarkError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(1)


def percentile(values: Sequence[float], percent: float) -> float | None:
    """Return the value below which `percent` per cent of `values` are, interpolated; None if there are no values."""
    if not values:
        return None
    ordered = sorted(values)
    position = (len(ordered) - 1) * percent / 100
    low = int(position)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (position - low)


def spread(values: Sequence[float], scale: float = 1.0) -> dict[str, float | None]:
    """Return p50, p95, p99 and mean of `values`, each multiplied by `scale`."""
    found = {f"p{percent}": percentile(values, percent) for percent in (50, 95, 99)}
    found["mean"] = statistics.fmean(values) if values else None
    return {name: None if value is None else value * scale for name, value in found.items()}


def median_of(values: Sequence[float]) -> dict[str, float]:
    """Return median, least, greatest and number of rounds. Raises StatisticsError without values."""
    return {
        "median": statistics.median(values),
        "least": min(values),
        "greatest": max(values),
        "rounds": len(values),
    }


def interval(groups: Sequence[Sequence[float]], draws: int = 2000) -> tuple[float, float]:
    """Return a 95 % bootstrap interval of the median of all values. Groups are resampled first, then the values in
    them, because values of one group are correlated."""
    rng = random.Random(0)
    medians = sorted(
        statistics.median(
            value for group in rng.choices(groups, k=len(groups)) for value in rng.choices(group, k=len(group))
        )
        for _ in range(draws)
    )
    return medians[round(0.025 * (draws - 1))], medians[round(0.975 * (draws - 1))]


def warmup_size(size: int) -> int:
    """Return the size of the warm-up round before measured rounds of `size`."""
    return max(1, size // 3)


def machine() -> dict[str, Any]:
    """Describe the machine that figures depend on. `load` is the current one-minute load average, None where
    unknown."""
    return {
        "cpu": cpu_name(),
        "cores": os.cpu_count(),
        "memory_gib": round(_memory_bytes() / 2**30, 1),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "llvmlite": metadata.version("llvmlite"),
        "load": round(os.getloadavg()[0], 2) if hasattr(os, "getloadavg") else None,
        "date": time.strftime("%Y-%m-%d"),
    }


def cpu_name() -> str:
    """Return the name of the processor, 'unknown' where the system does not report it."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor() or "unknown"
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else "unknown"


def warn_if_busy() -> None:
    """Warn on stderr if other programs are computing: figures from a busy machine are not reliable."""
    if hasattr(os, "getloadavg") and os.getloadavg()[0] > MAX_QUIET_LOAD:
        print(
            f"warning: the load average is {os.getloadavg()[0]:.1f}; figures from a busy machine are not reliable",
            file=sys.stderr,
        )


def _memory_bytes() -> int:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return 0
