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

Rows of drafts may turn out wrong, and a state cannot give them back. So they advance a copy of it, in the scratch
memory, and what they would add is written to a log: the inputs of the convolution, and the gates. Of the accepted ones
the next step takes these in before its own rows: a few vectors of each instead of all products. So the bits are those
of one row per step.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from onward.kernels.function import Module, Variable
from onward.kernels.maths import exp, rsqrt, sigmoid, softplus
from onward.kernels.operations import Operation, claim
from onward.kernels.records import DELTA, RUN, RUN_BYTES, SCAN
from onward.kernels.values import F32, F32X16, I64, LANES, VECTOR_BYTES, Value

EPSILON = 1e-6
"""Added to the squared length of queries and keys (modeling_qwen3_next.py)."""
_MAX_VECTORS = 4
"""Of columns that are computed together, whose part of a state stays in the first-level cache."""
_GATES = ("alpha", "beta")


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

    @property
    def scratch_numbers(self) -> int:
        """Numbers that a thread keeps in its scratch memory: a query, a key, columns of a row, and of a matrix."""
        return 2 * self.key_size + (1 + self.key_size) * self.vectors * LANES


def ring_bytes(width: int, length: int) -> int:
    """Return the bytes that a convolution keeps of a sequence."""
    return 4 * width * length


def scan_scratch_numbers(width: int, pieces: int, length: int) -> int:
    """Return the numbers that a thread keeps in its scratch memory for a convolution."""
    return -(-width // LANES // pieces) * LANES * length


def emit_scan(module: Module) -> Any:
    """Short convolutions of runs, in place."""
    op = Operation(module, "scan")
    f = op.f
    width, pieces = op.field(SCAN, "width"), op.field(SCAN, "pieces")
    vectors = width // LANES
    per_piece = (vectors + pieces - 1) // pieces
    with claim(f, op.counter, op.shared("num_runs") * pieces, f.i64(1)) as (piece, _):
        run = Run(op, SCAN, piece // pieces)
        begin = piece % pieces * per_piece
        end = f.min(begin + per_piece, vectors)
        many = begin + f.max(end - begin, 0) // _MAX_VECTORS * _MAX_VECTORS
        ring = _Ring(op, run, begin * VECTOR_BYTES, end * VECTOR_BYTES, per_piece * VECTOR_BYTES)
        with run.each_row() as row:
            ring.choose(row)
            for first, last, count in ((begin, many, _MAX_VECTORS), (many, end, 1)):
                with f.loop(first * VECTOR_BYTES, last * VECTOR_BYTES, count * VECTOR_BYTES) as at:
                    _convolve(op, ring, row, at, count)
    return f.ret()


class _Ring:
    """Some columns of a ring, from byte `begin` to `end` of its rows: those of the state, or of a copy for drafts."""

    def __init__(self, op: Operation, run: Run, begin: Value, end: Value, copy_bytes: Value) -> None:
        self._op, self._f, self._begin, self._end, self._copy_bytes = op, op.f, begin, end, copy_bytes
        self._own, self._own_bytes = run.state(), op.field(SCAN, "width") * 4
        self._copy = op.f.at(op.scratch(), op.f.i64(0) - begin)
        self._base, self._row_bytes = self._own, self._own_bytes

    def choose(self, row: RunRow) -> None:
        """Use the ring of a row."""
        f = self._f
        with f.when(row.is_first_draft), f.loop(0, self._op.field(SCAN, "length")) as kept:
            own, copy = f.at(self._own, kept * self._own_bytes), f.at(self._copy, kept * self._copy_bytes)
            with f.loop(self._begin, self._end, VECTOR_BYTES) as at:
                f.store(f.load(own, F32X16, at), copy, at)
        self._base = f.select(row.is_draft, self._copy, self._own)
        self._row_bytes = f.select(row.is_draft, self._copy_bytes, self._own_bytes)

    def at(self, number: Value, column: Value) -> Value:
        """Return where byte `column` of a row of the ring is."""
        return self._f.at(self._base, number * self._row_bytes + column)


def _convolve(op: Operation, ring: _Ring, row: RunRow, begin: Value, count: int) -> None:
    """Convolve `count` vectors of a row, from byte `begin` on. They do not wait for each other."""
    f, length, row_bytes, position = op.f, op.field(SCAN, "length"), op.field(SCAN, "width") * 4, row.position
    weights, bias = op.field(SCAN, "weights"), op.field(SCAN, "bias")
    values = f.at(row.at("values", "stride"), begin)
    places = [VECTOR_BYTES * number for number in range(count)]
    own = ring.at(position % length, begin)
    for place in places:
        f.store(f.load(values, F32X16, place), own, place)
    with f.when(row.is_draft):
        for place in places:
            f.store(f.load(values, F32X16, place), f.at(row.log(), begin), place)
    totals = [f.var(F32X16, 0.0) for _ in places]
    with f.when(bias.is_null().eq(0)):
        for place, total in zip(places, totals, strict=True):
            total.set(f.load(f.at(bias, begin), F32X16, place))
    oldest = (position + 1) % length
    with f.loop(f.max(length - 1 - position, 0), length) as tap:
        kept = oldest + tap
        kept = f.select(kept < length, kept, kept - length)
        inputs, taps = ring.at(kept, begin), f.at(weights, tap * row_bytes + begin)
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
        run = Run(op, DELTA, piece // (heads * shape.groups))
        head = piece // shape.groups % heads
        columns = _Columns(op, shape, run, head, piece % shape.groups)
        with run.each_row() as row:
            columns.row(row)
    return f.ret()


class Run:
    """The rows of one sequence: those of the log that its state takes in, then the step's."""

    def __init__(self, op: Operation, layout: Any, number: Value) -> None:
        self.op, self.f, self.layout = op, op.f, layout
        run = op.f.at(op.shared("runs"), number * RUN_BYTES)
        first_row, rows, self._slot, self.known, drafts, self.logged, self.log, next_log = (
            RUN.load(self.f, run, name) for name in RUN.fields
        )
        self.num_rows = self.logged + rows
        self.first_draft = self.num_rows - drafts
        self.first_row = first_row - self.logged
        self.next_log = next_log - self.first_draft
        """These two: plus a row's index in the run, its number in the step, and the number of its place in the log."""
        self._first_position = self.f.load(op.shared("positions"), I64, first_row * 8) - self.logged

    def state(self) -> Value:
        """Return where the sequence's state begins."""
        op, layout = self.op, self.layout
        return self.f.at(op.field(layout, "states"), self._slot * op.field(layout, "state_stride"))

    @contextmanager
    def each_row(self) -> Iterator[RunRow]:
        """Loop over the rows."""
        with self.f.loop(0, self.num_rows) as index:
            yield RunRow(self, index, self._first_position + index)


class RunRow:
    """A row of a run: of the log, of the step, or of a draft."""

    def __init__(self, run: Run, index: Value, position: Value) -> None:
        self._run, self._f, self._index, self.position = run, run.f, index, position
        self.is_logged, self.is_draft = index < run.logged, index >= run.first_draft
        self.is_first_draft = index.eq(run.first_draft)
        self.is_new = position >= run.known
        """Whether the state has not taken it in."""

    def at(self, values: str, stride: str, log_place: Value | int = 0) -> Value:
        """Return where a row's numbers begin: rows by the names of their fields, or `log_place` bytes into the log."""
        run, op = self._run, self._run.op
        own = self._f.at(op.field(run.layout, values), (run.first_row + self._index) * op.field(run.layout, stride))
        return self._f.select(self.is_logged, self._log(run.log, log_place), own)

    def log(self, place: Value | int = 0) -> Value:
        """Return where a draft is logged."""
        return self._log(self._run.next_log, place)

    def _log(self, first: Value, place: Value | int) -> Value:
        run, op = self._run, self._run.op
        return self._f.at(op.field(run.layout, "log"), (first + self._index) * op.shared("log_stride") + place)

    def state(self, own: Value, copy: Value, size: Value | int) -> Value:
        """Return where the state is that the row advances: the sequence's own, or, of drafts, its copy, which is made
        before the first one. `size`: bytes, whole vectors."""
        f = self._f
        with f.when(self.is_first_draft), f.loop(0, size, VECTOR_BYTES) as at:
            f.store(f.load(own, F32X16, at), copy, at)
        return f.select(self.is_draft, copy, own)


class _Columns:
    """Some columns of a head."""

    def __init__(self, op: Operation, shape: DeltaShape, run: Run, head: Value, group: Value) -> None:
        self._op, self._f, self._shape, self._head, self._group = op, op.f, shape, head, group
        f, keys, heads = op.f, op.field(DELTA, "num_key_heads"), op.field(DELTA, "num_heads")
        self._key_head = f.select(op.field(DELTA, "is_tiled").ne(0), head % keys, head * keys // heads)
        self._keys = keys * (4 * shape.key_size)
        """Bytes of all queries, and of all keys."""
        self._gates = self._keys * 2 + heads * (4 * shape.value_size)
        """Where in the log those are."""
        self._width = shape.vectors * VECTOR_BYTES
        self._group_bytes = shape.key_size * self._width
        self._own = self._state = f.at(run.state(), head * shape.head_bytes + group * self._group_bytes)
        self._queries = op.scratch()
        self._normal_keys = f.at(self._queries, 4 * shape.key_size)
        self._unwanted = f.at(self._queries, 8 * shape.key_size)
        """Where what a logged row returns is written."""
        self._copy = f.at(self._unwanted, self._width)
        self._place = head * (4 * shape.value_size) + group * self._width
        """Of the columns in a row of values, or of what is returned."""

    def row(self, row: RunRow) -> None:
        f, shape = self._f, self._shape
        with f.when(row.position.eq(0)), f.loop(0, self._group_bytes, VECTOR_BYTES) as at:
            f.store(f.const(F32X16, 0.0), self._own, at)
        self._state = row.state(self._own, self._copy, self._group_bytes)
        self._log_gates(row)
        values = row.at("values", "stride")
        key = self._key_head * (4 * shape.key_size)
        self._normalise(f.at(values, key), self._queries, 1 / math.sqrt(shape.key_size))
        self._normalise(f.at(values, self._keys + key), self._normal_keys, 1.0)
        target = f.select(row.is_logged, self._unwanted, f.at(row.at("target", "target_stride"), self._place))
        with f.otherwise(row.is_new) as (is_new, is_known):
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
        with f.loop(0, size, VECTOR_BYTES) as at:
            value = f.load(source, F32X16, at)
            squares.set(f.fma(value, value, squares.value))
        factor = f.splat(rsqrt(f, f.hsum(squares.value) + EPSILON) * scale, LANES)
        with f.loop(0, size, VECTOR_BYTES) as at:
            f.store(f.load(source, F32X16, at) * factor, target, at)

    def _log_gates(self, row: RunRow) -> None:
        """Log the gates of a draft: the pieces of a head write the same."""
        with self._f.when(row.is_draft):
            for number, name in enumerate(_GATES):
                self._f.store(self._gate(name, row), row.log(self._gate_place(number)))

    def _gate_place(self, number: int) -> Value:
        return self._gates + (self._op.field(DELTA, "num_heads") * number + self._head) * 4

    def _gate(self, name: str, row: RunRow) -> Value:
        """Return the head's number of a row's gates."""
        number, own = _GATES.index(name), self._head * 4
        return self._f.load(row.at(name, "gate_stride", self._gate_place(number) - own), F32, own)

    def _update(self, row: RunRow, values: Value, target: Value) -> None:
        f, op = self._f, self._op
        parameters, head = op.field(DELTA, "parameters"), self._head * 4
        raised = self._gate("alpha", row) + f.load(parameters, F32, op.field(DELTA, "num_heads") * 4 + head)
        decay = exp(f, f.load(parameters, F32, head) * softplus(f, raised))
        share, factor = f.splat(sigmoid(f, self._gate("beta", row)), LANES), f.splat(decay, LANES)
        recalled, sums = self._sums(), self._sums()
        with f.loop(0, self._shape.key_size) as i:
            key = f.load(self._normal_keys, F32, i * 4)
            for vector, total in enumerate(recalled):
                total.set(f.fma(self._load(i, vector) * factor, key, total.value))
        changes = [
            (f.load(values, F32X16, vector * VECTOR_BYTES) - total.value) * share
            for vector, total in enumerate(recalled)
        ]
        with f.loop(0, self._shape.key_size) as i:
            key, query = (f.load(each, F32, i * 4) for each in (self._normal_keys, self._queries))
            for vector, total in enumerate(sums):
                state = f.fma(key, changes[vector], self._load(i, vector) * factor)
                f.store(state, self._state, i * self._width + vector * VECTOR_BYTES)
                total.set(f.fma(state, query, total.value))
        self._write(sums, target)

    def _load(self, i: Value, vector: int) -> Value:
        return self._f.load(self._state, F32X16, i * self._width + vector * VECTOR_BYTES)

    def _sums(self) -> list[Variable]:
        return [self._f.var(F32X16, 0.0) for _ in range(self._shape.vectors)]

    def _write(self, sums: list[Variable], target: Value) -> None:
        for vector, total in enumerate(sums):
            self._f.store(total.value, target, vector * VECTOR_BYTES)
