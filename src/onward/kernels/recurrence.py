"""Layers with a recurrent state: a short convolution and a gated delta rule, position by position.

A step's rows of one sequence are a run (records.RUN), adjacent and in order of position. What a layer keeps of the
positions before lies in the sequence's state, which is that after the run's last row in the end. A run is computed row
by row, whoever computes it and wherever the step ends: so no cut of a step changes a bit. Runs, heads and columns are
computed apart.

The convolution reads its inputs from a ring of the last `length` positions, to which a row's own one is written first:

    ring[position % length][d] = x[d]
    y[d] = silu(bias[d] + (fma over j ascending of ring[(position - length + 1 + j) % length][d] * weights[j][d]))

without positions before 0, and from 0 where there is no bias. It replaces x in place.

The delta rule (Yang et al., arXiv 2412.06464) keeps a matrix for each head, [key size][value size], which is zero at
position 0. With q and k divided by their length, q by the root of the key size, too, and scalars a (decay) and b:

    S'[i][j] = S[i][j] * a,  r[j] = (v[j] - (fma over i of S'[i][j] * k[i])) * b
    S[i][j]  = fma(k[i], r[j], S'[i][j]),  o[j] = fma over i of S[i][j] * q[i]        i ascending, sums from 0

    a = e**(decay * softplus(alpha + bias)),  b = sigmoid(beta)

A row whose position the state has taken in already (`known`), which is computed again, only reads it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from onward.kernels.attention_shape import LANES
from onward.kernels.function import Module, Variable
from onward.kernels.maths import exp, rsqrt, sigmoid, softplus
from onward.kernels.operations import Operation, claim
from onward.kernels.records import DELTA, RUN, RUN_BYTES, SCAN
from onward.kernels.values import F32, I64, Value
from onward.kernels.weight_types import F32X16

EPSILON = 1e-6
"""Added to the squared length of queries and keys (modeling_qwen3_next.py)."""
_VECTOR = 4 * LANES
_MAX_VECTORS = 4
"""Of columns that are computed together, whose part of a state stays in the first-level cache."""


@dataclass(frozen=True)
class DeltaShape:
    """What the kernel of a delta rule is compiled for: sizes of a head's keys and values, multiples of LANES."""

    key_size: int
    value_size: int

    @property
    def name(self) -> str:
        return f"{self.key_size}_{self.value_size}"

    @property
    def vectors(self) -> int:
        """Vectors of columns in a piece."""
        return math.gcd(self.value_size // LANES, _MAX_VECTORS)

    @property
    def groups(self) -> int:
        """Pieces of a head."""
        return self.value_size // (self.vectors * LANES)

    @property
    def head_bytes(self) -> int:
        """Of a head's matrix: for each piece all of its rows."""
        return 4 * self.key_size * self.value_size


def ring_bytes(width: int, length: int) -> int:
    """Return the bytes that a convolution keeps of a sequence."""
    return 4 * width * length


def emit_scan(module: Module) -> Any:
    """Short convolutions of runs, in place."""
    op = Operation(module, "scan")
    f = op.f
    width, pieces = op.field(SCAN, "width"), op.field(SCAN, "pieces")
    vectors = width // LANES
    per_piece = (vectors + pieces - 1) // pieces
    with claim(f, op.counter, op.shared("num_runs") * pieces, f.i64(1)) as (piece, _):
        run = Run(op, piece // pieces)
        begin = piece % pieces * per_piece
        end = f.min(begin + per_piece, vectors)
        ring = run.state(SCAN)
        many = begin + f.max(end - begin, 0) // _MAX_VECTORS * _MAX_VECTORS
        with run.each_row() as (row, position):
            for first, last, count in ((begin, many, _MAX_VECTORS), (many, end, 1)):
                with f.loop(first * _VECTOR, last * _VECTOR, count * _VECTOR) as at:
                    _convolve(op, ring, row, position, at, count)
    return f.ret()


def _convolve(op: Operation, ring: Value, row: Value, position: Value, begin: Value, count: int) -> None:
    """Convolve `count` vectors of a row, from byte `begin` on. They do not wait for each other."""
    f, length, row_bytes = op.f, op.field(SCAN, "length"), op.field(SCAN, "width") * 4
    weights, bias = op.field(SCAN, "weights"), op.field(SCAN, "bias")
    values = f.at(op.field(SCAN, "values"), row * op.field(SCAN, "stride") + begin)
    places = [_VECTOR * number for number in range(count)]
    own = f.at(ring, position % length * row_bytes + begin)
    for place in places:
        f.store(f.load(values, F32X16, place), own, place)
    totals = [f.var(F32X16, 0.0) for _ in places]
    with f.when(bias.is_null().eq(0)):
        for place, total in zip(places, totals, strict=True):
            total.set(f.load(f.at(bias, begin), F32X16, place))
    oldest = (position + 1) % length
    with f.loop(f.max(length - 1 - position, 0), length) as tap:
        kept = oldest + tap
        kept = f.select(kept < length, kept, kept - length)
        inputs, taps = f.at(ring, kept * row_bytes + begin), f.at(weights, tap * row_bytes + begin)
        for place, total in zip(places, totals, strict=True):
            total.set(f.fma(f.load(inputs, F32X16, place), f.load(taps, F32X16, place), total.value))
    for place, total in zip(places, totals, strict=True):
        f.store(total.value * sigmoid(f, total.value), values, place)


def emit_delta(module: Module, shape: DeltaShape) -> Any:
    """The delta rule over runs."""
    op = Operation(module, f"delta_{shape.name}")
    f = op.f
    heads = op.field(DELTA, "num_heads")
    with claim(f, op.counter, op.shared("num_runs") * heads * shape.groups, f.i64(1)) as (piece, _):
        run = Run(op, piece // (heads * shape.groups))
        head = piece // shape.groups % heads
        columns = _Columns(op, shape, run, head, piece % shape.groups)
        with run.each_row() as (row, position):
            columns.row(row, position)
    return f.ret()


class Run:
    """The rows of one sequence."""

    def __init__(self, op: Operation, number: Value) -> None:
        self._op, self._f = op, op.f
        self._run = op.f.at(op.shared("runs"), number * RUN_BYTES)

    def field(self, name: str) -> Value:
        return RUN.load(self._f, self._run, name)

    def state(self, layout: Any) -> Value:
        """Return where the sequence's state begins."""
        return self._f.at(self._op.field(layout, "states"), self.field("slot") * self._op.field(layout, "state_stride"))

    @contextmanager
    def each_row(self) -> Iterator[tuple[Value, Value]]:
        """Loop over the rows: (number in the step, position)."""
        f, first = self._f, self.field("first_row")
        with f.loop(first, first + self.field("rows")) as row:
            yield row, f.load(self._op.shared("positions"), I64, row * 8)


class _Columns:
    """Some columns of a head."""

    def __init__(self, op: Operation, shape: DeltaShape, run: Run, head: Value, group: Value) -> None:
        self._op, self._f, self._shape, self._head, self._group = op, op.f, shape, head, group
        f, keys, heads = op.f, op.field(DELTA, "num_key_heads"), op.field(DELTA, "num_heads")
        self._key_head = f.select(op.field(DELTA, "is_tiled").ne(0), head % keys, head * keys // heads)
        self._keys = keys * (4 * shape.key_size)
        """Bytes of all queries, and of all keys."""
        self._width = shape.vectors * _VECTOR
        group_bytes = shape.key_size * self._width
        self._state = f.at(run.state(DELTA), head * shape.head_bytes + group * group_bytes)
        self._known = run.field("known")
        self._queries = op.scratch()
        self._normal_keys = f.at(self._queries, 4 * shape.key_size)
        self._place = head * (4 * shape.value_size) + group * self._width
        """Of the columns in a row of values, or of what is returned."""

    def row(self, row: Value, position: Value) -> None:
        f, op, shape = self._f, self._op, self._shape
        with f.when(position.eq(0)), f.loop(0, shape.key_size * self._width, _VECTOR) as at:
            f.store(f.const(F32X16, 0.0), self._state, at)
        values = f.at(op.field(DELTA, "values"), row * op.field(DELTA, "stride"))
        key = self._key_head * (4 * shape.key_size)
        self._normalise(f.at(values, key), self._queries, 1 / math.sqrt(shape.key_size))
        self._normalise(f.at(values, self._keys + key), self._normal_keys, 1.0)
        target = f.at(op.field(DELTA, "target"), row * op.field(DELTA, "target_stride") + self._place)
        with f.otherwise(position >= self._known) as (is_new, is_known):
            with is_new:
                self._update(row, f.at(values, self._keys * 2 + self._place), target)
            with is_known:
                sums = self._sums()
                with f.loop(0, shape.key_size) as i:
                    query = f.load(self._queries, F32, i * 4)
                    for vector, total in enumerate(sums):
                        total.set(f.fma(self._load(i, vector), query, total.value))
                self._write(sums, target)

    def _normalise(self, source: Value, target: Value, scale: float) -> None:
        f, size = self._f, 4 * self._shape.key_size
        squares = f.var(F32X16, 0.0)
        with f.loop(0, size, _VECTOR) as at:
            value = f.load(source, F32X16, at)
            squares.set(f.fma(value, value, squares.value))
        factor = f.splat(rsqrt(f, f.hsum(squares.value) + EPSILON) * scale, LANES)
        with f.loop(0, size, _VECTOR) as at:
            f.store(f.load(source, F32X16, at) * factor, target, at)

    def _gate(self, name: str, row: Value) -> Value:
        """Return the head's number of a row's gates."""
        gates = self._f.at(self._op.field(DELTA, name), row * self._op.field(DELTA, "gate_stride"))
        return self._f.load(gates, F32, self._head * 4)

    def _update(self, row: Value, values: Value, target: Value) -> None:
        f, op = self._f, self._op
        raised = self._gate("alpha", row) + f.load(op.field(DELTA, "bias"), F32, self._head * 4)
        decay = exp(f, f.load(op.field(DELTA, "decay"), F32, self._head * 4) * softplus(f, raised))
        share, factor = f.splat(sigmoid(f, self._gate("beta", row)), LANES), f.splat(decay, LANES)
        recalled, sums = self._sums(), self._sums()
        with f.loop(0, self._shape.key_size) as i:
            key = f.load(self._normal_keys, F32, i * 4)
            for vector, total in enumerate(recalled):
                total.set(f.fma(self._load(i, vector) * factor, key, total.value))
        changes = [
            (f.load(values, F32X16, vector * _VECTOR) - total.value) * share for vector, total in enumerate(recalled)
        ]
        with f.loop(0, self._shape.key_size) as i:
            key, query = (f.load(each, F32, i * 4) for each in (self._normal_keys, self._queries))
            for vector, total in enumerate(sums):
                state = f.fma(key, changes[vector], self._load(i, vector) * factor)
                f.store(state, self._state, i * self._width + vector * _VECTOR)
                total.set(f.fma(state, query, total.value))
        self._write(sums, target)

    def _load(self, i: Value, vector: int) -> Value:
        return self._f.load(self._state, F32X16, i * self._width + vector * _VECTOR)

    def _sums(self) -> list[Variable]:
        return [self._f.var(F32X16, 0.0) for _ in range(self._shape.vectors)]

    def _write(self, sums: list[Variable], target: Value) -> None:
        for vector, total in enumerate(sums):
            self._f.store(total.value, target, vector * _VECTOR)
