"""The norms of a tape, operations as those of `operations`: of rows, and of each head's queries, keys or values."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from onward.kernels.function import Module
from onward.kernels.operations import Operation, Writers, blocks_of, claim
from onward.kernels.records import NORM, NORM_HEADS
from onward.kernels.values import F32, F32X16, I32, LANES, VECTOR_BYTES, Value, vec
from onward.kernels.weight_types import GROUP


def emit_norm(module: Module, writers: Writers) -> Any:
    """Norms of rows: root mean square, or layer norms."""
    op = Operation(module, "norm")
    f = op.f
    blocks, normal = blocks_of(op.field(NORM, "inputs")), op.scratch()
    with op.rows() as row:
        source = f.at(op.field(NORM, "source"), row * op.field(NORM, "source_stride"))
        target = f.at(op.field(NORM, "target"), row * op.field(NORM, "target_stride"))
        _Norm(op, source, blocks).write(normal)
        with f.otherwise(op.field(NORM, "is_added").ne(0)) as (added, alone):
            with added, f.loop(0, blocks * (4 * GROUP), VECTOR_BYTES) as at:
                value = f.load(normal, F32X16, at) * f.splat(op.field(NORM, "scale"), LANES)
                total = (f.load(target, F32X16, at) + value) * f.splat(op.field(NORM, "total_scale"), LANES)
                f.store(total, target, at)
            with alone:
                writers.call(f, op.field(NORM, "form"), normal, target, f.i64(0), blocks)
    return f.ret()


class _Norm:
    """The norm of one row, whose memory is zero from its end up to a multiple of 32."""

    def __init__(self, op: Operation, source: Value, blocks: Value) -> None:
        self.op, self.f, self.source = op, op.f, source
        self._bytes = blocks * (4 * GROUP)
        self._inputs = op.field(NORM, "inputs")
        self._lane = self.f.vconst(vec(I32, LANES), range(LANES))
        self._mean = self.f.var(F32X16, 0.0)

    def _sum(self, term: Callable[[Value, Value, Value], Value]) -> Value:
        """Return the sum of a row: two vectors of sums, alternately, then their lanes."""
        f = self.f
        sums = [f.var(F32X16, 0.0) for _ in range(2)]
        with f.loop(0, self._bytes, 4 * GROUP) as first:
            for half, total in enumerate(sums):
                at = first + half * VECTOR_BYTES
                total.set(term(at, f.load(self.source, F32X16, at), total.value))
        return f.hsum(sums[0].value + sums[1].value) / self._inputs.to_f32()

    def _centred(self, at: Value, value: Value) -> Value:
        """Return values without the mean; what is beyond the row's end stays zero."""
        f = self.f
        number = f.splat((at >> 2).trunc(I32), LANES) + self._lane
        is_inside = number < f.splat(self._inputs.trunc(I32), LANES)
        return f.select(is_inside, value - self._mean.value, f.const(F32X16, 0.0))

    def write(self, target: Value) -> None:
        """Write the norm as float32."""
        op, f = self.op, self.f
        with f.when(op.field(NORM, "is_centred").ne(0)):
            self._mean.set(f.splat(self._sum(lambda at, value, total: total + value), LANES))

        def squared(at: Value, value: Value, total: Value) -> Value:
            centred = self._centred(at, value)
            return f.fma(centred, centred, total)

        mean = self._sum(squared)
        inverse = f.splat(f.f32(1.0) / f.sqrt(mean + op.field(NORM, "epsilon")), LANES)
        weight, bias = op.field(NORM, "weight"), op.field(NORM, "bias")
        with f.loop(0, self._bytes, VECTOR_BYTES) as at:
            normal = self._centred(at, f.load(self.source, F32X16, at)) * inverse
            f.store(normal * f.load(weight, F32X16, at), target, at)
        with f.when(bias.is_null().eq(0)), f.loop(0, self._bytes, VECTOR_BYTES) as at:
            f.store(f.load(target, F32X16, at) + f.load(bias, F32X16, at), target, at)


def emit_norm_heads(module: Module, size: int) -> Any:
    """Norms of each head's queries, keys or values, in place."""
    op = Operation(module, f"norm_heads_{size}")
    f = op.f
    lanes = math.gcd(size, LANES)
    t = vec(F32, lanes) if lanes > 1 else F32
    heads = op.field(NORM_HEADS, "num_heads")
    with claim(f, op.counter, op.shared("rows") * heads, heads) as (first, last), f.loop(first, last) as piece:
        row, head = piece // heads, piece % heads
        values = f.at(op.field(NORM_HEADS, "values"), row * op.field(NORM_HEADS, "stride") + head * (4 * size))
        weights = f.at(op.field(NORM_HEADS, "weight"), head * op.field(NORM_HEADS, "weight_stride"))
        middle = f.var(t, 0.0)
        with f.when(op.field(NORM_HEADS, "is_centred").ne(0)):
            summed = f.var(t, 0.0)
            with f.loop(0, 4 * size, 4 * lanes) as at:
                summed.set(summed.value + f.load(values, t, at))
            average = (f.hsum(summed.value) if lanes > 1 else summed.value) / float(size)
            middle.set(f.splat(average, lanes) if lanes > 1 else average)
        total = f.var(t, 0.0)
        with f.loop(0, 4 * size, 4 * lanes) as at:
            value = f.load(values, t, at) - middle.value
            total.set(f.fma(value, value, total.value))
        mean = (f.hsum(total.value) if lanes > 1 else total.value) / float(size)
        inverse = f.f32(1.0) / f.sqrt(mean + op.field(NORM_HEADS, "epsilon"))
        with f.loop(0, 4 * size, 4 * lanes) as at:
            value = f.load(values, t, at) - middle.value
            f.store(value * inverse * f.load(weights, t, at), values, at)
    return f.ret()
