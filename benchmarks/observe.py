"""Read the metrics of a running server."""

from __future__ import annotations

import urllib.request
from collections import defaultdict

KV_USED = "onward_kv_blocks_used"
RUNNING, WAITING = "onward_engine_running", "onward_engine_waiting"
IN_FLIGHT = "onward_requests_in_flight"


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
