"""How many threads a container's CPU quota allows; OpenVINO itself sees only the machine's cores."""

from __future__ import annotations

import os
from pathlib import Path


def quota_threads(root: Path = Path("/")) -> int:
    """Whole CPUs of the control group's quota, at least 1; 0 when there is no quota below the core count."""
    groups = root / "sys/fs/cgroup"
    try:
        quota, period = (groups / "cpu.max").read_text().split()
    except (OSError, ValueError):
        try:
            quota = (groups / "cpu/cpu.cfs_quota_us").read_text()
            period = (groups / "cpu/cpu.cfs_period_us").read_text()
        except OSError:
            return 0
    try:
        cpus = int(quota) / int(period)
    except ValueError:  # "max"
        return 0
    return max(1, int(cpus)) if 0 < cpus < (os.cpu_count() or 1) else 0
