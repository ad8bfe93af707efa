"""Kernels of tests: written, compiled for any form and called, without a cache on disk."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from onward.kernels.code import Functions
from onward.kernels.compiler import compile_object
from onward.kernels.function import Function, Module
from onward.kernels.isa import Isa
from onward.kernels.memory import address
from onward.kernels.records import CONTEXT, CONTEXT_WORDS, OWN
from onward.kernels.targets import Target, host
from onward.kernels.values import I64, PTR, Type, Value, element, is_float, lanes
from tests.kernels.emulated import executable_forms, linked

Writer = Callable[[Module, Isa], None]
Expression = Callable[..., Value]


def compiled(write: Writer, target: Target | None = None) -> Functions:
    """Return the code of the module that `write` fills, for a target that runs or is emulated here."""
    chosen = target or host()
    module = Module("test", chosen.isa.soft)
    write(module, chosen.isa)
    return linked([compile_object(module.text(), chosen)], chosen)


def elementwise(module: Module, name: str, types: list[Type], returns: Type, body: Expression) -> None:
    """Write a function (inputs…, output, count) that applies `body` (f, values…) to whole vectors of arrays."""
    f = Function(module, name, [PTR] * (len(types) + 1) + [I64], exported=True)
    *inputs, output, count = f.args
    with f.loop(0, count // lanes(returns)) as i:
        values = [f.load(array, t, i * size_of(t)) for array, t in zip(inputs, types, strict=True)]
        f.store(body(f, *values), output, i * size_of(returns))
    f.ret()


def operation(emit: Callable[[Module], Any], form: str) -> Functions:
    """Return the code of one operation of tapes, for a form of `executable_forms`, "host" for this machine's."""

    def write(module: Module, isa: Isa) -> None:
        found = emit(module)
        f = Function(module, "operation", [PTR, PTR, I64, PTR], exported=True)
        f.call(found, f.args)
        f.ret()

    return compiled(write, executable_forms().get(form))


def run_operation(code: Functions, record: NDArray[np.int64], rows: int, scratch: int = 0, **shared: int) -> None:
    """Compute the rows of a step, on one thread. `scratch`: numbers of its memory; `shared`: fields of the context."""
    memory, own, counter = np.zeros(scratch + 64, np.float32), np.zeros(8, np.int64), np.zeros(8, np.int64)
    context = np.zeros(CONTEXT_WORDS, np.int64)
    CONTEXT.set(context, rows=rows, threads=1, scratch=memory, scratch_stride=memory.nbytes, **shared)
    OWN.set(own, counter=counter, step=0, total=0, is_last=0)
    pointer, integer = ctypes.c_void_p, ctypes.c_int64
    function = code.function("operation", [pointer, pointer, integer, pointer])
    function(address(record), address(context), 0, address(own))


def size_of(t: Type) -> int:
    """Return the bytes of a type."""
    scalar = element(t)
    bits = {"half": 16, "float": 32, "double": 64}[str(scalar)] if is_float(t) else scalar.width
    return int(bits) // 8 * max(1, lanes(t))


def apply(code: Functions, name: str, output: NDArray[Any], *inputs: NDArray[Any]) -> NDArray[Any]:
    """Call an `elementwise` function; fill and return `output`."""
    function = code.function(name, [ctypes.c_void_p] * (len(inputs) + 1) + [ctypes.c_int64])
    function(*(array.ctypes.data for array in inputs), output.ctypes.data, output.size)
    return output
