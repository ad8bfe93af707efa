"""Attention over a paged KV cache: streaming softmax, float32 sums, one order of operations per query row.

A line is one query row of one head. It sees the keys in segments of 1,024 and within them in steps of 64, both aligned
to position 0 and ascending. For each step of a segment

    s[t] = fma over d ascending, from 0, of key[d][t] * query[d]        the query carries scale * log2(e)
    new  = max(m, largest s)
    p[t] = 2^(s[t] - new), 0 where masked;  c = 2^(m - new);  m = new
    l    = fma(l, c, sum of p)                                          vectors pairwise, then lanes
    o[d] = o[d] * c, then fma over t ascending of value[t][d] * p[t]

and for each segment, with M, L, O of those before it,

    new = max(M, m);  a = 2^(M - new);  b = 2^(m - new);  M = new
    L = fma(l, b, L * a);  O[d] = fma(o[d], b, O[d] * a)

at the end O[d] * (1 / L) + 0. A step or segment that is masked as a whole changes nothing, and a masked key at most the
sign of a zero, which the last + 0 removes. So a line's bits depend on its own position, query, keys and values alone,
and the two kernels agree: `tile` for several rows of one sequence, `row` for one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from onward.kernels.attention_shape import BLOCK_TOKENS, SEGMENT_KEYS, STEP_KEYS, AttentionShape
from onward.kernels.function import Function
from onward.kernels.maths import LOG2_E, exp2
from onward.kernels.records import ALL_SEGMENTS, ATTEND, CONTEXT, TILE
from onward.kernels.values import F32, F32X16, I32, I64, LANES, VECTOR_BYTES, Value, vec

MASKED = -3e38
"""A masked score."""
FLOOR = -1e30
"""The maximum before any key: 2 to a masked score minus it is still 0."""
STEP_BYTES = 4 * STEP_KEYS
STEP_KEYS_SHIFT = STEP_KEYS.bit_length() - 1
STEP_VECTORS = STEP_KEYS // LANES
STEP_BLOCKS = STEP_KEYS // BLOCK_TOKENS
SEGMENT_STEPS = SEGMENT_KEYS // STEP_KEYS


class Grid:
    """Lines x vectors of sums in registers; `add` adds the outer product of scalars and vectors."""

    def __init__(self, f: Function, lines: int, vectors: int, initial: Callable[[int, int], Value]) -> None:
        self.f, self.lines, self.vectors = f, range(lines), range(vectors)
        self._sums = [[f.var(F32X16, initial(i, j)) for j in self.vectors] for i in self.lines]

    def add(
        self,
        scalar: Callable[[int], Value],
        vector: Callable[[int], Value],
        is_allowed: Callable[[int], Value] | None = None,
    ) -> None:
        """`is_allowed`: of which lines; the others keep their sums."""
        f = self.f
        held = [vector(j) for j in self.vectors]
        for i in self.lines:
            x = f.splat(scalar(i), LANES)
            for j in self.vectors:
                old = self._sums[i][j].value
                new = f.fma(held[j], x, old)
                self._sums[i][j].set(f.select(is_allowed(i), new, old) if is_allowed else new)

    def each(self, use: Callable[[int, int, Value], None]) -> None:
        for i in self.lines:
            for j in self.vectors:
                use(i, j, self._sums[i][j].value)


class Softmax:
    """Arrays of a number per line, in memory: maxima and sums of the segment and of all before it. `take` allocates
    memory of so many bytes."""

    def __init__(self, f: Function, lines: int, take: Callable[[int], Value]) -> None:
        self.f = f
        size = -(-lines // LANES) * VECTOR_BYTES
        self.maximum, self.sum, self.scale, self.spare = (take(size) for _ in range(4))
        self.all_maximum, self.all_sum = take(size), take(size)

    def begin(self, line: Value, sink: Value | None) -> None:
        """Begin a line. `sink`: the score of a key of its own, without a value, in units of log2(e)."""
        f = self.f
        f.store(f.f32(FLOOR) if sink is None else sink, self.all_maximum, line * 4)
        f.store(f.f32(0.0 if sink is None else 1.0), self.all_sum, line * 4)

    def begin_segment(self, lines: Value) -> None:
        f = self.f
        with self._vectors(lines) as at:
            f.store(f.const(F32X16, FLOOR), self.maximum, at)
            f.store(f.const(F32X16, 0.0), self.sum, at)

    def _vectors(self, lines: Value) -> Any:
        return self.f.loop(0, lines * 4, VECTOR_BYTES)

    def rescale(self, lines: Value) -> None:
        """With the largest scores of a step in `spare`: raise the maxima, and store what sums are multiplied by."""
        f = self.f
        with self._vectors(lines) as at:
            old = f.load(self.maximum, F32X16, at)
            new = f.max(old, f.load(self.spare, F32X16, at))
            f.store(new, self.maximum, at)
            f.store(exp2(f, old - new), self.scale, at)

    def add_sums(self, lines: Value) -> None:
        """With the sums of a step's weights in `spare`."""
        f = self.f
        with self._vectors(lines) as at:
            new = f.fma(f.load(self.sum, F32X16, at), f.load(self.scale, F32X16, at), f.load(self.spare, F32X16, at))
            f.store(new, self.sum, at)

    def merge(self, lines: Value) -> None:
        """End a segment: `scale` and `spare` become the factors of what was before it and of its own."""
        f = self.f
        with self._vectors(lines) as at:
            old, own = f.load(self.all_maximum, F32X16, at), f.load(self.maximum, F32X16, at)
            new = f.max(old, own)
            before, within = exp2(f, old - new), exp2(f, own - new)
            f.store(new, self.all_maximum, at)
            f.store(before, self.scale, at)
            f.store(within, self.spare, at)
            total = f.fma(f.load(self.sum, F32X16, at), within, f.load(self.all_sum, F32X16, at) * before)
            f.store(total, self.all_sum, at)


class Attention:
    """What both kernels share. `row`: the first query row; `kv_head`: the first head."""

    def __init__(
        self, f: Function, shape: AttentionShape, record: Value, context: Value, row: Value, kv_head: Value
    ) -> None:
        self.f, self.shape, self.record, self._context = f, shape, record, context
        self.position = f.load(CONTEXT.load(f, context, "positions"), I64, row * 8)
        self._table = f.load_pointer(CONTEXT.load(f, context, "tables"), row * 8)
        cache = ATTEND.load(f, record, "cache")
        self._keys = f.at(cache, kv_head * shape.head_bytes)
        self._values = f.at(cache, kv_head * shape.value_bytes + shape.values_offset)
        first_head = kv_head * shape.group
        self.first_head = first_head
        self.queries = f.at(
            ATTEND.load(f, record, "queries"),
            row * ATTEND.load(f, record, "query_stride") + first_head * (shape.padded * 4),
        )
        self._row = row
        self._lane = f.vconst(vec(I32, LANES), range(LANES))

    def target_of(self, row: Value, head: Value) -> Value:
        """Return where the result of a row and a head begins, both counted from the first."""
        f = self.f
        at = (self._row + row) * ATTEND.load(f, self.record, "target_stride")
        return f.at(ATTEND.load(f, self.record, "target"), at + (self.first_head + head) * (self.shape.value_size * 4))

    def first_step(self) -> Value:
        """Return the first step that the first row sees keys of."""
        f = self.f
        if not self.shape.has_window:
            return f.i64(0)
        return f.max(self._first_key(self.position), 0) >> STEP_KEYS_SHIFT

    def _first_key(self, position: Value) -> Value:
        """Return the first position that a row at this one sees, of a shape with windows; a window that is not full yet
        begins before position 0."""
        window = ATTEND.load(self.f, self.record, "window")
        return position - (position % window if self.shape.has_chunks else window - 1)

    def partial(self, row: Value, head: Value, segment: Value) -> Value:
        """Return where a segment's sums of a row and a head are kept, both counted from the first, until they are
        merged: a line of float32, then its maximum and its sum of weights."""
        f, shape = self.f, self.shape
        slot = f.load(CONTEXT.load(f, self._context, "slots"), I64, (self._row + row) * 8) + segment
        line = slot * shape.num_heads + self.first_head + head
        return f.at(CONTEXT.load(f, self._context, "partials"), line * shape.partial_bytes)

    def segments(self, end: Value, begin: Value, stop: Value, use: Callable[[Value, Value, Value], None]) -> None:
        """Emit `use(segment, first step, last step)` for those of the segments `begin` to `stop` that have keys before
        `end` which the first row sees."""
        f, first = self.f, self.first_step()
        steps = (end + (STEP_KEYS - 1)) >> STEP_KEYS_SHIFT
        begin = f.max(first // SEGMENT_STEPS, begin)
        with f.loop(begin, f.min((steps + (SEGMENT_STEPS - 1)) // SEGMENT_STEPS, stop)) as segment:
            start = segment * SEGMENT_STEPS
            use(segment, f.max(start, first), f.min(start + SEGMENT_STEPS, steps))

    def keys_and_values(self, block: Value) -> tuple[Value, Value]:
        """Return pointers to the first head's keys and values of a block of the table."""
        f = self.f
        at = f.load(self._table, I32, block * 4).zext(I64) * ATTEND.load(f, self.record, "cache_stride")
        return f.at(self._keys, at), f.at(self._values, at)

    def cached(self, pointer: Value, offset: Value | int) -> Value:
        """Return 16 numbers of the cache as float32."""
        value = self.f.load(pointer, vec(self.shape.kv_type, LANES), offset)
        return value if self.shape.is_wide else value.fpext()

    def sink(self, head: Value) -> Value | None:
        f = self.f
        if not self.shape.has_sinks:
            return None
        return f.load(ATTEND.load(f, self.record, "sinks"), F32, (self.first_head + head) * 4) * LOG2_E

    def soften(
        self, scores: Value, softmax: Softmax, lines: Value, start: Value, first: Value, last: Value, group: int | None
    ) -> None:
        """Emit the step from scores to weights, in place, and the sums' update. `start`: the step's first position; the
        rows are at positions `first` to `last`, `group` lines at each; None: all lines are of one row."""
        f, shape = self.f, self.shape

        def line(i: Value) -> list[Value]:
            return [f.load(scores, F32X16, i * STEP_BYTES + j * VECTOR_BYTES) for j in range(STEP_VECTORS)]

        def put(i: Value, values: Sequence[Value]) -> None:
            for j, value in enumerate(values):
                f.store(value, scores, i * STEP_BYTES + j * VECTOR_BYTES)

        def find_largest(is_masked: bool) -> None:
            with f.loop(0, lines) as i:
                values = line(i)
                if shape.has_cap:
                    values = self._capped(values)
                if is_masked:
                    values = self._masked(values, start, first if group is None else first + i // group)
                if shape.has_cap or is_masked:
                    put(i, values)
                largest = f.max(f.max(values[0], values[1]), f.max(values[2], values[3]))
                f.store(f.hmax(largest), softmax.spare, i * 4)

        is_edge = start + STEP_KEYS > first + 1
        if shape.has_window:
            is_edge = is_edge | (start < self._first_key(last))
        with f.otherwise(is_edge) as (edge, inner):
            with edge:
                find_largest(True)
            with inner:
                find_largest(False)
        softmax.rescale(lines)
        with f.loop(0, lines) as i:
            maximum = f.splat(f.load(softmax.maximum, F32, i * 4), LANES)
            weights = [exp2(f, value - maximum) for value in line(i)]
            put(i, weights)
            f.store(f.hsum((weights[0] + weights[1]) + (weights[2] + weights[3])), softmax.spare, i * 4)
        softmax.add_sums(lines)

    def _capped(self, values: list[Value]) -> list[Value]:
        """Return cap * tanh(score / cap), in units of log2(e)."""
        f = self.f
        cap = f.splat(ATTEND.load(f, self.record, "cap"), LANES) * LOG2_E
        double = f.const(F32X16, 2 * LOG2_E) / cap
        powers = [exp2(f, f.min(value * double, 126.0)) for value in values]
        return [cap * (1.0 - f.const(F32X16, 2.0) / (power + 1.0)) for power in powers]

    def _masked(self, values: list[Value], start: Value, position: Value) -> list[Value]:
        """Return scores of the keys from `start` on, without those after `position`, or before its window."""
        f, found = self.f, []
        last = f.splat((position - start).trunc(I32), LANES)
        first = f.splat((self._first_key(position) - start).trunc(I32), LANES) if self.shape.has_window else None
        for j, value in enumerate(values):
            lane = self._lane + LANES * j
            is_seen = lane <= last
            if first is not None:
                is_seen = is_seen & (lane >= first)
            found.append(f.select(is_seen, value, f.const(F32X16, MASKED)))
        return found

    def write(self, sums: Value, total: Value, target: Value) -> None:
        """Emit the store of a line's result: its sums, padded, divided by the sum of its weights."""
        f, size = self.f, self.shape.value_size
        inverse = f.f32(1.0) / total
        with f.loop(0, size // LANES * VECTOR_BYTES, VECTOR_BYTES) as at:
            f.store(f.load(sums, F32X16, at) * inverse + 0.0, target, at)
        if size % LANES:
            with f.loop(size // LANES * LANES, size) as d:
                f.store(f.load(sums, F32, d * 4) * inverse + 0.0, target, d * 4)


class Lines:
    """What both kernels do with a tile's lines: compute segments, and merge them or keep them until they are merged.

    `place`: the tile (records.TILE); `lines`: how many there are; `memory`: buffers of the segment and of all.
    """

    def __init__(self, f: Function, attention: Attention, place: Value, lines: Value, memory: Any) -> None:
        self.f, self.attention, self.lines, self.memory = f, attention, lines, memory
        self.shape = attention.shape
        self.query_bytes, self.row_bytes = self.shape.padded * 4, self.shape.padded_values * 4
        self._first, self._last = (TILE.load(f, place, name) for name in ("first_segment", "last_segment"))

    def rows_and_heads(self, line: Value) -> tuple[Value, Value]:
        """Return a line's row and head, counted from the first."""
        raise NotImplementedError

    def begin(self) -> None:
        """Emit the state before any key."""
        raise NotImplementedError

    def compute(self, first: Value, last: Value) -> None:
        """Emit a segment's sums, of steps `first` to `last`."""
        raise NotImplementedError

    def run(self, end: Value) -> None:
        """Emit all: the tile's segments of the keys before `end`; the results, if it has all segments."""
        f = self.f
        is_part = self._last < ALL_SEGMENTS
        self.begin()

        def segment(number: Value, first: Value, last: Value) -> None:
            self.compute(first, last)
            with f.otherwise(is_part) as (part, whole):
                with part:
                    self._keep(number)
                with whole:
                    self._merge()

        self.attention.segments(end, self._first, self._last, segment)
        with f.when(is_part.eq(0)):
            self.write()

    def run_merge(self, end: Value) -> None:
        """Emit the results from segments that were kept."""
        self.begin()

        def segment(number: Value, first: Value, last: Value) -> None:
            self._recall(number)
            self._merge()

        self.attention.segments(end, self.f.i64(0), self.f.i64(ALL_SEGMENTS), segment)
        self.write()

    def write(self) -> None:
        f, memory = self.f, self.memory
        with f.loop(0, self.lines) as i:
            total = f.load(memory.softmax.all_sum, F32, i * 4)
            target = self.attention.target_of(*self.rows_and_heads(i))
            self.attention.write(f.at(memory.all_sums, i * self.row_bytes), total, target)

    def _merge(self) -> None:
        f, memory = self.f, self.memory
        memory.softmax.merge(self.lines)
        with f.loop(0, self.lines) as i:
            factors = [f.load(each, F32, i * 4) for each in (memory.softmax.scale, memory.softmax.spare)]
            before, within = (f.splat(factor, LANES) for factor in factors)
            with f.loop(i * self.row_bytes, (i + 1) * self.row_bytes, VECTOR_BYTES) as at:
                total, own = f.load(memory.all_sums, F32X16, at), f.load(memory.sums, F32X16, at)
                f.store(f.fma(own, within, total * before), memory.all_sums, at)

    def _keep(self, segment: Value) -> None:
        f = self.f
        with f.loop(0, self.lines) as i:
            kept = self.attention.partial(*self.rows_and_heads(i), segment)
            with f.loop(0, self.row_bytes, VECTOR_BYTES) as at:
                f.store(f.load(self.memory.sums, F32X16, i * self.row_bytes + at), kept, at)
            for place, array in self._numbers():
                f.store(f.load(array, F32, i * 4), kept, place)

    def _recall(self, segment: Value) -> None:
        f = self.f
        with f.loop(0, self.lines) as i:
            kept = self.attention.partial(*self.rows_and_heads(i), segment)
            with f.loop(0, self.row_bytes, VECTOR_BYTES) as at:
                f.store(f.load(kept, F32X16, at), self.memory.sums, i * self.row_bytes + at)
            for place, array in self._numbers():
                f.store(f.load(kept, F32, place), array, i * 4)

    def _numbers(self) -> list[tuple[int, Value]]:
        """Return where a line's maximum and sum of weights are kept, and their arrays."""
        return [(self.row_bytes, self.memory.softmax.maximum), (self.row_bytes + 4, self.memory.softmax.sum)]

    def clear(self, buffer: Value, num_bytes: Value) -> None:
        with self.f.loop(0, num_bytes, VECTOR_BYTES) as at:
            self.f.store(self.f.const(F32X16, 0.0), buffer, at)
