"""Machines with ARM processors, which QEMU emulates: tests that run there have the golden hashes of all other
processors, with threads that wait for each other as on Linux."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.arm import MACHINES, ROOT, Unavailable, install, installed_at, python_of, qemu

pytestmark = pytest.mark.slow

FILES = (
    "tests/kernels/test_self_test.py",
    "tests/sampling/test_sampler_bits.py",
    "tests/laws/test_golden.py",
    "tests/runtimes/native/test_model.py",
)
EVERYWHERE = "this_machine_passes or this_processor_samples or late and llama"
CHOSEN = {
    "Raspberry Pi 4": f"{EVERYWHERE} or logits_have and fast and (gemma or qwen35)",
    "Graviton 2": f"{EVERYWHERE} or logits_have and (lfm2 or deepseek2) or every_type and fast and K",
    "Graviton 3": f"{EVERYWHERE} or logits_have and (gpt-oss or falcon) or fast and (every_type or same_seed_samples)"
    " or threads and llama-3",
}
"""Of each machine's tests, in pytest's words. The newest one's products have instructions of their own for all types of
weights with integers."""
ALL = "test_golden and not every_form or this_machine_passes or this_processor or number_of_threads or late"
CASES = [pytest.param(name, chosen, id=name) for name, chosen in CHOSEN.items()]
CASES += [pytest.param(name, ALL, id=f"{name}, all", marks=pytest.mark.companion) for name in MACHINES]


@pytest.fixture(scope="module")
def folder() -> Path:
    try:
        qemu()
        install(installed_at())
    except Unavailable as reason:
        pytest.skip(f"NO MACHINE WITH ARM: {reason}")
    return installed_at()


@pytest.mark.parametrize(("name", "chosen"), CASES)
def test_a_machine_computes_the_bits_of_every_other(name: str, chosen: str, folder: Path) -> None:
    machine = MACHINES[name]
    options = ["-p", "tests.arm", "-p", "no:cacheprovider", "-m", "slow or not slow", "-k", chosen]
    command = [*python_of(machine, folder), "-m", "pytest", *options, *FILES]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, encoding="utf-8", timeout=3600)
    print(done.stdout)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-1000:]
    assert f"kernels for {machine.isa}\n" in done.stdout
    assert "skipped" not in done.stdout
