"""The operations of a tape other than products, attention and norms: embeddings, activations, rotation, gated units.

Each is a function (record, context, thread, counter). Threads take pieces, mostly rows, by an atomic counter; no result
depends on who takes which. Rows of float32 are zero from their end up to a multiple of 32.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from onward.kernels.activations import ACTIVATION_NAMES, ACTIVATIONS, ActivationName, write_blocks
from onward.kernels.attention_shape import BLOCK_TOKENS, AttentionShape
from onward.kernels.float_dots import Float32
from onward.kernels.function import Function, Module
from onward.kernels.isa import Isa
from onward.kernels.maths import tanh
from onward.kernels.panels import emit_ordered_block
from onward.kernels.products import ProductKind, emit_product, whole_claim
from onward.kernels.records import (
    CAP,
    COMPLETED_OFFSET,
    CONTEXT,
    EMBED,
    OWN,
    PIECE_MASK,
    PRODUCT,
    QUANTISE,
    ROTATE,
    STEP_SHIFT,
)
from onward.kernels.structures import Structure
from onward.kernels.type_table import WEIGHT_TYPES
from onward.kernels.values import F32, F32X16, I32, I64, LANES, PTR, VECTOR_BYTES, Value, vec
from onward.kernels.weight_types import GROUP, FloatType, RowReader, WeightType

MAX_FLOAT16 = 65504.0
SHARES, MAX_PIECES = 8, 32
"""A thread's part of small pieces is cut into so many claims, if a claim has no more than so many."""


class Operation:
    """A function that the interpreter calls, which is being written, with its arguments."""

    def __init__(self, module: Module, name: str) -> None:
        self.f = Function(module, f"operation_{name}", [PTR, PTR, I64, PTR], exported=True)
        self.record, self.context, self.thread, self.counter = self.f.args

    def field(self, layout: Structure, name: str) -> Value:
        return layout.load(self.f, self.record, name)

    def shared(self, name: str) -> Value:
        """Return a field of the context."""
        return CONTEXT.load(self.f, self.context, name)

    def scratch(self) -> Value:
        """Return this thread's scratch memory."""
        return self.f.at(self.shared("scratch"), self.thread * self.shared("scratch_stride"))

    @contextmanager
    def rows(self) -> Iterator[Value]:
        """Loop over the rows of the step."""
        with self.pieces(self.shared("rows")) as row:
            yield row

    def shrinking(self, total: Value, most: Value) -> Callable[[Value], Value]:
        """Return how many pieces of so many a thread takes, for `claim`: at most `most`, and towards the end fewer, so
        that the threads end together."""
        threads = self.shared("threads")

        def chunk(first: Value) -> Value:
            return self.f.max(self.f.min((total - first) // (threads * 2), most), 1)

        return chunk

    @contextmanager
    def pieces(self, total: Value) -> Iterator[Value]:
        """Loop over so many small pieces, of which a thread takes a few at a time where there are many."""
        f = self.f
        few = f.min(total // (self.shared("threads") * SHARES), MAX_PIECES)
        with claim(f, self.counter, total, f.max(few, 1)) as (first, last), f.loop(first, last) as piece:
            yield piece


@contextmanager
def claim(
    f: Function, own: Value, total: Value, chunk: Value | Callable[[Value], Value]
) -> Iterator[tuple[Value, Value]]:
    """Repeat the body for pieces [first, last) taken from a counter that all threads share. Once per operation.

    `own`: the thread's memory (records.OWN). `total` must not change within a step. `chunk`: how many pieces are taken
    at a time, or a function that returns it of the first one's number. A counter holds the step, so that a
    thread that comes late from an earlier one takes nothing: its step does not match any more, whatever it has read of
    the next one. What was computed is counted in the word after it; the thread that completes the last piece notes
    that.
    """
    counter, step = OWN.load(f, own, "counter"), OWN.load(f, own, "step")
    f.acquire()
    completed = f.var(I64, 0)
    with f.forever() as loop:
        word = f.load_acquire(counter)
        first = word & PIECE_MASK
        loop.break_if((first >= total) | (word >> STEP_SHIFT).ne(step))
        taken = chunk(first) if callable(chunk) else chunk
        loop.continue_if(f.compare_and_swap(counter, word, word + taken).eq(0))
        last = f.min(first + taken, total)
        yield first, last
        completed.value += last - first
    OWN.store(f, own, "total", total)
    OWN.store(f, own, "is_last", f.i64(0))
    with f.when(completed.value > 0):
        done = f.fetch_add(counter, completed.value, COMPLETED_OFFSET) + completed.value
        OWN.store(f, own, "is_last", done.eq(total).zext(I64))


class Writers:
    """Functions that write a row of float32 in a form of activations."""

    def __init__(self, module: Module, names: Iterable[ActivationName]) -> None:
        self._functions = {name: self._emit(module, name) for name in ACTIVATION_NAMES if name in names}

    @staticmethod
    def _emit(module: Module, name: ActivationName) -> Any:
        f = Function(module, f"write_{name}", [PTR, PTR, I64, I64], inline=False)
        source, target, first, last = f.args
        write_blocks(f, ACTIVATIONS[name], source, target, first, last)
        return f.ret()

    def call(self, f: Function, form: Value, source: Value, target: Value, first: Value, last: Value) -> None:
        """Emit the writing of blocks `first` to `last` in the form with this number."""
        for name, function in self._functions.items():
            with f.when(form.eq(ACTIVATION_NAMES.index(name))):
                f.call(function, [source, target, first, last])


def blocks_of(inputs: Value) -> Value:
    """Return how many blocks of 32 a row has."""
    return (inputs + (GROUP - 1)) // GROUP


def emit_embed(module: Module, isa: Isa, name: str) -> Any:
    """Rows of the table for the step's tokens or positions, as float32."""
    op, kind = Operation(module, f"embed_{name}"), WEIGHT_TYPES[name]
    f = op.f
    scale, is_added = op.field(EMBED, "scale"), op.field(EMBED, "is_added")
    with op.rows() as row:
        place = f.select(op.field(EMBED, "of_positions").ne(0), op.shared("positions"), op.shared("tokens"))
        stated = f.load(place, I64, row * 8)
        index = f.select(stated < op.field(EMBED, "rows"), stated, f.i64(0))
        source = f.at(op.field(EMBED, "table"), index * op.field(EMBED, "row_bytes"))
        target = f.at(op.field(EMBED, "target"), row * op.field(EMBED, "target_stride"))

        def put(target: Value, k: Value, weight: Value) -> None:
            value = weight.lane(0) * scale
            old = f.load(target, F32, k * 4)
            f.store(f.select(is_added.ne(0), old + value, value), target, k * 4)

        if isinstance(kind, FloatType):
            with f.loop(0, op.field(EMBED, "inputs")) as k:
                # one row as it is in the file: its weights are contiguous
                put(target, k, kind.load(RowReader(f, isa, f.at(source, k * kind.weight_bytes)), f.i64(0)))
        else:
            _embed_blocks(op, isa, kind, source, target, put)
    return f.ret()


def _embed_blocks(
    op: Operation,
    isa: Isa,
    kind: WeightType,
    source: Value,
    target: Value,
    put: Callable[[Value, Value, Value], None],
) -> None:
    f, ordered = op.f, op.scratch()
    with f.loop(0, op.field(EMBED, "inputs") // kind.block_weights) as block:
        emit_ordered_block(f, kind, f.at(source, block * kind.block_bytes), ordered)
        place = f.at(target, block * (4 * kind.block_weights))
        Float32(f, isa, kind).read(RowReader(f, isa, ordered)).each(lambda k, weight: put(place, k, weight))


def emit_quantise(module: Module, writers: Writers) -> Any:
    """Rows in another form."""
    op = Operation(module, "quantise")
    f = op.f
    blocks, weight, weighted = blocks_of(op.field(QUANTISE, "inputs")), op.field(QUANTISE, "weight"), op.scratch()
    with op.rows() as row:
        source = f.at(op.field(QUANTISE, "source"), row * op.field(QUANTISE, "source_stride"))
        target = f.at(op.field(QUANTISE, "target"), row * op.field(QUANTISE, "target_stride"))
        has_weight = weight.is_null().eq(0)
        with f.when(has_weight), f.loop(0, blocks * (4 * GROUP), VECTOR_BYTES) as at:
            f.store(f.load(source, F32X16, at) * f.load(weight, F32X16, at), weighted, at)
        written = f.select(has_weight, weighted, source)
        writers.call(f, op.field(QUANTISE, "form"), written, target, f.i64(0), blocks)
    return f.ret()


def emit_cap(module: Module) -> Any:
    """Soft caps of logits, or hard ones of queries, keys and values, in place. A NaN remains."""
    op = Operation(module, "cap")
    f = op.f
    pieces, vectors = op.field(CAP, "pieces"), op.field(CAP, "num_vectors")
    per_piece = (vectors + pieces - 1) // pieces
    cap = f.splat(op.field(CAP, "cap"), LANES)
    with op.pieces(op.shared("rows") * pieces) as piece:
        values = f.at(op.field(CAP, "values"), piece // pieces * op.field(CAP, "stride"))
        first = piece % pieces * per_piece
        last = f.min(first + per_piece, vectors)
        bounds = first * VECTOR_BYTES, last * VECTOR_BYTES, VECTOR_BYTES
        with f.otherwise(op.field(CAP, "is_hard").eq(0)) as (soft, hard):
            with soft, f.loop(*bounds) as at:
                f.store(cap * tanh(f, f.load(values, F32X16, at) / cap), values, at)
            with hard, f.loop(*bounds) as at:
                f.store(f.max(-cap, f.min(cap, f.load(values, F32X16, at))), values, at)
    return f.ret()


def emit_rotate(module: Module, shape: AttentionShape) -> Any:
    """Rotation of queries and keys by their positions, and the writing of keys and values, as far as there are some."""
    op = Operation(module, f"rotate_{shape.name}")
    f = op.f
    with op.rows() as row:
        position = f.load(op.shared("positions"), I64, row * 8)
        table = f.load_pointer(op.shared("tables"), row * 8)
        block = f.load(table, I32, position // BLOCK_TOKENS * 4).zext(I64)
        slot = position % BLOCK_TOKENS
        place = f.at(op.field(ROTATE, "cache"), block * op.field(ROTATE, "cache_stride"))
        _Rotation(op, shape, row, position).emit(place, slot)
    return f.ret()


class _Rotation:
    """One row's queries, keys and values."""

    def __init__(self, op: Operation, shape: AttentionShape, row: Value, position: Value) -> None:
        self.op, self.f, self.shape, self.row = op, op.f, shape, row
        half = shape.rotated // 2
        self.half = half
        self.tables = [op.f.at(op.field(ROTATE, name), position * (4 * half)) for name in ("cosines", "sines")]
        scale, growth = self.f.var(F32, op.field(ROTATE, "scale")), op.field(ROTATE, "growth")
        with self.f.when(growth.is_null().eq(0)):
            scale.value *= self.f.load(growth, F32, position * 4)
        self.scale = scale.value
        self.rotated_key = op.scratch()

    def emit(self, block: Value, slot: Value) -> None:
        f, op, shape = self.f, self.op, self.shape
        size, padded = shape.head_size, shape.padded
        queries = f.at(op.field(ROTATE, "queries"), self.row * op.field(ROTATE, "query_stride"))
        rotated = f.at(op.field(ROTATE, "target"), self.row * shape.query_stride)
        keys, values = (
            f.at(op.field(ROTATE, n), self.row * op.field(ROTATE, "key_stride")) for n in ("keys", "values")
        )
        has_queries = op.field(ROTATE, "queries").is_null().eq(0)
        with f.when(has_queries), f.loop(0, shape.num_heads) as head:
            self._rotate(f.at(queries, head * (4 * size)), f.at(rotated, head * (4 * padded)), self.scale)
        has_keys = op.field(ROTATE, "keys").is_null().eq(0)
        if shape.has_common_part:
            with f.when(has_keys):
                common = f.at(op.field(ROTATE, "common"), self.row * op.field(ROTATE, "common_stride"))
                self._rotate_first(common, self.rotated_key, None)
        with f.when(has_keys), f.loop(0, shape.num_kv_heads) as head:
            own, rotated_bytes = f.at(keys, head * (4 * shape.own_key_size)), 4 * shape.rotated
            if shape.has_common_part:
                self._keep_rest(f.at(own, -rotated_bytes), self.rotated_key, None)
            else:
                self._rotate(own, self.rotated_key, None)
            column = f.at(block, head * shape.head_bytes + slot * shape.kv_size)
            with f.loop(0, size) as d:
                f.store(self._cached(self.rotated_key, F32, d), column, d * (BLOCK_TOKENS * shape.kv_size))
            width = shape.value_size
            first = head * shape.value_bytes + slot * (shape.padded_values * shape.kv_size) + shape.values_offset
            source, place = f.at(values, head * (4 * width)), f.at(block, first)
            whole = width // LANES * LANES
            for t, begin, end, step in ((F32X16, 0, whole, LANES), (F32, whole, width, 1)):
                with f.loop(begin, end, step) as d:
                    f.store(self._cached(source, t, d), place, d * shape.kv_size)

    def _rotate(self, source: Value, target: Value, scale: Value | None) -> None:
        """Write a head with its first dimensions rotated: those of a pair are half of them apart."""
        self._rotate_first(source, target, scale)
        self._keep_rest(source, target, scale)

    def _rotate_first(self, source: Value, target: Value, scale: Value | None) -> None:
        f, half = self.f, self.half
        lanes = math.gcd(half, LANES)
        t = vec(F32, lanes) if lanes > 1 else F32
        with f.loop(0, 4 * half, 4 * lanes) as at:
            first, second = f.load(source, t, at), f.load(source, t, at + 4 * half)
            cosine, sine = (f.load(table, t, at) for table in self.tables)
            f.store(_scaled(f.fma(first, cosine, -(second * sine)), scale), target, at)
            f.store(_scaled(f.fma(first, sine, second * cosine), scale), target, at + 4 * half)

    def _keep_rest(self, source: Value, target: Value, scale: Value | None) -> None:
        """Write the dimensions of a head that do not rotate."""
        f = self.f
        with f.loop(8 * self.half, 4 * self.shape.head_size, 4) as at:
            f.store(_scaled(f.load(source, F32, at), scale), target, at)

    def _cached(self, source: Value, t: Any, d: Value) -> Value:
        """Return a head's numbers from the d-th on, as the cache keeps them."""
        return narrowed(self.f, self.shape, self.f.load(source, t, d * 4))


def _scaled(value: Value, scale: Value | None) -> Value:
    return value if scale is None else value * scale


def narrowed(f: Function, shape: AttentionShape, value: Value) -> Value:
    """Return float32 as the cache keeps numbers."""
    return value if shape.is_wide else f.max(f.min(value, MAX_FLOAT16), -MAX_FLOAT16).fptrunc()


def emit_product_operation(module: Module, isa: Isa, kind: ProductKind) -> Any:
    """Panels of a product, taken a few at a time: towards the end fewer, so that the threads end together."""
    product = emit_product(module, isa, kind)
    op = Operation(module, f"product_{kind.name}")
    f = op.f
    panels = op.field(PRODUCT, "num_panels")
    chunk = op.shrinking(panels, op.field(PRODUCT, "claim"))
    with claim(f, op.counter, panels, lambda at: whole_claim(f, isa, kind, chunk(at))) as (first, last):
        f.call(product, [op.record, first, last, op.shared("rows"), op.scratch()])
    return f.ret()
