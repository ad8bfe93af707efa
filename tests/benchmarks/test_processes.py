"""Processor time and memory of a server are those of all its processes."""

from __future__ import annotations

import subprocess
import sys

import pytest
from benchmarks.processes import cpu_seconds, memory_by_process, process_tree, resident_memory

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="Linux only")

PARENT = f"""\
import subprocess, sys
child = subprocess.Popen([{sys.executable!r}, "-c", CHILD], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
child.stdout.readline()
print(child.pid, flush=True)
sys.stdin.read()
child.stdin.close()
child.wait()
"""
CHILD = """\
import sys, time
memory = bytearray(b"x" * 50_000_000)
while time.process_time() < 0.1:
    pass
print(flush=True)
sys.stdin.read()
"""


def test_memory_and_processor_time_include_those_of_children() -> None:
    program = f"CHILD = {CHILD!r}\n{PARENT}"
    parent = subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert parent.stdin is not None and parent.stdout is not None
    try:
        child = int(parent.stdout.readline())
        assert process_tree(parent.pid) == [parent.pid, child]
        own, other = memory_by_process(parent.pid)
        both = resident_memory(parent.pid)
        assert other.anonymous >= 50_000_000 > own.anonymous
        assert both is not None and both["anonymous"] >= 50_000_000 + own.anonymous // 2
        assert (cpu_seconds(parent.pid) or 0.0) >= 0.08
        assert 0 < other.proportional <= other.resident <= other.peak
    finally:
        parent.stdin.close()
        parent.stdout.close()
        parent.wait(30)


def test_a_process_that_has_ended_has_no_memory() -> None:
    process = subprocess.Popen([sys.executable, "-c", "pass"])
    process.wait(30)
    assert process_tree(process.pid) == [process.pid]
    assert resident_memory(process.pid) is None and cpu_seconds(process.pid) is None
