"""Rows of float32 as products read them: in blocks of 32, as int8 with a scale of each block, or as they are.

A block's scale is its own, so that one large value spoils no more than its 32 neighbours. Values are rounded to the
nearest step, ties to even; a NaN becomes the largest step, because what a conversion makes of it differs between
processors.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from onward.kernels.function import Function
from onward.kernels.values import F32, F32X16, I8, I16, Value
from onward.kernels.weight_types import GROUP

ActivationName = Literal["int8", "float32"]
TINY = 1e-30
"""A block whose largest value is no larger is zero: the inverse of its scale would overflow."""
STEPS = 127
"""On each side of zero."""
INT8_SCALE, INT8_SCALED_SUM, INT8_PAIR, INT8_SUM = 32, 36, 40, 44
"""Offsets in a block of int8, after its 32 values: float32 scale, scale times sum, two int16 sums of 16, int32 sum."""
_HALF_PANEL = 16


@dataclass(frozen=True)
class Activations:
    """One form of a row's values. `write(f, values, target)` emits how 32 of them become a block."""

    name: ActivationName
    block_bytes: int
    write: Callable[[Function, tuple[Value, Value], Value], None]

    def row_bytes(self, inputs: int) -> int:
        """Return the bytes of a row; the values beyond its end, up to a multiple of 32, are zero."""
        return -(-inputs // GROUP) * self.block_bytes


def _steps(f: Function, values: tuple[Value, Value]) -> tuple[Value, list[Value]]:
    """Return the scale, float32, and the steps, int32, of 32 values."""
    largest = f.hmax(f.max(f.fabs(values[0]), f.fabs(values[1])))
    inverse = f.select(largest > TINY, f.f32(float(STEPS)) / largest, f.f32(0.0))
    found = []
    for value in values:
        step = f.rint(value * inverse)
        step = f.min(step, float(STEPS))  # a NaN becomes the largest
        found.append(f.max(step, -float(STEPS)).to_i32())
    return largest * (1.0 / STEPS), found


def _write_int8(f: Function, values: tuple[Value, Value], target: Value) -> None:
    scale, steps = _steps(f, values)
    sums = []
    for half, step in enumerate(steps):
        f.store(step.trunc(I8), target, half * _HALF_PANEL)
        sums.append(f.hsum(step))
        f.store(sums[half].trunc(I16), target, INT8_PAIR + 2 * half)
    total = sums[0] + sums[1]
    f.store(scale, target, INT8_SCALE)
    f.store(scale * total.to_f32(), target, INT8_SCALED_SUM)
    f.store(total, target, INT8_SUM)


def _write_float32(f: Function, values: tuple[Value, Value], target: Value) -> None:
    for half, value in enumerate(values):
        f.store(value, target, half * 4 * _HALF_PANEL)


ACTIVATIONS: dict[ActivationName, Activations] = {
    each.name: each
    for each in (
        Activations("int8", 48, _write_int8),
        Activations("float32", 4 * GROUP, _write_float32),
    )
}
ACTIVATION_NAMES = tuple(ACTIVATIONS)
"""By number in records."""


def write_blocks(f: Function, kind: Activations, source: Value, target: Value, first: Value, last: Value) -> None:
    """Emit a loop that writes blocks `first` to `last` of a row. `source`: float32, `target`: the row's first block."""
    with f.loop(first, last) as block:
        values = f.at(source, block * (4 * GROUP))
        both = (f.load(values, F32X16), f.load(values, F32X16, 4 * _HALF_PANEL))
        kind.write(f, both, f.at(target, block * kind.block_bytes))


def broadcast_float(f: Function, pointer: Value, offset: Value | int, num_lanes: int = 16) -> Value:
    """Return a float32 in every lane."""
    return f.splat(f.load(pointer, F32, offset), num_lanes)
