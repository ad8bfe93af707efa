"""Observe a running server: its metrics, and the processor time that the system reports for it."""

from __future__ import annotations

import os
import urllib.request
from collections import defaultdict
from pathlib import Path

KV_USED = "onward_kv_blocks_used"
RUNNING, WAITING = "onward_engine_running", "onward_engine_waiting"
IN_FLIGHT = "onward_requests_in_flight"


def cpu_seconds(pid: int) -> float | None:
    """Return the processor time of all threads of a process since its start; None where the system does not report
    it."""
    try:
        content = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8")
    except OSError:
        return None
    fields = content.rpartition(")")[2].split()  # the name before it may contain spaces
    user, system = int(fields[11]), int(fields[12])
    return (user + system) / os.sysconf("SC_CLK_TCK")


def scrape(base_url: str) -> dict[str, float]:
    """Return each metric of the server, summed over its labels. Blocks. Raises OSError."""
    url = base_url.rstrip("/").removesuffix("/v1") + "/metrics"
    with urllib.request.urlopen(url, timeout=30) as response:
        return parse_metrics(response.read().decode())


def parse_metrics(text: str) -> dict[str, float]:
    """Parse Prometheus' text format; return values summed over labels."""
    values: defaultdict[str, float] = defaultdict(float)
    for line in text.splitlines():
        if line and not line.startswith("#"):
            name, _, value = line.rpartition(" ")
            values[name.partition("{")[0]] += float(value)
    return dict(values)


def left_behind(metrics: dict[str, float]) -> dict[str, float]:
    """Return the metrics that should be 0 when no request runs, and are not. The scrape itself is one in flight."""
    held = {name: metrics[name] for name in (KV_USED, RUNNING, WAITING)}
    held[IN_FLIGHT] = metrics[IN_FLIGHT] - 1
    return {name: value for name, value in held.items() if value}
