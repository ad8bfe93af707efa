"""`pytest -p tests.avx2`: kernels are compiled as for a processor with AVX2 and without AVX-512, whatever this one has.

Only in the processes of the tests: engines that they start have this machine's own forms, with the same bits.
"""

from __future__ import annotations

import llvmlite.binding as llvm

NEWER = ("avx10", "avx512", "avxifma", "avxneconvert", "avxvnni", "amx", "evex512")
"""How the names begin of LLVM's features of processors that have more."""
_real_features = llvm.get_host_cpu_features


def _features() -> dict[str, bool]:
    return {name: has and not name.startswith(NEWER) for name, has in dict(_real_features()).items()}


llvm.get_host_cpu_features = _features


def pytest_report_header() -> str:
    from onward.kernels.targets import host

    return f"kernels for {host().isa.name}"
