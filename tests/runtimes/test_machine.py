"""What the machine, or the container, leaves for a model: memory and processors."""

from __future__ import annotations

from pathlib import Path

import pytest

from onward.runtimes.openvino import cpus
from onward.runtimes.openvino.cpus import quota_threads
from onward.runtimes.openvino.memory import available_memory

GIB = 1 << 30


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A root with 8 GiB free and no container limits."""
    write(tmp_path / "proc/meminfo", f"MemTotal: 16000000 kB\nMemAvailable: {8 * GIB // 1024} kB\n")
    return tmp_path


def write(path: Path, content: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content)


def test_without_a_container_the_machines_free_memory_counts(root: Path) -> None:
    assert available_memory(root) == 8 * GIB


def test_a_containers_limit_counts_when_it_leaves_less(root: Path) -> None:
    groups = root / "sys/fs/cgroup"
    write(groups / "memory.max", str(4 * GIB))
    write(groups / "memory.current", str(3 * GIB))
    write(groups / "memory.stat", f"anon 1\ninactive_file {GIB}\n")
    assert available_memory(root) == 2 * GIB


def test_a_container_without_a_limit_changes_nothing(root: Path) -> None:
    write(root / "sys/fs/cgroup/memory.max", "max")
    assert available_memory(root) == 8 * GIB


def test_version_one_limits_are_read_too(root: Path) -> None:
    groups = root / "sys/fs/cgroup/memory"
    write(groups / "memory.limit_in_bytes", str(2 * GIB))
    write(groups / "memory.usage_in_bytes", str(GIB))
    write(groups / "memory.stat", "total_inactive_file 0\n")
    assert available_memory(root) == GIB


def test_this_machine_has_memory_free() -> None:
    assert available_memory() > 0


@pytest.mark.parametrize(
    ("content", "threads"),
    [("max 100000", 0), ("250000 100000", 2), ("50000 100000", 1), ("6400000 100000", 0)],
)
def test_a_cpu_quota_below_the_core_count_limits_the_threads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: str, threads: int
) -> None:
    monkeypatch.setattr(cpus.os, "cpu_count", lambda: 16)
    write(tmp_path / "sys/fs/cgroup/cpu.max", content)
    assert quota_threads(tmp_path) == threads


def test_version_one_quotas_are_read_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpus.os, "cpu_count", lambda: 16)
    write(tmp_path / "sys/fs/cgroup/cpu/cpu.cfs_quota_us", "300000\n")
    write(tmp_path / "sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000\n")
    assert quota_threads(tmp_path) == 3


def test_no_control_groups_mean_no_quota(tmp_path: Path) -> None:
    assert quota_threads(tmp_path) == 0
