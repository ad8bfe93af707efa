"""Gated short convolutions over a paged cache (LFM2): what a layer reads of earlier positions is kept in their KV
blocks, as keys are, so that a sequence can be continued from any position.

A row is b, c and x, one after the other, `width` numbers each. Of its position b[d] * x[d] is kept, as a block
[BLOCK_TOKENS][width] of the layer has it; and of what `length` positions keep, this one and those before it,

    y[d] = c[d] * (fma over j ascending, from 0, of kept[position - length + 1 + j][d] * weights[j][d])

without the positions before 0. All of it is read from the cache, the row's own part too: so a row's bits depend on the
numbers kept at its last positions alone, whichever step kept them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from onward.kernels.attention_shape import BLOCK_TOKENS, AttentionShape
from onward.kernels.function import Function, Module
from onward.kernels.operations import Operation, Writers, blocks_of, narrowed
from onward.kernels.records import CONVOLVE, KEEP
from onward.kernels.values import F32, F32X16, I32, I64, LANES, VECTOR_BYTES, Type, Value, vec
from onward.kernels.weight_types import GROUP


def emit_keep(module: Module, shape: AttentionShape) -> Any:
    """What later positions read of the step's rows, into the cache."""
    op = Operation(module, "keep")
    f, width = op.f, op.field(KEEP, "width")
    with op.rows() as row:
        source = f.at(op.field(KEEP, "source"), row * op.field(KEEP, "source_stride"))
        position = f.load(op.shared("positions"), I64, row * 8)
        place = _Kept(op, KEEP, shape, row).at(position)

        def put(t: Type, d: Value) -> None:
            product = f.load(source, t, d * 4) * f.load(source, t, (width * 2 + d) * 4)
            f.store(narrowed(f, shape, product), place, d * shape.kv_size)

        _each(f, width, put)
    return f.ret()


def emit_convolve(module: Module, shape: AttentionShape, writers: Writers) -> Any:
    """The convolution of the step's rows, whose own parts are in the cache, as a form of activations."""
    op = Operation(module, "convolve")
    f, width, length, sums = op.f, op.field(CONVOLVE, "width"), op.field(CONVOLVE, "length"), op.scratch()
    blocks = blocks_of(width)
    with op.rows() as row:
        source = f.at(op.field(CONVOLVE, "source"), row * op.field(CONVOLVE, "source_stride") + width * 4)
        target = f.at(op.field(CONVOLVE, "target"), row * op.field(CONVOLVE, "target_stride"))
        first = f.load(op.shared("positions"), I64, row * 8) - length + 1
        kept = _Kept(op, CONVOLVE, shape, row)
        with f.loop(0, blocks * GROUP * 4, VECTOR_BYTES) as at:
            f.store(f.const(F32X16, 0.0), sums, at)
        with f.loop(f.max(f.i64(0) - first, 0), length) as tap:
            place = kept.at(first + tap)
            weights = f.at(op.field(CONVOLVE, "weights"), tap * width * 4)

            def add(t: Type, d: Value, place: Value = place, weights: Value = weights) -> None:
                number = f.load(place, kept.type_of(t), d * shape.kv_size)
                number = number if shape.is_wide else number.fpext()
                f.store(f.fma(number, f.load(weights, t, d * 4), f.load(sums, t, d * 4)), sums, d * 4)

            _each(f, width, add)
        _each(f, width, lambda t, d: f.store(f.load(source, t, d * 4) * f.load(sums, t, d * 4), sums, d * 4))
        writers.call(f, op.field(CONVOLVE, "form"), sums, target, f.i64(0), blocks)
    return f.ret()


class _Kept:
    """Where the numbers of a row's positions are kept."""

    def __init__(self, op: Operation, layout: Any, shape: AttentionShape, row: Value) -> None:
        self._f, self._shape = op.f, shape
        self._table = op.f.load_pointer(op.shared("tables"), row * 8)
        self._cache, self._stride, self._width = (op.field(layout, n) for n in ("cache", "cache_stride", "width"))

    def at(self, position: Value) -> Value:
        """Return where those of a position begin."""
        f = self._f
        block = f.load(self._table, I32, position // BLOCK_TOKENS * 4).zext(I64)
        return f.at(self._cache, block * self._stride + position % BLOCK_TOKENS * self._width * self._shape.kv_size)

    def type_of(self, t: Type) -> Type:
        """Return the type in the cache of what is `t` in a row."""
        return self._shape.kv_type if t == F32 else vec(self._shape.kv_type, LANES)


def _each(f: Function, width: Value, use: Callable[[Type, Value], None]) -> None:
    """Emit `use(type, index)` for the numbers of a row: whole vectors, then the others one by one."""
    whole = width // LANES * LANES
    for t, start, stop, step in ((F32X16, 0, whole, LANES), (F32, whole, width, 1)):
        with f.loop(start, stop, step) as d:
            use(t, d)
