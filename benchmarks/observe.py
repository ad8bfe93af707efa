"""What a running server tells while it is measured: its metrics, and the processor time the system counts for it."""

from __future__ import annotations

import os
import urllib.request
from collections import defaultdict
from pathlib import Path

KV_USED = "onward_kv_blocks_used"
RUNNING, WAITING = "onward_engine_running", "onward_engine_waiting"
IN_FLIGHT = "onward_requests_in_flight"


def cpu_seconds(pid: int) -> float | None:
    """Processor time of all threads of a process since its start; None where the system does not tell."""
    try:
        content = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8")
    except OSError:
        return None
    fields = content.rpartition(")")[2].split()  # the name before it may hold spaces
    user, system = int(fields[11]), int(fields[12])
    return (user + system) / os.sysconf("SC_CLK_TCK")


def scrape(base_url: str) -> dict[str, float]:
    """Each metric of the server, summed over its labels. Blocks; raises OSError."""
    url = base_url.rstrip("/").removesuffix("/v1") + "/metrics"
    with urllib.request.urlopen(url, timeout=30) as answer:
        return parse_metrics(answer.read().decode())


def parse_metrics(text: str) -> dict[str, float]:
    """The values of an exposition in Prometheus' text format, summed over labels."""
    values: defaultdict[str, float] = defaultdict(float)
    for line in text.splitlines():
        if line and not line.startswith("#"):
            name, _, value = line.rpartition(" ")
            values[name.partition("{")[0]] += float(value)
    return dict(values)


def left_behind(metrics: dict[str, float]) -> dict[str, float]:
    """What should be nothing when no request runs, and is not. The scrape itself counts as one in flight."""
    held = {name: metrics[name] for name in (KV_USED, RUNNING, WAITING)}
    held[IN_FLIGHT] = metrics[IN_FLIGHT] - 1
    return {name: value for name, value in held.items() if value}
