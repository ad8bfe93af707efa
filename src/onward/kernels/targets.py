"""Processors that kernels are compiled for: this one, and others by name, for tests and for objects that ship."""

from __future__ import annotations

import ctypes
import platform
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

import llvmlite.binding as llvm

from onward.kernels.isa import Avx2, Avx512Vnni, AvxVnni, Isa, NeonDot, NeonI8mm, ZenVnni, best_isa, emulated


@dataclass(frozen=True)
class Target:
    """A processor: LLVM's triple, name and features of it, and the form of operations it runs.

    `needs`: LLVM's names of the features without which code for it crashes.
    """

    triple: str
    cpu: str
    features: str
    isa: Isa
    needs: frozenset[str] = frozenset()

    @property
    def architecture(self) -> str:
        return self.triple.partition("-")[0].replace("arm64", "aarch64").replace("AMD64", "x86_64")

    def runs_on(self, architecture: str, features: Mapping[str, bool]) -> bool:
        """Return whether a processor with these features can execute code for this target."""
        return self.architecture == architecture and all(features.get(name, False) for name in self.needs)


@cache
def host() -> Target:
    """Return this machine's processor: the one of USUAL that stands for it, or else itself."""
    itself = exact_host()
    usual = FORMS[itself.isa.name] if itself.isa.name in USUAL else itself
    return usual if usual.triple == itself.triple and usual.runs_on(itself.architecture, host_features()) else itself


def exact_host() -> Target:
    """Return this machine's processor with LLVM's name of it, and all its features."""
    features, triple = host_features(), llvm.get_process_triple()
    architecture = Target(triple, "", "", Isa()).architecture
    cpu = llvm.get_host_cpu_name()
    return Target(triple, cpu, features_text(features), best_isa(architecture, features, cpu))


@cache
def host_features() -> Mapping[str, bool]:
    """Return which of LLVM's features this processor has; only those that kernels use where LLVM cannot find out."""
    try:
        found = dict(llvm.get_host_cpu_features())
    except RuntimeError:
        found = {}
    return found | _arm_features() if platform.machine() in ("aarch64", "arm64") else found


_HWCAPS = {"dotprod": (16, 20), "i8mm": (26, 13)}
"""The entry of Linux's auxiliary vector that states a feature, and its bit (arch/arm64/include/uapi/asm/hwcap.h)."""
_SYSCTLS = {"dotprod": b"hw.optional.arm.FEAT_DotProd", "i8mm": b"hw.optional.arm.FEAT_I8MM"}
"""The same for macOS."""


def _arm_features() -> dict[str, bool]:
    """Return which of ARM's features that kernels use the system states: LLVM does not look for them."""
    if sys.platform == "linux":
        stated = ctypes.CDLL(None).getauxval
        stated.argtypes, stated.restype = [ctypes.c_ulong], ctypes.c_ulong
        return {name: bool(stated(entry) >> bit & 1) for name, (entry, bit) in _HWCAPS.items()}
    if sys.platform == "darwin":
        return {name: _sysctl(key) == 1 for name, key in _SYSCTLS.items()}
    return {}


def _sysctl(key: bytes) -> int:
    """Return an integer that macOS states, 0 where it states none of this name."""
    value, size = ctypes.c_int(0), ctypes.c_size_t(4)
    ctypes.CDLL(None).sysctlbyname(key, ctypes.byref(value), ctypes.byref(size), None, ctypes.c_size_t(0))
    return value.value


def features_text(features: Mapping[str, bool]) -> str:
    """Return features as LLVM takes them, in the order of their names."""
    return ",".join(f"{'+' if has else '-'}{name}" for name, has in sorted(features.items()))


_X86, _ARM = "x86_64-unknown-linux-gnu", "aarch64-unknown-linux-gnu"
_AVX = frozenset({"avx", "popcnt", "pclmul"})
_LEVEL_3 = frozenset({"avx2", "bmi", "bmi2", "cx16", "f16c", "fma", "lzcnt", "movbe", "popcnt", "sahf", "xsave"})
_LEVEL_4 = _LEVEL_3 | {"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"}
"""Of the x86-64 psABI's levels: what LLVM may use in code for "x86-64-v3" and "x86-64-v4"."""
_NEON_DOT = frozenset({"dotprod", "lse"})

FORMS: Mapping[str, Target] = {
    "sse2": Target(_X86, "x86-64", "", Isa(("f16", "fma", "rint"))),
    "nehalem": Target(_X86, "nehalem", "", Isa(("f16", "fma")), frozenset({"sse4.2", "popcnt"})),
    "avx": Target(_X86, "sandybridge", "", Isa(("f16", "fma")), _AVX),
    "f16c": Target(_X86, "ivybridge", "", Isa(("fma",)), _AVX | {"f16c"}),
    "avx2-portable": Target(_X86, "x86-64-v3", "", Isa(), _LEVEL_3),
    "avx2": Target(_X86, "x86-64-v3", "", Avx2((), "avx2"), _LEVEL_3),
    "avx-vnni-emulated": Target(_X86, "x86-64-v3", "", emulated(AvxVnni((), "avx-vnni")), _LEVEL_3),
    "avx-vnni": Target(_X86, "x86-64-v3", "+avxvnni", AvxVnni((), "avx-vnni"), _LEVEL_3 | {"avxvnni"}),
    "avx512-vnni-emulated": Target(_X86, "x86-64-v3", "", emulated(Avx512Vnni((), "avx512-vnni")), _LEVEL_3),
    "avx512-vnni": Target(_X86, "x86-64-v4", "+avx512vnni", Avx512Vnni((), "avx512-vnni"), _LEVEL_4 | {"avx512vnni"}),
    "avx512-vnni-zen": Target(
        _X86, "x86-64-v4", "+avx512vnni", ZenVnni((), "avx512-vnni-zen"), _LEVEL_4 | {"avx512vnni"}
    ),
    "neon": Target(_ARM, "generic", "", Isa()),
    "neon-dot": Target(_ARM, "generic", "+dotprod,+lse", NeonDot((), "neon-dot"), _NEON_DOT),
    "neon-i8mm": Target(_ARM, "generic", "+dotprod,+i8mm,+lse", NeonI8mm((), "neon-i8mm"), _NEON_DOT | {"i8mm"}),
}
"""Every form of the kernels, by name. Those whose name ends in "emulated" make another form's choices with portable
operations."""

USUAL = ("avx2", "avx-vnni", "avx512-vnni", "avx512-vnni-zen", "neon-dot", "neon-i8mm")
"""The forms of usual processors. On Linux one of them stands for each processor that has its features, so that objects
can be compiled elsewhere. Kernels for exactly one processor were not faster (`benchmarks.products --exact-host`, on a
Xeon with AMX)."""
