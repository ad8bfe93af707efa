"""Kernels of tests: written, compiled for any form and called, without a cache on disk."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

from numpy.typing import NDArray

from onward.kernels.code import Functions
from onward.kernels.compiler import compile_object
from onward.kernels.function import Function, Module
from onward.kernels.isa import Isa
from onward.kernels.targets import Target, host
from onward.kernels.values import I64, PTR, Type, Value, element, is_float, lanes
from tests.kernels.emulated import linked

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
