"""Alternating updates (AltUp; Baykal and others, arXiv 2301.13310): several hidden states of a row side by side, of
which a layer computes the first one, and predicts the others.

Before a layer all states are predicted, x[k] for 0 ≤ k < count, from all of them:

    p[k] = fma over j ascending, from x[k], of coefficients[k][j] * x[j]

After it, they are corrected by what the layer has made of the first one, y:

    x[k] = fma(coefficients[k] + 1, y - p[0], p[k])
"""

from __future__ import annotations

from typing import Any

from onward.kernels.activations import broadcast_float
from onward.kernels.function import Module
from onward.kernels.operations import Operation, blocks_of
from onward.kernels.records import ALTUP
from onward.kernels.values import F32X16, VECTOR_BYTES, Value
from onward.kernels.weight_types import GROUP


def emit_altup(module: Module) -> Any:
    """Predictions, or corrections, of all states of the step's rows."""
    op = Operation(module, "altup")
    f = op.f
    pieces, blocks = op.field(ALTUP, "pieces"), blocks_of(op.field(ALTUP, "inputs"))
    per_piece = (blocks + pieces - 1) // pieces
    with op.pieces(op.shared("rows") * pieces) as piece:
        row = piece // pieces
        begin = piece % pieces * per_piece
        end = f.min(begin + per_piece, blocks)
        states = _States(op, row)
        computed = f.at(op.field(ALTUP, "computed"), row * op.field(ALTUP, "computed_stride"))
        with f.otherwise(op.field(ALTUP, "computed").is_null().ne(0)) as (before, after):
            with before, f.loop(begin * (4 * GROUP), end * (4 * GROUP), VECTOR_BYTES) as at:
                states.predict(at)
            with after, f.loop(begin * (4 * GROUP), end * (4 * GROUP), VECTOR_BYTES) as at:
                states.correct(at, f.load(computed, F32X16, at))
    return f.ret()


class _States:
    """The states of one row, and coefficients."""

    def __init__(self, op: Operation, row: Value) -> None:
        f = self.f = op.f
        self._source, self._target = (
            f.at(op.field(ALTUP, name), row * op.field(ALTUP, "stride")) for name in ("source", "target")
        )
        self._part, self._count = op.field(ALTUP, "part"), op.field(ALTUP, "count")
        self._coefficients = f.at(op.field(ALTUP, "coefficients"), row * op.field(ALTUP, "coefficient_stride"))

    def _load(self, state: Value, at: Value) -> Value:
        return self.f.load(self._source, F32X16, state * self._part + at)

    def predict(self, at: Value) -> None:
        """Write the predictions of 16 numbers."""
        f = self.f
        with f.loop(0, self._count) as k:
            total = f.var(F32X16, self._load(k, at))
            with f.loop(0, self._count) as j:
                coefficient = broadcast_float(f, self._coefficients, (k * self._count + j) * 4)
                total.set(f.fma(coefficient, self._load(j, at), total.value))
            f.store(total.value, self._target, k * self._part + at)

    def correct(self, at: Value, computed: Value) -> None:
        """Write the corrections of 16 numbers."""
        f = self.f
        change = computed - f.load(self._source, F32X16, at)
        with f.loop(0, self._count) as k:
            coefficient = broadcast_float(f, self._coefficients, k * 4) + 1.0
            f.store(f.fma(coefficient, change, self._load(k, at)), self._target, k * self._part + at)
