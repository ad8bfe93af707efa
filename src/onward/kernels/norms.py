"""The norms of a tape, operations as those of `operations`: of rows, and of each head's queries, keys or values; and
gates as far as they stand out of their row."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from onward.kernels.function import Function, Module
from onward.kernels.operations import Operation, Writers, blocks_of, claim
from onward.kernels.records import NORM, NORM_HEADS, SPARSIFY
from onward.kernels.values import F32, F32X16, I32, LANES, VECTOR_BYTES, Value, vec
from onward.kernels.weight_types import GROUP


def emit_norm(module: Module, writers: Writers) -> Any:
    """Norms of rows: root mean square, or layer norms."""
    op = Operation(module, "norm")
    f = op.f
    inputs, normal = op.field(NORM, "inputs"), op.scratch()
    blocks = blocks_of(inputs)
    with op.rows() as row:
        source = f.at(op.field(NORM, "source"), row * op.field(NORM, "source_stride"))
        target = f.at(op.field(NORM, "target"), row * op.field(NORM, "target_stride"))
        reference = f.at(op.field(NORM, "reference"), row * op.field(NORM, "source_stride"))
        _write_norm(op, _Row(f, source, inputs), reference, normal)
        with f.otherwise(op.field(NORM, "is_added").ne(0)) as (added, alone):
            with added, f.loop(0, blocks * (4 * GROUP), VECTOR_BYTES) as at:
                value = f.load(normal, F32X16, at) * f.splat(op.field(NORM, "scale"), LANES)
                total = (f.load(target, F32X16, at) + value) * f.splat(op.field(NORM, "total_scale"), LANES)
                f.store(total, target, at)
            with alone:
                writers.call(f, op.field(NORM, "form"), normal, target, f.i64(0), blocks)
    return f.ret()


class _Row:
    """One row, whose memory is zero from its end up to a multiple of 32."""

    def __init__(self, f: Function, source: Value, inputs: Value) -> None:
        self.f, self.source, self._inputs = f, source, inputs
        self._bytes = blocks_of(inputs) * (4 * GROUP)
        self._lane = f.vconst(vec(I32, LANES), range(LANES))
        self._mean = f.var(F32X16, 0.0)

    def average(self, term: Callable[[Value, Value, Value], Value]) -> Value:
        """Return the sum of a row over its length: two vectors of sums, alternately, then their lanes."""
        f = self.f
        sums = [f.var(F32X16, 0.0) for _ in range(2)]
        with f.loop(0, self._bytes, 4 * GROUP) as first:
            for half, total in enumerate(sums):
                at = first + half * VECTOR_BYTES
                total.set(term(at, f.load(self.source, F32X16, at), total.value))
        return f.hsum(sums[0].value + sums[1].value) / self._inputs.to_f32()

    def centre(self) -> None:
        """Have what follows without the mean."""
        self._mean.set(self.f.splat(self.average(lambda at, value, total: total + value), LANES))

    def mean_square(self) -> Value:
        f = self.f

        def squared(at: Value, value: Value, total: Value) -> Value:
            centred = self.centred(at, value)
            return f.fma(centred, centred, total)

        return self.average(squared)

    def centred(self, at: Value, value: Value) -> Value:
        """Return values without the mean; what is beyond the row's end stays zero."""
        return self.within(at, value - self._mean.value)

    def within(self, at: Value, value: Value) -> Value:
        """Return values, zero beyond the row's end."""
        f = self.f
        number = f.splat((at >> 2).trunc(I32), LANES) + self._lane
        is_inside = number < f.splat(self._inputs.trunc(I32), LANES)
        return f.select(is_inside, value, f.const(F32X16, 0.0))

    def each(self, use: Callable[[Value], None]) -> None:
        """Emit `use(at)` for each vector."""
        with self.f.loop(0, self._bytes, VECTOR_BYTES) as at:
            use(at)


def _write_norm(op: Operation, row: _Row, reference: Value, target: Value) -> None:
    """Write the norm of a row as float32. `reference`: this row of it."""
    f = op.f
    with f.when(op.field(NORM, "is_centred").ne(0)):
        row.centre()
    mean, epsilon = row.mean_square(), op.field(NORM, "epsilon")
    factor = f.var(F32, f.f32(1.0) / f.sqrt(mean + epsilon))
    with f.when(op.field(NORM, "reference").is_null().eq(0)):
        wanted = _Row(f, reference, op.field(NORM, "inputs")).mean_square()
        factor.set(f.sqrt(wanted) / f.sqrt(f.max(epsilon, mean)))
    inverse = f.splat(factor.value, LANES)
    weight, bias = op.field(NORM, "weight"), op.field(NORM, "bias")

    def write(at: Value) -> None:
        normal = row.centred(at, f.load(row.source, F32X16, at)) * inverse
        f.store(normal * f.load(weight, F32X16, at), target, at)

    row.each(write)
    with f.when(bias.is_null().eq(0)):
        row.each(lambda at: f.store(f.load(target, F32X16, at) + f.load(bias, F32X16, at), target, at))


def emit_sparsify(module: Module) -> Any:
    """Gates as far as they exceed their row's mean by so many standard deviations, in place."""
    op = Operation(module, "sparsify")
    f = op.f
    with op.rows() as index:
        values = f.at(op.field(SPARSIFY, "values"), index * op.field(SPARSIFY, "stride"))
        row = _Row(f, values, op.field(SPARSIFY, "inputs"))
        row.centre()
        cutoff = f.splat(op.field(SPARSIFY, "cutoff") * f.sqrt(row.mean_square()), LANES)
        zero = f.const(F32X16, 0.0)

        def write(at: Value, row: _Row = row, cutoff: Value = cutoff, values: Value = values) -> None:
            excess = row.centred(at, f.load(values, F32X16, at)) - cutoff
            f.store(row.within(at, f.max(zero, excess)), values, at)

        row.each(write)
    return f.ret()


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
