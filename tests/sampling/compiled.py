"""Single kernels of the sampler, compiled and called with numpy arrays."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from onward.kernels.define import Kernel
from onward.kernels.function import Module
from onward.kernels.isa import Isa
from onward.kernels.values import F32, F64, I64, PTR
from onward.sampling.sampler import ThreadStep
from tests.kernels.harness import compiled

C_TYPES = {str(F32): ctypes.c_float, str(F64): ctypes.c_double, str(I64): ctypes.c_int64, str(PTR): ctypes.c_void_p}


class Row(ctypes.Structure):
    """A row of logits in the layout rows.ROW."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("logits", "tail", "maxima")),
        *((name, ctypes.c_int64) for name in ("size", "num_blocks")),
        ("maximum", ctypes.c_float),
    )


@cache
def function_of(kernel: Kernel) -> Any:
    def write(module: Module, isa: Isa) -> None:
        kernel.export(module)

    parameters = [C_TYPES[str(t)] for t in kernel.parameters]
    return compiled(write).function(kernel.name, parameters, C_TYPES.get(str(kernel.returns)))


def call(kernel: Kernel, *arguments: Any) -> Any:
    """Call a kernel; arrays are passed by their addresses."""
    return function_of(kernel)(*(each.ctypes.data if isinstance(each, np.ndarray) else each for each in arguments))


class PreparedRow:
    """A row for kernels, with its maxima, and scratch."""

    def __init__(self, logits: NDArray[np.float32], prepare: Kernel) -> None:
        self.logits = np.ascontiguousarray(logits)
        self.scratch = ThreadStep(logits.size)
        self.scratch.allocate_for_chains()
        step = self.scratch.step
        self._row = Row(self.logits.ctypes.data, step.tail, step.maxima, logits.size, step.num_blocks, 0.0)
        self.address = ctypes.addressof(self._row)
        call(prepare, self.address)

    @property
    def maximum(self) -> float:
        return float(self._row.maximum)


def padded(numbers: Sequence[float] | NDArray[np.float32]) -> NDArray[np.float32]:
    """Return float32 numbers, followed by others that must have no effect."""
    return np.concatenate((np.asarray(numbers, np.float32), np.full(16, 7, np.float32)))
