"""Processors that kernels are compiled for: this one, and others by name, for tests and for objects that ship."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

import llvmlite.binding as llvm

from onward.kernels.isa import Avx2, Avx512Vnni, AvxVnni, Isa, NeonDot, NeonI8mm, best_isa, emulated


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
    """Return this machine's processor."""
    features = host_features()
    triple = llvm.get_process_triple()
    architecture = Target(triple, "", "", Isa()).architecture
    return Target(triple, llvm.get_host_cpu_name(), features_text(features), best_isa(architecture, features))


@cache
def host_features() -> Mapping[str, bool]:
    """Return which of LLVM's features this processor has; none where LLVM cannot find out."""
    try:
        return dict(llvm.get_host_cpu_features())
    except RuntimeError:
        return {}


def features_text(features: Mapping[str, bool]) -> str:
    """Return features as LLVM takes them, in the order of their names."""
    return ",".join(f"{'+' if has else '-'}{name}" for name, has in sorted(features.items()))


_X86, _ARM = "x86_64-unknown-linux-gnu", "aarch64-unknown-linux-gnu"
_HASWELL = frozenset({"avx2", "fma", "f16c", "bmi2", "lzcnt", "movbe"})
_ALDERLAKE = _HASWELL | {"avxvnni", "gfni", "vaes", "sha"}
_ICELAKE = _HASWELL | {
    "avx512vnni",
    "avx512bw",
    "avx512vl",
    "avx512dq",
    "avx512vbmi2",
    "avx512bitalg",
    "gfni",
    "vaes",
    "sha",
}

FORMS: Mapping[str, Target] = {
    "sse2": Target(_X86, "x86-64", "", Isa(("f16", "fma", "rint"))),
    "nehalem": Target(_X86, "nehalem", "", Isa(("f16", "fma")), frozenset({"sse4.2", "popcnt"})),
    "avx": Target(_X86, "sandybridge", "", Isa(("f16", "fma")), frozenset({"avx", "popcnt", "pclmul"})),
    "f16c": Target(_X86, "ivybridge", "", Isa(("fma",)), frozenset({"avx", "f16c", "popcnt", "pclmul"})),
    "avx2-portable": Target(_X86, "haswell", "", Isa(), _HASWELL),
    "avx2": Target(_X86, "haswell", "", Avx2((), "avx2"), _HASWELL),
    "avx-vnni-emulated": Target(_X86, "haswell", "", emulated(AvxVnni((), "avx-vnni")), _HASWELL),
    "avx-vnni": Target(_X86, "alderlake", "", AvxVnni((), "avx-vnni"), _ALDERLAKE),
    "avx512-vnni-emulated": Target(_X86, "haswell", "", emulated(Avx512Vnni((), "avx512-vnni")), _HASWELL),
    "avx512-vnni": Target(_X86, "icelake-server", "", Avx512Vnni((), "avx512-vnni"), _ICELAKE),
    "neon": Target(_ARM, "generic", "", Isa()),
    "neon-dot": Target(_ARM, "neoverse-n1", "", NeonDot((), "neon-dot"), frozenset({"dotprod"})),
    "neon-i8mm": Target(_ARM, "neoverse-n1", "+i8mm", NeonI8mm((), "neon-i8mm"), frozenset({"dotprod", "i8mm"})),
}
"""Every form of the kernels, by name. Those whose name ends in "emulated" make another form's choices with portable
operations."""


def runnable_forms() -> dict[str, Target]:
    """Return the entries of FORMS that this processor can execute."""
    features, architecture = host_features(), host().architecture
    return {name: target for name, target in FORMS.items() if target.runs_on(architecture, features)}
