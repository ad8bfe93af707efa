"""State spaces (Mamba 2; Dao, Gu, arXiv 2405.21060): what a layer keeps of all positions before, taken on row by row.

A row has x, B, C and, elsewhere, dt: `head_size` numbers of x for each head, `state_size` of B and of C for each group
of heads, one dt for each head. A head's state S is [state_size][head_size], zero before position 0. With a decay A
below zero, a factor D and a bias for each head:

    time = softplus(dt + bias)
    S[n][p] = fma(time * x[p], B[n], S[n][p] * e**(time * A))
    y[p] = fma(x[p], D, (fma over n ascending, from 0, of S[n][p] * C[n]))

y takes the place of x. A row whose position the state has taken in already has a time of 0: it only reads the state.
Runs (records.RUN) and heads are computed apart, a run's rows one after the other: no cut of a step changes a bit.
Drafts advance a copy of the state, see recurrence.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from onward.kernels.function import Module
from onward.kernels.maths import exp, softplus
from onward.kernels.operations import Operation, claim
from onward.kernels.records import STATE_SPACE
from onward.kernels.recurrence import Run
from onward.kernels.values import F32, F32X16, LANES, VECTOR_BYTES, Value

_MANY_VECTORS = 4
"""Columns of a state that are computed together, where there are so many: their sums wait for nothing."""


@dataclass(frozen=True)
class StateSpaceShape:
    """Sizes of a layer's state space; see records.STATE_SPACE."""

    num_heads: int
    head_size: int
    state_size: int
    groups: int

    @property
    def width(self) -> int:
        """Numbers of x, B and C."""
        return self.num_heads * self.head_size + 2 * self.groups * self.state_size

    @property
    def state_bytes(self) -> int:
        """Bytes that are kept of a sequence."""
        return 4 * self.num_heads * self.head_size * self.state_size

    @property
    def is_possible(self) -> bool:
        return self.head_size % LANES == 0 and self.groups > 0 and self.num_heads % self.groups == 0


def emit_state_space(module: Module) -> Any:
    """The state space of runs, in place."""
    op = Operation(module, "state_space")
    f, heads = op.f, op.field(STATE_SPACE, "num_heads")
    with claim(f, op.counter, op.shared("num_runs") * heads, f.i64(1)) as (piece, _):
        _Head(op, Run(op, STATE_SPACE, piece // heads), piece % heads).compute()
    return f.ret()


class _Head:
    """One head of one sequence."""

    def __init__(self, op: Operation, run: Run, head: Value) -> None:
        self._op, self._f, self._run = op, op.f, run
        f = op.f
        heads, size, count = (op.field(STATE_SPACE, name) for name in ("num_heads", "head_size", "state_size"))
        self._size, self._count, self._head = size, count, head
        self._own = head * size * 4
        """Where the head's part of a row begins."""
        group_heads = op.field(STATE_SPACE, "group_heads")
        of_groups = heads // group_heads * count * 4
        self._inputs = (heads * size + head // group_heads * count) * 4
        self._outputs = self._inputs + of_groups
        self._times = heads * size * 4 + of_groups * 2
        """Where in the log those are."""
        self._own_state = self._state = f.at(run.state(), head * (count * size) * 4)
        parameters = op.field(STATE_SPACE, "parameters")
        self._bias, self._decay, self._factor = (
            f.load(parameters, F32, (heads * number + head) * 4) for number in range(3)
        )

    def compute(self) -> None:
        f, size = self._f, self._size
        bytes_of_state = self._count * size * 4
        many = size // (_MANY_VECTORS * LANES) * (_MANY_VECTORS * VECTOR_BYTES)
        with self._run.each_row() as row:
            with f.when(row.is_new & row.position.eq(0)), f.loop(0, bytes_of_state, VECTOR_BYTES) as at:
                f.store(f.const(F32X16, 0.0), self._own_state, at)
            self._state = row.state(self._own_state, self._op.scratch(), bytes_of_state)
            values = row.at("values", "stride")
            raised = f.load(row.at("times", "stride", self._times), F32, self._head * 4)
            with f.when(row.is_draft):
                f.store(raised, row.log(self._times), self._head * 4)
            time = f.select(row.is_new, softplus(f, raised + self._bias), f.f32(0.0))
            for first, last, vectors in ((f.i64(0), many, _MANY_VECTORS), (many, size * 4, 1)):
                with f.loop(first, last, vectors * VECTOR_BYTES) as column:
                    self._columns(values, time, column, vectors)

    def _columns(self, values: Value, time: Value, column: Value, vectors: int) -> None:
        """Take on some columns of the state, from byte `column` of a row of it on, and write what they return."""
        f = self._f
        own = f.at(values, self._own + column)
        places = [VECTOR_BYTES * number for number in range(vectors)]
        rows = [f.load(own, F32X16, place) for place in places]
        decay, times = f.splat(exp(f, time * self._decay), LANES), f.splat(time, LANES)
        added = [row * times for row in rows]
        sums = [f.var(F32X16, 0.0) for _ in places]
        with f.loop(0, self._count) as n:
            taken, returned = (f.load(f.at(values, part), F32, n * 4) for part in (self._inputs, self._outputs))
            state = f.at(self._state, n * self._size * 4 + column)
            for place, each, total in zip(places, added, sums, strict=True):
                new = f.fma(each, taken, f.load(state, F32X16, place) * decay)
                f.store(new, state, place)
                total.set(f.fma(new, returned, total.value))
        for place, row, total in zip(places, rows, sums, strict=True):
            f.store(f.fma(row, self._factor, total.value), own, place)
