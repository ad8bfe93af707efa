"""Units of feed-forward layers, an operation as those of `operations`: their activations, and what these multiply."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from onward.kernels.activations import broadcast_float
from onward.kernels.function import Function, Module
from onward.kernels.maths import erf, expm1, sigmoid, tanh
from onward.kernels.operations import Operation, Writers, blocks_of
from onward.kernels.records import UNIT
from onward.kernels.values import F32X16, VECTOR_BYTES, Value
from onward.kernels.weight_types import GROUP


def _silu(f: Function, x: Value) -> Value:
    return x * sigmoid(f, x)


def _gelu(f: Function, x: Value) -> Value:
    return x * 0.5 * (erf(f, x * math.sqrt(0.5)) + 1.0)


def _gelu_tanh(f: Function, x: Value) -> Value:
    inner = f.fma(x * x * x, 0.044715, x) * math.sqrt(2 / math.pi)
    return x * 0.5 * (tanh(f, inner) + 1.0)


_LIMIT, _GAIN = 7.0, 1.702


def _clamped_silu(f: Function, x: Value) -> Value:
    """gpt-oss's, which is nearly gelu: up to a limit, beyond which it is the limit's."""
    clamped = f.min(x, _LIMIT)
    return clamped * sigmoid(f, clamped * _GAIN)


def _relu(f: Function, x: Value) -> Value:
    return f.max(x, f.const(F32X16, 0.0))


def _relu_squared(f: Function, x: Value) -> Value:
    positive = f.max(x, f.const(F32X16, 0.0))
    return positive * positive


def _xielu(f: Function, x: Value, numbers: Sequence[Value]) -> Value:
    """xIELU (Huang, arXiv 2411.13010): the integral of an ELU. `numbers`: alpha above 0, alpha below, beta, and how
    close to 0 a negative number may come. It is not 0 at 0: what is beyond the end of a row meets weights that are."""
    above, below, beta, closest = numbers
    linear = x * beta
    positive = f.fma(x * above, x, linear)
    negative = f.fma(expm1(f, f.min(x, closest)) - x, below, linear)
    return f.select(x > 0.0, positive, negative)


_UNITS: dict[str, Callable[[Function, Value], Value]] = {
    "silu": _silu, "gelu": _gelu, "gelu_tanh": _gelu_tanh, "clamped_silu": _clamped_silu, "sigmoid": sigmoid,
    "relu": _relu, "relu_squared": _relu_squared,
}  # fmt: skip
XIELU, XIELU_NUMBERS = "xielu", 4
UNITS = (*_UNITS, XIELU)
"""Names of what units compute, by number in records."""


def emit_unit(module: Module, writers: Writers) -> Any:
    """Units of feed-forward layers: activation(gate) * up, or activation(up). gpt-oss's `up` is clamped, plus 1."""
    op = Operation(module, "unit")
    f = op.f
    pieces, stride = op.field(UNIT, "pieces"), op.field(UNIT, "source_stride")
    blocks, values = blocks_of(op.field(UNIT, "inputs")), op.scratch()
    per_piece = (blocks + pieces - 1) // pieces
    with op.pieces(op.shared("rows") * op.field(UNIT, "copies") * pieces) as piece:
        row = piece // pieces
        first = piece % pieces * per_piece
        last = f.min(first + per_piece, blocks)
        gate, up = (f.at(op.field(UNIT, name), row * stride) for name in ("gate", "up"))
        target = f.at(op.field(UNIT, "target"), row * op.field(UNIT, "target_stride"))
        is_gated = op.field(UNIT, "gate").is_null().eq(0)
        source = f.select(is_gated, gate, up)
        for number, name in enumerate(UNITS):
            with f.when(op.field(UNIT, "activation").eq(number)):
                activation = _activation(f, name, op.field(UNIT, "parameters"))
                with f.loop(first * (4 * GROUP), last * (4 * GROUP), VECTOR_BYTES) as at:
                    factor = f.load(up, F32X16, at)
                    if name == "clamped_silu":
                        factor = f.max(f.min(factor, _LIMIT), -_LIMIT) + 1.0
                    factor = f.select(is_gated, factor, f.const(F32X16, 1.0))
                    f.store(activation(f, f.load(source, F32X16, at)) * factor, values, at)
        writers.call(f, op.field(UNIT, "form"), values, target, first, last)
    return f.ret()


def _activation(f: Function, name: str, parameters: Value) -> Callable[[Function, Value], Value]:
    """Return an activation, with its own numbers if it has some."""
    if name != XIELU:
        return _UNITS[name]
    return partial(_xielu, numbers=[broadcast_float(f, parameters, 4 * index) for index in range(XIELU_NUMBERS)])
