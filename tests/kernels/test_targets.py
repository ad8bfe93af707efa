"""Which target stands for a processor: a usual one where it has all that code for that may use, else itself."""

from __future__ import annotations

from collections.abc import Iterator

import llvmlite.binding as llvm
import pytest

from onward.kernels import targets
from onward.kernels.isa import Isa
from onward.kernels.targets import FORMS, USUAL, host, host_features

LINUX, MACOS, WINDOWS = "x86_64-unknown-linux-gnu", "x86_64-apple-darwin24.1.0", "x86_64-pc-windows-msvc"
LEVEL_3 = "sse4.1 avx avx2 bmi bmi2 cx16 f16c fma lzcnt movbe popcnt sahf xsave"
LEVEL_4 = f"{LEVEL_3} avx512f avx512bw avx512cd avx512dq avx512vl"
CASES = [
    (LINUX, "skylake", LEVEL_3, "avx2", "avx2"),
    (LINUX, "skylake-avx512", LEVEL_4, "avx2", "avx2"),
    (LINUX, "alderlake", f"{LEVEL_3} avxvnni", "avx-vnni", "avx-vnni"),
    (LINUX, "sapphirerapids", f"{LEVEL_4} avx512vnni avxvnni", "avx512-vnni", "avx512-vnni"),
    (LINUX, "generic", f"{LEVEL_4} avx512vnni", "avx512-vnni", "avx512-vnni"),
    (LINUX, "znver5", f"{LEVEL_4} avx512vnni avxvnni", "avx512-vnni-zen", "avx512-vnni-zen"),
    (LINUX, "znver3", LEVEL_3, "avx2", "avx2"),
    (LINUX, "nehalem", "sse4.1 sse4.2 popcnt", "without-f16-fma", ""),
    # hypervisors that hide something
    (LINUX, "haswell", LEVEL_3.replace(" movbe", ""), "avx2", ""),
    (LINUX, "sapphirerapids", f"{LEVEL_4} avx512vnni".replace(" avx512cd", ""), "avx512-vnni", ""),
    (LINUX, "sapphirerapids", f"{LEVEL_4} avx512vnni".replace(" avx512vl", ""), "avx2", "avx2"),
    (LINUX, "sapphirerapids", f"{LEVEL_4} avx512vnni".replace(" avx2", ""), "portable", ""),
    # other systems have other objects
    (MACOS, "haswell", LEVEL_3, "avx2", ""),
    (WINDOWS, "znver5", f"{LEVEL_4} avx512vnni", "avx512-vnni-zen", ""),
    ("x86_64-conda-linux-gnu", "haswell", LEVEL_3, "avx2", ""),
    ("aarch64-unknown-linux-gnu", "neoverse-n1", "neon lse dotprod", "neon-dot", "neon-dot"),
    ("aarch64-unknown-linux-gnu", "neoverse-v1", "neon lse dotprod i8mm", "neon-i8mm", "neon-i8mm"),
    ("aarch64-unknown-linux-gnu", "generic", "neon dotprod", "neon-dot", ""),
    ("aarch64-unknown-linux-gnu", "cortex-a72", "neon", "portable", ""),
    ("arm64-apple-darwin24.1.0", "apple-m2", "neon lse dotprod i8mm", "neon-i8mm", ""),
]


@pytest.fixture(autouse=True)
def _nothing_is_remembered() -> Iterator[None]:
    host.cache_clear()
    host_features.cache_clear()
    yield
    host.cache_clear()
    host_features.cache_clear()


@pytest.mark.parametrize(("triple", "cpu", "features", "isa", "form"), CASES)
def test_a_usual_target_stands_for_processors_that_have_its_features(
    triple: str, cpu: str, features: str, isa: str, form: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    stated = dict.fromkeys(features.split(), True) | {"amx-tile": False}
    monkeypatch.setattr(llvm, "get_process_triple", lambda: triple)
    monkeypatch.setattr(llvm, "get_host_cpu_name", lambda: cpu)
    monkeypatch.setattr(llvm, "get_host_cpu_features", lambda: stated)
    monkeypatch.setattr(targets, "_arm_features", dict)
    found = host()
    assert found.isa.name == isa
    assert (found is FORMS[form]) if form else (found.triple, found.cpu) == (triple, cpu)
    assert form or "-amx-tile" in found.features


def test_a_processor_that_llvm_knows_nothing_of_is_portable(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> None:
        raise RuntimeError

    monkeypatch.setattr(llvm, "get_host_cpu_features", fail)
    monkeypatch.setattr(llvm, "get_process_triple", lambda: "riscv64-unknown-linux-gnu")
    monkeypatch.setattr(targets, "_arm_features", dict)
    assert (host().features, host().isa.name) == ("", Isa().name)


def test_usual_targets_state_what_code_for_them_may_use() -> None:
    """Of x86-64, LLVM's levels; a feature that is not needed could be missing where the code runs."""
    for name in USUAL:
        target = FORMS[name]
        assert {each.removeprefix("+") for each in target.features.split(",") if each} <= target.needs
        assert target.cpu in ("generic", "x86-64-v3", "x86-64-v4") and target.isa.name == name
