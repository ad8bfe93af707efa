"""The two kernels of attention, and the operations that hand out their work. See `attention` for the order of sums."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from onward.kernels.attention import (
    STEP_BLOCKS,
    STEP_BYTES,
    Attention,
    Grid,
    Lines,
    Softmax,
)
from onward.kernels.attention_shape import BLOCK_TOKENS, STEP_KEYS, AttentionShape, Registers
from onward.kernels.function import Function, Module
from onward.kernels.isa import Isa
from onward.kernels.operations import Operation, claim
from onward.kernels.records import TILE, TILE_BYTES
from onward.kernels.values import F32, F32X16, I64, LANES, PTR, VECTOR_BYTES, Value

BLOCK_VECTORS = BLOCK_TOKENS // LANES


class _Memory:
    """Hands out a thread's scratch memory, in lines of 64 bytes."""

    def __init__(self, f: Function | None, base: Value | None) -> None:
        self._f, self._base, self.used = f, base, 0

    def take(self, num_bytes: int) -> Any:
        at, self.used = self.used, self.used + -(-num_bytes // 64) * 64
        return self._f.at(self._base, at) if self._f is not None and self._base is not None else None


class _TileMemory:
    """Buffers of the tile kernel, float32: queries [lines][padded head size], sums [lines][padded value size]."""

    def __init__(self, f: Any, shape: AttentionShape, isa: Isa, take: Callable[[int], Any]) -> None:
        per = Registers.of(isa).lines
        self.lines = -(-shape.tile_rows * shape.group // per) * per
        row, value = shape.padded * 4, shape.padded_values * 4
        self.queries, self.sums, self.all_sums = (take(self.lines * size) for size in (row, value, value))
        self.scores = take(self.lines * STEP_BYTES)
        self.keys = take(STEP_KEYS * row)
        """[block][head size][BLOCK_TOKENS]"""
        self.values = take(STEP_KEYS * value)
        """[strip][STEP_KEYS][dimensions of a strip]"""
        self.softmax = Softmax(f, self.lines, take)


class _RowMemory:
    """Buffers of the row kernel, for all heads."""

    def __init__(self, f: Any, shape: AttentionShape, take: Callable[[int], Any]) -> None:
        row = shape.num_heads * shape.padded_values * 4
        self.sums, self.all_sums = take(row), take(row)
        self.scores = take(shape.num_heads * STEP_BYTES)
        self.softmax = Softmax(f, shape.num_heads, take)


def attention_scratch_bytes(shape: AttentionShape, isa: Isa) -> int:
    """Return the scratch memory that a thread needs."""
    tile, row = _Memory(None, None), _Memory(None, None)
    _TileMemory(None, shape, isa, tile.take)
    _RowMemory(None, shape, row.take)
    return max(tile.used, row.used)


def _emit_tile(module: Module, isa: Isa, shape: AttentionShape) -> Any:
    """Emit (record, context, tile, kv head, scratch)."""
    f = Function(module, f"attend_tile_{shape.name}", [PTR, PTR, PTR, I64, PTR], inline=False)
    record, context, place, kv_head, scratch = f.args
    row, rows = TILE.load(f, place, "first_row"), TILE.load(f, place, "rows")
    tile = _Tile(f, isa, Attention(f, shape, record, context, row, kv_head), place, rows, scratch)
    tile.run(tile.end)
    return f.ret()


class _Tile(Lines):
    def __init__(self, f: Function, isa: Isa, attention: Attention, place: Value, rows: Value, scratch: Value) -> None:
        shape = attention.shape
        super().__init__(f, attention, place, rows * shape.group, _TileMemory(f, shape, isa, _Memory(f, scratch).take))
        self.rows = rows
        self.registers = Registers.of(isa)
        widest = self.registers.vectors
        self.strip_vectors = widest if shape.padded_values % (LANES * widest) == 0 else 1
        """Of a strip of dimensions, whose sums are in registers."""
        self.strip_bytes = self.strip_vectors * VECTOR_BYTES
        self.groups = (self.lines + (self.registers.lines - 1)) // self.registers.lines
        self.end = attention.position + rows

    def rows_and_heads(self, line: Value) -> tuple[Value, Value]:
        return line // self.shape.group, line % self.shape.group

    def begin(self) -> None:
        f, memory, group = self.f, self.memory, self.shape.group
        for buffer, size in ((memory.queries, self.query_bytes), (memory.all_sums, self.row_bytes)):
            self.clear(buffer, self.groups * (self.registers.lines * size))
        with f.loop(0, self.rows) as i, f.loop(0, group * self.query_bytes, VECTOR_BYTES) as at:
            query = f.load(self.attention.queries, F32X16, i * self.shape.query_stride + at)
            f.store(query, memory.queries, i * (group * self.query_bytes) + at)
        with f.loop(0, self.groups * self.registers.lines) as i:
            memory.softmax.begin(i, self.attention.sink(i % group))

    def compute(self, first: Value, last: Value) -> None:
        self.clear(self.memory.sums, self.groups * (self.registers.lines * self.row_bytes))
        self.memory.softmax.begin_segment(self.groups * self.registers.lines)
        with self.f.loop(first, last) as step:
            self._step(step)

    def _step(self, step: Value) -> None:
        f = self.f
        start = step * STEP_KEYS
        keys = f.min(self.end - start, STEP_KEYS)
        blocks = (keys + (BLOCK_TOKENS - 1)) // BLOCK_TOKENS
        with f.loop(0, blocks) as j:
            self._widen(step, j, keys)
        with f.loop(0, blocks) as j:
            self._prefetch(step, j)
            self._scores(start, j)
        self.attention.soften(
            self.memory.scores, self.memory.softmax, self.lines, start, self.attention.position, self.end - 1,
            self.shape.group,
        )  # fmt: skip
        with f.loop(0, self.row_bytes // self.strip_bytes) as strip, f.loop(0, self.groups) as group:
            self._weighted(start, keys, strip, group)

    def _widen(self, step: Value, j: Value, keys: Value) -> None:
        """Copy a block's keys and values of this head to the scratch memory, as float32."""
        f, shape = self.f, self.shape
        key, value = self.attention.keys_and_values(step * STEP_BLOCKS + j)
        target = f.at(self.memory.keys, j * (shape.padded * BLOCK_TOKENS * 4))
        with f.loop(0, shape.padded * BLOCK_TOKENS, LANES) as i:
            f.store(self.attention.cached(key, i * shape.kv_size), target, i * 4)
        with f.loop(0, f.min(keys - j * BLOCK_TOKENS, BLOCK_TOKENS)) as t:
            place = f.at(self.memory.values, (j * BLOCK_TOKENS + t) * self.strip_bytes)
            source = f.at(value, t * (shape.padded_values * shape.kv_size))
            for vector in range(shape.padded_values // LANES):
                strip, within = divmod(vector, self.strip_vectors)
                cached = self.attention.cached(source, vector * LANES * shape.kv_size)
                f.store(cached, place, strip * (STEP_KEYS * self.strip_bytes) + within * VECTOR_BYTES)

    def _prefetch(self, step: Value, j: Value) -> None:
        f = self.f
        last = (self.end - 1) // BLOCK_TOKENS
        key, value = self.attention.keys_and_values(f.min((step + 1) * STEP_BLOCKS + j, last))
        for begin, size in ((key, self.shape.head_bytes), (value, self.shape.value_bytes)):
            with f.loop(0, size, 64) as line:
                f.prefetch(begin, line, 2)

    def _scores(self, start: Value, j: Value) -> None:
        f, per, width = self.f, self.registers.lines, self.registers.vectors
        keys = f.at(self.memory.keys, j * (self.shape.padded * BLOCK_TOKENS * 4))
        # groups whose rows all come before these keys need no scores: they are masked
        early = f.max(start + j * BLOCK_TOKENS - self.attention.position, 0) * self.shape.group // per
        with f.loop(early, self.groups) as group, f.loop(0, BLOCK_VECTORS, width) as vector:
            queries = f.at(self.memory.queries, group * (per * self.query_bytes))
            columns = f.at(keys, vector * VECTOR_BYTES)
            grid = Grid(f, per, width, lambda i, w: f.const(F32X16, 0.0))
            with f.loop(0, self.shape.padded, 2) as first:
                for d in (first, first + 1):
                    query, column = f.at(queries, d * 4), f.at(columns, d * (BLOCK_TOKENS * 4))
                    _add(f, grid, query, self.query_bytes, column)
            scores = f.at(self.memory.scores, group * (per * STEP_BYTES) + (j * BLOCK_VECTORS + vector) * VECTOR_BYTES)
            _store(f, grid, scores, STEP_BYTES)

    def _weighted(self, start: Value, keys: Value, strip: Value, group: Value) -> None:
        """Add a step's values, a strip of dimensions of a group of lines."""
        f, per, strip_bytes = self.f, self.registers.lines, self.strip_bytes
        values = f.at(self.memory.values, strip * (STEP_KEYS * strip_bytes))
        sums = f.at(self.memory.sums, group * (per * self.row_bytes) + strip * strip_bytes)
        weights = f.at(self.memory.scores, group * (per * STEP_BYTES))
        scales = f.at(self.memory.softmax.scale, group * (per * 4))
        grid = Grid(
            f,
            per,
            self.strip_vectors,
            lambda i, w: f.load(sums, F32X16, i * self.row_bytes + w * VECTOR_BYTES) * f.load(scales, F32, i * 4),
        )

        def position(i: int) -> Value:
            """Of a line, within the step."""
            return self.attention.position + (group * per + i) // self.shape.group - start

        common = f.max(f.min(position(0) + 1, keys), 0)
        with f.loop(0, common) as t:
            _add(f, grid, f.at(weights, t * 4), STEP_BYTES, f.at(values, t * strip_bytes))
        with f.loop(common, f.min(position(per - 1) + 1, keys)) as t:  # 0 times infinity is not 0
            at = t
            grid.add(
                lambda i: f.load(weights, F32, at * 4 + i * STEP_BYTES),
                lambda w: f.load(values, F32X16, at * strip_bytes + w * VECTOR_BYTES),
                lambda i: at <= position(i),
            )
        _store(f, grid, sums, self.row_bytes)


def _add(f: Function, grid: Grid, scalars: Value, stride: int, vectors: Value) -> None:
    grid.add(lambda i: f.load(scalars, F32, i * stride), lambda w: f.load(vectors, F32X16, w * VECTOR_BYTES))


def _store(f: Function, grid: Grid, place: Value, stride: int) -> None:
    grid.each(lambda i, w, value: f.store(value, place, i * stride + w * VECTOR_BYTES))


def _emit_row(module: Module, isa: Isa, shape: AttentionShape) -> Any:
    """Emit (record, context, tile, first kv head, end, scratch), for a tile of one row."""
    f = Function(module, f"attend_row_{shape.name}", [PTR, PTR, PTR, I64, I64, PTR], inline=False)
    record, context, place, kv_head, end, scratch = f.args
    attention = Attention(f, shape, record, context, TILE.load(f, place, "first_row"), kv_head)
    _Row(f, isa, attention, place, end - kv_head, scratch).run(attention.position + 1)
    return f.ret()


class _Row(Lines):
    def __init__(self, f: Function, isa: Isa, attention: Attention, place: Value, heads: Value, scratch: Value) -> None:
        shape = attention.shape
        super().__init__(f, attention, place, heads * shape.group, _RowMemory(f, shape, _Memory(f, scratch).take))
        self.heads = heads
        held = Registers.of(isa).lines * Registers.of(isa).vectors
        self.width = max(
            w for w in (1, 2, 4) if w == 1 or (w * shape.group <= held and shape.padded_values % (LANES * w) == 0)
        )
        self.last_block = attention.position // BLOCK_TOKENS

    def rows_and_heads(self, line: Value) -> tuple[Value, Value]:
        return self.f.i64(0), line

    def begin(self) -> None:
        f, memory = self.f, self.memory
        with f.loop(0, self.lines) as i:
            memory.softmax.begin(i, self.attention.sink(i))
        self.clear(memory.all_sums, self.lines * self.row_bytes)

    def compute(self, first: Value, last: Value) -> None:
        self.clear(self.memory.sums, self.lines * self.row_bytes)
        self.memory.softmax.begin_segment(self.lines)
        with self.f.loop(first, last) as step:
            self._step(step)

    def _block(self, index: Value) -> tuple[Value, Value]:
        """Return keys and values of a block, or of the last one."""
        return self.attention.keys_and_values(self.f.min(index, self.last_block))

    def _step(self, step: Value) -> None:
        f, memory, position = self.f, self.memory, self.attention.position
        start = step * STEP_KEYS
        keys = f.min(position + 1 - start, STEP_KEYS)
        with f.loop(0, (keys + (LANES - 1)) // LANES, self.width) as vector, f.loop(0, self.heads) as head:
            self._scores(step, vector, head)
        self.attention.soften(memory.scores, memory.softmax, self.lines, start, position, position, None)
        with f.loop(0, self.heads) as head, f.loop(0, self.shape.padded_values // (LANES * self.width)) as strip:
            self._weighted(step, keys, head, strip)

    def _scores(self, step: Value, vector: Value, head: Value) -> None:
        f, shape, width, group = self.f, self.shape, self.width, self.shape.group
        blocks = range(max(1, width // BLOCK_VECTORS))
        first = step * STEP_BLOCKS + vector // BLOCK_VECTORS
        within = f.i64(0) if width > 1 else vector % BLOCK_VECTORS * (LANES * shape.kv_size)
        at = head * shape.head_bytes + within
        keys = [f.at(self._block(first + i)[0], at) for i in blocks]
        coming = [f.at(self._block(first + STEP_BLOCKS + i)[0], head * shape.head_bytes) for i in blocks]
        queries = f.at(self.attention.queries, head * (group * self.query_bytes))
        grid = Grid(f, group, width, lambda i, w: f.const(F32X16, 0.0))
        with f.loop(0, shape.padded, 2) as start:
            for d in (start, start + 1):
                row = d * (BLOCK_TOKENS * shape.kv_size)
                for key in coming:
                    f.prefetch(key, row, 2)
                grid.add(
                    lambda i, d=d: f.load(queries, F32, d * 4 + i * self.query_bytes),  # type: ignore[misc]
                    lambda w, row=row: self.attention.cached(  # type: ignore[misc]
                        keys[w // BLOCK_VECTORS], row + w % BLOCK_VECTORS * LANES * shape.kv_size
                    ),
                )
        scores = f.at(self.memory.scores, head * (group * STEP_BYTES) + vector * VECTOR_BYTES)
        _store(f, grid, scores, STEP_BYTES)

    def _weighted(self, step: Value, keys: Value, head: Value, strip: Value) -> None:
        f, shape, width, group = self.f, self.shape, self.width, self.shape.group
        line, strip_bytes = head * group, LANES * width * shape.kv_size
        sums = f.at(self.memory.sums, line * self.row_bytes + strip * (LANES * width * 4))
        scales = f.at(self.memory.softmax.scale, line * 4)
        grid = Grid(
            f,
            group,
            width,
            lambda i, w: f.load(sums, F32X16, i * self.row_bytes + w * VECTOR_BYTES) * f.load(scales, F32, i * 4),
        )
        with f.loop(0, (keys + (BLOCK_TOKENS - 1)) // BLOCK_TOKENS) as j:
            block = step * STEP_BLOCKS + j
            values = f.at(self._block(block)[1], head * shape.value_bytes + strip * strip_bytes)
            coming = f.at(self._block(block + STEP_BLOCKS)[1], head * shape.value_bytes)
            weights = f.at(self.memory.scores, line * STEP_BYTES + j * (BLOCK_TOKENS * 4))
            with f.loop(0, f.min(keys - j * BLOCK_TOKENS, BLOCK_TOKENS)) as t:
                f.prefetch(coming, (strip * BLOCK_TOKENS + t) * strip_bytes, 2)
                value = f.at(values, t * (shape.padded_values * shape.kv_size))
                weight = f.at(weights, t * 4)
                grid.add(
                    lambda i, weight=weight: f.load(weight, F32, i * STEP_BYTES),  # type: ignore[misc]
                    lambda w, value=value: self.attention.cached(value, w * LANES * shape.kv_size),  # type: ignore[misc]
                )
        grid.each(lambda i, w, value: f.store(value, sums, i * self.row_bytes + w * VECTOR_BYTES))


def emit_attention(module: Module, isa: Isa, shape: AttentionShape) -> Any:
    """Emit the operation. A piece is a tile and one key-value head, or all."""
    tile = _emit_tile(module, isa, shape)
    row = _emit_row(module, isa, shape)
    op = Operation(module, f"attend_{shape.name}")
    f, scratch = op.f, op.scratch()
    count, heads = op.shared("num_tiles"), shape.num_kv_heads
    are_together = op.shared("are_heads_together").ne(0)
    with claim(f, op.counter, count * heads, f.select(are_together, f.i64(heads), f.i64(1))) as (first, last):
        # the last tile has the longest context: it goes first
        place = f.at(op.shared("tiles"), (count - 1 - first // heads) * TILE_BYTES)
        is_row = TILE.load(f, place, "rows").eq(1)
        with f.when(is_row):
            head = first % heads
            f.call(row, [op.record, op.context, place, head, head + last - first, scratch])
        with f.when(is_row.eq(0)), f.loop(first, last) as piece:
            f.call(tile, [op.record, op.context, place, piece % heads, scratch])
    return f.ret()


def emit_merge(module: Module, isa: Isa, shape: AttentionShape) -> Any:
    """Emit the operation that follows it: the results of rows whose segments several threads computed, in their order.
    A piece is a row and a key-value head."""
    op = Operation(module, f"merge_{shape.name}")
    f, scratch = op.f, op.scratch()
    count, heads = op.shared("num_merged"), shape.num_kv_heads
    with claim(f, op.counter, count * heads, f.i64(1)) as (piece, _):
        row = f.load(op.shared("merged"), I64, piece // heads * 8)
        attention = Attention(f, shape, op.record, op.context, row, piece % heads)
        lines = _Row(f, isa, attention, op.shared("tiles"), f.i64(1), scratch)
        lines.run_merge(attention.position + 1)
    return f.ret()
