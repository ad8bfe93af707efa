"""The memory and processors that the machine, a container or a service leaves for a model."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from onward.machine import AvailableMemory, available_memory, compute_threads, cpu_quota

GIB = 1 << 30


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A root with 8 GiB free and no control groups."""
    write(tmp_path / "proc/meminfo", f"MemTotal: 16000000 kB\nMemAvailable: {8 * GIB // 1024} kB\n")
    return tmp_path


def write(path: Path, content: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content, encoding="utf-8")


def limit(folder: Path, maximum: int | str, current: int, inactive_file: int = 0, name: str = "memory.max") -> None:
    """A version 2 control group."""
    write(folder / name, f"{maximum}\n")
    write(folder / "memory.current", f"{current}\n")
    write(folder / "memory.stat", f"anon 1\ninactive_file {inactive_file}\nactive_file 7\n")


def test_without_control_groups_the_machines_free_memory_counts(root: Path) -> None:
    assert available_memory(root) == AvailableMemory(8 * GIB, None)


def test_a_containers_limit_counts_where_it_leaves_less(root: Path) -> None:
    limit(root / "sys/fs/cgroup", 4 * GIB, 3 * GIB, inactive_file=GIB)
    assert available_memory(root) == AvailableMemory(2 * GIB, 4 * GIB)


def test_a_limit_that_leaves_more_than_is_free_does_not_count(root: Path) -> None:
    limit(root / "sys/fs/cgroup", 64 * GIB, GIB)
    assert available_memory(root) == AvailableMemory(8 * GIB, None)


def test_a_group_beyond_its_limit_leaves_nothing(root: Path) -> None:
    limit(root / "sys/fs/cgroup", GIB, 2 * GIB)
    assert available_memory(root) == AvailableMemory(0, GIB)


def test_a_control_group_without_a_limit_changes_nothing(root: Path) -> None:
    limit(root / "sys/fs/cgroup", "max", GIB)
    assert available_memory(root).free_bytes == 8 * GIB


def test_a_services_own_group_and_those_around_it_count(root: Path) -> None:
    """systemd sets MemoryMax on the service's control group, or on its slice."""
    groups = root / "sys/fs/cgroup"
    write(root / "proc/self/cgroup", "0::/system.slice/onward.service\n")
    limit(groups / "system.slice/onward.service", 3 * GIB, GIB)
    assert available_memory(root) == AvailableMemory(2 * GIB, 3 * GIB)
    limit(groups / "system.slice", 5 * GIB, 4 * GIB)
    assert available_memory(root) == AvailableMemory(GIB, 5 * GIB)


def test_the_limit_beyond_which_a_group_is_slowed_down_counts_too(root: Path) -> None:
    limit(root / "sys/fs/cgroup", 2 * GIB, GIB, name="memory.high")
    assert available_memory(root) == AvailableMemory(GIB, 2 * GIB)


@pytest.mark.parametrize("path", ["/docker/0123abcd", "/../../other.scope"])
def test_a_path_that_leads_nowhere_in_a_container_means_the_mounted_group(root: Path, path: str) -> None:
    write(root / "proc/self/cgroup", f"0::{path}\n")
    limit(root / "sys/fs/cgroup", 2 * GIB, GIB)
    assert available_memory(root) == AvailableMemory(GIB, 2 * GIB)


def write_version_1(folder: Path, maximum: int, usage: int, inactive_file: int = 0) -> None:
    write(folder / "memory.limit_in_bytes", str(maximum))
    write(folder / "memory.usage_in_bytes", str(usage))
    write(folder / "memory.stat", f"inactive_file 5\ntotal_inactive_file {inactive_file}\n")


def test_version_1_limits_count(root: Path) -> None:
    groups = root / "sys/fs/cgroup/memory"
    write_version_1(groups, 2 * GIB, GIB + GIB // 2, inactive_file=GIB // 2)
    assert available_memory(root) == AvailableMemory(GIB, 2 * GIB)
    write(root / "proc/self/cgroup", "4:cpu,cpuacct:/a\n3:memory:/pods/one\n0::/\n")
    write_version_1(groups / "pods/one", GIB, GIB // 2)
    assert available_memory(root) == AvailableMemory(GIB // 2, GIB)


def test_version_1_groups_without_a_limit_change_nothing(root: Path) -> None:
    write_version_1(root / "sys/fs/cgroup/memory", 9223372036854771712, GIB)
    assert available_memory(root) == AvailableMemory(8 * GIB, None)


def test_this_machine_has_free_memory() -> None:
    found = available_memory()
    assert found.free_bytes > 0
    assert found.limit_bytes is None or found.limit_bytes >= found.free_bytes


@pytest.mark.parametrize(
    ("content", "cpus"),
    [("max 100000", None), ("250000 100000", 2), ("50000 100000", 1), ("6400000 100000", None)],
)
def test_a_cpu_quota_below_the_core_count_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: str, cpus: int | None
) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 16)
    write(tmp_path / "sys/fs/cgroup/cpu.max", content)
    assert cpu_quota(tmp_path) == cpus


def test_the_tightest_cpu_quota_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 16)
    write(tmp_path / "proc/self/cgroup", "0::/system.slice/onward.service\n")
    write(tmp_path / "sys/fs/cgroup/system.slice/onward.service/cpu.max", "800000 100000")
    write(tmp_path / "sys/fs/cgroup/system.slice/cpu.max", "300000 100000")
    assert cpu_quota(tmp_path) == 3


def test_version_1_quotas_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 16)
    write(tmp_path / "sys/fs/cgroup/cpu/cpu.cfs_quota_us", "300000\n")
    write(tmp_path / "sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000\n")
    assert cpu_quota(tmp_path) == 3
    write(tmp_path / "sys/fs/cgroup/cpu/cpu.cfs_quota_us", "-1\n")
    assert cpu_quota(tmp_path) is None


def test_without_control_groups_there_is_no_quota(tmp_path: Path) -> None:
    assert cpu_quota(tmp_path) is None


def with_cores(root: Path, monkeypatch: pytest.MonkeyPatch, siblings: list[str], usable: set[int]) -> None:
    """Processors with these names of their cores, of which the process may use some."""
    for cpu, names in enumerate(siblings):
        write(root / f"sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list", f"{names}\n")
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: usable, raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: len(siblings))


def test_a_thread_computes_per_core_that_may_be_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with_cores(tmp_path, monkeypatch, ["0,4", "1,5", "2,6", "3,7"] * 2, set(range(8)))
    assert compute_threads(tmp_path) == 4
    with_cores(tmp_path, monkeypatch, ["0,4", "1,5", "2,6", "3,7"] * 2, {1, 5, 6})
    assert compute_threads(tmp_path) == 2


def test_a_quota_bounds_the_threads_that_compute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with_cores(tmp_path, monkeypatch, ["0", "1", "2", "3"], {0, 1, 2, 3})
    write(tmp_path / "sys/fs/cgroup/cpu.max", "200000 100000\n")
    assert compute_threads(tmp_path) == 2


def test_where_cores_have_no_names_each_processor_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1, 2}, raising=False)
    assert compute_threads(tmp_path) == 3
