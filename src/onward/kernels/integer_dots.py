"""Products of integer weights with int8 activations: exact sums within a group of 32, then float32.

For a row of activations and one output, the definition in every form, of every type and any number of rows:

    for each block of weights, ascending:
        total = minima = 0.0
        for each group of 32, ascending:
            exact = sum of (weight - offset) * scale * activation, in int32; with float32 scales per 16, each half's sum
                times its scale, which is exact in float32, and both added
            total = fma(float(exact), activation scale, total)
            minima = fma(float(minimum), activation scale * sum of activations, minima), or with a minimum per 16
            minima = fma(float(exact sum of minimum * sum of activations), activation scale, minima)
        result = fma(factor, total, result)
        result = fma(min_factor, minima, result)

so a row's bits depend neither on other rows nor on how products are cut.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from onward.kernels.activations import INT8_PAIR, INT8_SCALE, INT8_SCALED_SUM, INT8_SUM, broadcast_float
from onward.kernels.function import Function, Variable
from onward.kernels.isa import Isa, joined
from onward.kernels.values import F32, I8, I16, I32, VECTOR_BYTES, Type, Value, vec
from onward.kernels.weight_types import PANEL_ROWS, BlockReader, Head, WeightType

WORDS = 8
"""Of four weights, in a group."""
_SIGN_BITS = 0x80808080
_SIGN_OFFSET = 128


Words = Callable[[int, int], Value]


@dataclass(frozen=True)
class Block:
    """A block of weights on its way into the sums: packed in a panel, or unpacked in memory.

    `words(step)(e, i)`: word i of group e of a step of `step_groups` groups. `scale(index)`, `minimum(index)`: of the
    block, the latter as float32, or as int32 where there is one per 16 weights.
    """

    factor: Value
    min_factor: Value | None
    step_groups: int
    words: Callable[[Value], Words]
    scale: Callable[[Value], Value]
    minimum: Callable[[Value], Value]


def as_pairs(scale: Value) -> Value:
    """Return int32 as two equal int16 in every lane."""
    return (scale & 0xFFFF) | (scale << 16)


class Int8:
    """int8 activations. Unpacked weights are bytes, as they are multiplied. `f`: the function that is being written.

    Blocks of several panels are multiplied as one with more lanes. Where a processor sums four products of bytes,
    scales are multiplied in as float32, which is exact: with every type, sums with their scales are below 2^24
    (Q6_K and Q8_X come nearest: 32 weights of at most 4,096 with their scale, times 127). Elsewhere pairs are summed in
    int16, as many as fit, and the multiplication with the scale widens them.
    """

    block_bytes = 48
    """Of 32 activations."""
    group_bytes = WORDS * VECTOR_BYTES
    """Of 32 unpacked weights of each row."""

    def __init__(self, f: Function, isa: Isa, kind: WeightType, panels: int = 1) -> None:
        """`panels`: that are multiplied together."""
        self.f, self.isa, self.kind = f, isa, kind
        self.lanes = panels * PANEL_ROWS
        self.i32, self.f32 = vec(I32, self.lanes), vec(F32, self.lanes)
        self.i16, self.i8 = vec(I16, 2 * self.lanes), vec(I8, 4 * self.lanes)

    # the head of a block, unpacked: scales | minima as float32 | factor | factor of the minima; then its weights

    @classmethod
    def _head_offsets(cls, kind: WeightType) -> tuple[int, int]:
        minima = kind.groups * kind.scales_per_group * VECTOR_BYTES
        return minima, minima + kind.groups * kind.minima_per_group * VECTOR_BYTES

    @classmethod
    def head_bytes(cls, kind: WeightType) -> int:
        return cls._head_offsets(kind)[1] + 2 * VECTOR_BYTES

    @classmethod
    def unpacked_bytes(cls, kind: WeightType) -> int:
        return cls.head_bytes(kind) + kind.groups * cls.group_bytes

    def _store_head(self, head: Head, target: Value) -> None:
        """Store scales and minima."""
        f, (at_minima, _) = self.f, self._head_offsets(self.kind)
        for index, scale in enumerate(head.scales):
            f.store(self._scale(scale), target, index * VECTOR_BYTES, VECTOR_BYTES)
        for index, minimum in enumerate(head.minima):
            stored = minimum if self.kind.minimum_weights == 16 else minimum.to_f32()
            f.store(stored, target, at_minima + index * VECTOR_BYTES, VECTOR_BYTES)

    def unpack_head(self, block: Value, target: Value, ahead: Value) -> BlockReader:
        """Emit the unpacking of what a block of a panel states in addition to its weights, `head_bytes` of it. Return
        the block's reader."""
        reader = BlockReader(self.f, self.isa, block, ahead)
        head, (_, at_factors) = self.kind.head(reader), self._head_offsets(self.kind)
        self._store_head(head, target)
        self.f.store(head.factor, target, at_factors, VECTOR_BYTES)
        if head.min_factor is not None:
            self.f.store(head.min_factor, target, at_factors + VECTOR_BYTES, VECTOR_BYTES)
        return reader

    def unpack(self, block: Value, target: Value, ahead: Value) -> None:
        """Emit the unpacking of a block of a panel into memory, `unpacked_bytes` of it."""
        f, kind = self.f, self.kind
        reader, weights = self.unpack_head(block, target, ahead), f.at(target, self.head_bytes(kind))
        with f.loop(0, kind.groups // kind.step_groups) as step:
            words = kind.words(reader, step)
            place = f.at(weights, step * (kind.step_groups * self.group_bytes))
            for e in range(kind.step_groups):
                for index in range(WORDS):
                    word = self._as_multiplied(words(e, index))
                    f.store(word, place, e * self.group_bytes + index * VECTOR_BYTES, VECTOR_BYTES)

    def packed(self, block: Value, ahead: Value | int, *following: Value, level: int = 1) -> Block:
        """Return a block of a panel and of others that are multiplied with it; scales are kept on the stack."""
        f, kind = self.f, self.kind
        readers = [BlockReader(f, self.isa, each, ahead, level) for each in (block, *following)]
        heads = [kind.head(reader) for reader in readers]
        kept = [f.stack(vec(F32, PANEL_ROWS), self.head_bytes(kind) // VECTOR_BYTES) for _ in heads]
        for head, target in zip(heads, kept, strict=True):
            self._store_head(head, target)
        min_factors = [head.min_factor for head in heads if head.min_factor is not None]
        min_factor = joined(min_factors) if min_factors else None
        return self._block(kept, readers, joined(head.factor for head in heads), min_factor)

    def half_packed(self, heads: Sequence[Value], blocks: Sequence[Value], ahead: Value) -> Block:
        """Return the blocks of panels that are multiplied together, whose heads were unpacked."""
        readers = [BlockReader(self.f, self.isa, block, ahead) for block in blocks]
        return self._block(heads, readers, *self._factors(heads))

    def unpacked(self, *targets: Value) -> Block:
        """Return the blocks that `unpack` wrote, of panels that are multiplied together."""
        return self._block(targets, [], *self._factors(targets))

    def _loaded(self, places: Sequence[Value], at: Value | int, t: Type) -> Value:
        """Return vectors of each panel."""
        return joined(self.f.load(place, vec(t, PANEL_ROWS), at, VECTOR_BYTES) for place in places)

    def _factors(self, heads: Sequence[Value]) -> tuple[Value, Value | None]:
        _, at = self._head_offsets(self.kind)
        factor = self._loaded(heads, at, F32)
        return factor, self._loaded(heads, at + VECTOR_BYTES, F32) if self.kind.has_minima else None

    def _block(
        self, heads: Sequence[Value], readers: Sequence[BlockReader], factor: Value, min_factor: Value | None
    ) -> Block:
        """Return a block whose scales and minima are in memory; its weights follow there, if there are no readers."""
        kind, (at_minima, _) = self.kind, self._head_offsets(self.kind)

        def read(step: Value) -> Words:
            each_words = [kind.words(reader, step) for reader in readers]
            return lambda e, i: self._as_multiplied(joined(words(e, i) for words in each_words))

        def load(step: Value) -> Words:
            at = step * self.group_bytes + self.head_bytes(kind)
            places = [self.f.at(head, at) for head in heads]
            return lambda e, i: self._loaded(places, i * VECTOR_BYTES, I32)

        minima = [self.f.at(head, at_minima) for head in heads]
        return Block(
            factor,
            min_factor,
            kind.step_groups if readers else 1,
            read if readers else load,
            lambda index: self._loaded(heads, index * VECTOR_BYTES, F32 if self._multiplies_floats else I32),
            lambda index: self._loaded(minima, index * VECTOR_BYTES, I32 if kind.minimum_weights == 16 else F32),
        )

    def add(self, block: Block, rows: Sequence[Value], results: Sequence[Variable]) -> None:
        """Emit the sums of one block. `rows`: pointers to the first of its blocks of activations; `results`: float32 x
        16, those of the first row for each panel, then those of the next."""
        f, kind = self.f, self.kind
        totals = [f.var(self.f32, 0.0) for _ in rows]
        self._each(kind.groups // block.step_groups, lambda step: self._step(block, step, rows, totals))
        self._finish(block.factor, totals, results)
        if block.min_factor is not None:
            minima = [f.var(self.f32, 0.0) for _ in rows]  # after the totals: both would need twice the registers
            self._each(kind.groups, lambda group: self._add_minima(block, group, rows, minima))
            self._finish(block.min_factor, minima, results)

    def _finish(self, factor: Value, totals: Sequence[Variable], results: Sequence[Variable]) -> None:
        panels = self.lanes // PANEL_ROWS
        for row, total in enumerate(totals):
            of_row = results[row * panels : (row + 1) * panels]
            value = self.f.fma(factor, total.value, joined(each.value for each in of_row))
            for panel, result in enumerate(of_row):
                result.set(value.shuffle(range(panel * PANEL_ROWS, (panel + 1) * PANEL_ROWS)) if panels > 1 else value)

    def _each(self, count: int, emit: Callable[[Value], None]) -> None:
        if count == 1:
            emit(self.f.i64(0))
        else:
            with self.f.loop(0, count) as index:
                emit(index)

    def _step(self, block: Block, step: Value, rows: Sequence[Value], totals: list[Variable]) -> None:
        f, count = self.f, block.step_groups
        words = block.words(step)
        places = [f.at(row, step * (count * self.block_bytes)) for row in rows]
        together = count == 2 and len(rows) <= 2  # both read the same bytes
        for parts in [range(count)] if together else [range(e, e + 1) for e in range(count)]:
            exact = self._dots(block, words, step, list(parts), places)
            for e in parts:
                for m, place in enumerate(places):
                    scale = self._float(place, e * self.block_bytes + INT8_SCALE)
                    totals[m].set(f.fma(exact[e, m], scale, totals[m].value))

    def _add_minima(self, block: Block, group: Value, rows: Sequence[Value], minima: list[Variable]) -> None:
        f = self.f
        for row, total in zip(rows, minima, strict=True):
            place = f.at(row, group * self.block_bytes)
            if self.kind.minimum_weights == 16:
                low, high = (block.minimum(group * 2 + half) for half in range(2))
                least = self._halves_term(low, high, place).to_f32()
                total.set(f.fma(least, self._float(place, INT8_SCALE), total.value))
            else:
                total.set(f.fma(block.minimum(group), self._float(place, INT8_SCALED_SUM), total.value))

    def _float(self, row: Value, at: int) -> Value:
        return broadcast_float(self.f, row, at, self.lanes)

    def _word(self, row: Value, at: int) -> Value:
        """Return 4 bytes in every lane, int32."""
        return self.f.splat(self.f.load(row, I32, at), self.lanes)

    def _halves_term(self, low: Value, high: Value, row: Value, at: int = 0) -> Value:
        """Return the exact sum of two numbers within int16 times the sums of 16 activations of a block, int32."""
        both = ((low & 0xFFFF) | (high << 16)).as_(self.i16)
        return self.isa.maddwd(self.f, both, self._word(row, at + INT8_PAIR).as_(self.i16))

    @property
    def _multiplies_floats(self) -> bool:
        """Whether scales are multiplied in as float32."""
        return self.isa.has_dot or self.kind.has_float_scales

    def _scale(self, scale: Value) -> Value:
        if self.kind.has_float_scales:
            return scale
        return scale.to_f32() if self.isa.has_dot else as_pairs(scale)

    @property
    def _is_biased(self) -> bool:
        """Whether signed bytes are made unsigned by adding 128."""
        return self.kind.is_signed and self.isa.has_dot and not self.isa.signed_dot

    def _as_multiplied(self, words: Value) -> Value:
        return words ^ _SIGN_BITS if self._is_biased else words

    def _words_in_int16(self) -> int:
        """How many words' products of pairs fit into int16 together."""
        if self.kind.is_signed:
            return 1
        fitting = 32767 // (2 * 127 * self.kind.max_integer)
        within_scale = 4 if self.kind.scale_weights == 16 else 8
        return max(count for count in (1, 2, 4, 8) if count <= min(fitting, within_scale))

    def _dots(
        self, block: Block, words: Words, step: Value, parts: list[int], rows: Sequence[Value]
    ) -> dict[tuple[int, int], Value]:
        """Return the exact sums, in float32, by group of the step and row."""
        if self.isa.has_dot:
            return self._fours(block, words, step, parts, rows)
        if self.kind.has_float_scales:
            return self._scaled_pairs(block, words, step, parts, rows)
        return {at: total.to_f32() for at, total in self._pairs(block, words, step, parts, rows).items()}

    @property
    def _offset(self) -> int:
        return _SIGN_OFFSET if self._is_biased else self.kind.offset

    def _scale_of(self, block: Block, step: Value, e: int, half: int) -> Value:
        return block.scale((step * block.step_groups + e) * self.kind.scales_per_group + half)

    def _pairs(
        self, block: Block, words: Words, step: Value, parts: list[int], rows: Sequence[Value]
    ) -> dict[tuple[int, int], Value]:
        def scale(e: int, start: int) -> Value:
            if not self.kind.scale_weights:
                return self.f.const(self.i16, 1)
            half = start // 4 if self.kind.scale_weights == 16 else 0
            return self._scale_of(block, step, e, half).as_(self.i16)

        exact = self._pair_sums(words, parts, rows, range(WORDS), scale)
        if self._offset:
            for e, m in exact:
                exact[e, m] = exact[e, m] - self._offset_term(block, step, e, rows[m])
        return exact

    def _scaled_pairs(
        self, block: Block, words: Words, step: Value, parts: list[int], rows: Sequence[Value]
    ) -> dict[tuple[int, int], Value]:
        """Return the sums of both halves times their scales, in float32."""
        one = self.f.const(self.i16, 1)
        found: dict[tuple[int, int], Value] = {}
        for half in range(2):
            span = range(half * WORDS // 2, (half + 1) * WORDS // 2)
            for (e, m), total in self._pair_sums(words, parts, rows, span, lambda *_: one).items():
                dot = (self._beginning(rows[m], e, half) + total).to_f32() * self._scale_of(block, step, e, half)
                found[e, m] = found[e, m] + dot if half else dot
        return found

    def _pair_sums(
        self,
        words: Words,
        parts: list[int],
        rows: Sequence[Value],
        span: range,
        scale_of: Callable[[int, int], Value],
    ) -> dict[tuple[int, int], Value]:
        """Return the sums of some words' products with their scales, int32, by group of the step and row. `scale_of`:
        int16, by group and the first of the words that are added before they are multiplied with it."""
        f, isa, together = self.f, self.isa, self._words_in_int16()
        exact: dict[tuple[int, int], Value] = {}
        for start in span[::together]:
            short: dict[tuple[int, int], Value] = {}
            for i in range(start, start + together):
                for e in parts:
                    weights = words(e, i).as_(self.i8)
                    unsigned = isa.pabsb(f, weights) if self.kind.is_signed else weights
                    for m, row in enumerate(rows):
                        x = self._word(row, e * self.block_bytes + 4 * i).as_(self.i8)
                        x = isa.psignb(f, x, weights) if self.kind.is_signed else x
                        product = isa.maddubs(f, unsigned, x)
                        short[e, m] = short[e, m] + product if (e, m) in short else product
            for e in parts:
                scale = scale_of(e, start)
                for m in range(len(rows)):
                    wide = isa.maddwd(f, short[e, m], scale)
                    exact[e, m] = exact[e, m] + wide if (e, m) in exact else wide
        return exact

    def _fours(
        self, block: Block, words: Words, step: Value, parts: list[int], rows: Sequence[Value]
    ) -> dict[tuple[int, int], Value]:
        f, isa = self.f, self.isa
        exact: dict[tuple[int, int], Value] = {}
        halves = 2 if self.kind.scale_weights == 16 else 1
        for half in range(halves):
            dots = {(e, m): self._beginning(row, e, half) for e in parts for m, row in enumerate(rows)}
            for i in range(half * WORDS // halves, (half + 1) * WORDS // halves):
                for e in parts:
                    weights = words(e, i)
                    for m, row in enumerate(rows):
                        x = self._word(row, e * self.block_bytes + 4 * i).as_(self.i8)
                        dots[e, m] = isa.dpbusd(f, dots[e, m], weights.as_(self.i8), x)
            for e, m in dots:
                dot = dots[e, m].to_f32()
                if self.kind.scale_weights:
                    dot = dot * self._scale_of(block, step, e, half)
                exact[e, m] = exact[e, m] + dot if (e, m) in exact else dot
        return exact

    def _beginning(self, row: Value, e: int, half: int) -> Value:
        """Return what sums of fours begin with: -offset * the sum of the activations that have a scale of weights."""
        f, at = self.f, e * self.block_bytes
        if not self._offset:
            return f.const(self.i32, 0)
        if self.kind.scale_weights != 16:
            return f.splat(f.load(row, I32, at + INT8_SUM) * -self._offset, self.lanes)
        sixteen = f.load(row, I16, at + INT8_PAIR + 2 * half).sext(I32)
        return f.splat(sixteen * -self._offset, self.lanes)

    def _offset_term(self, block: Block, step: Value, e: int, row: Value) -> Value:
        """Return offset * scale * sum of activations, int32."""
        f, at = self.f, e * self.block_bytes
        if not self.kind.scale_weights:
            return f.splat(f.load(row, I32, at + INT8_SUM) * self._offset, self.lanes)
        assert self.kind.scale_weights == 16, "no type with an offset has a scale per 32"
        low, high = (self._scale_of(block, step, e, half) for half in range(2))
        return self._halves_term(low, high, row, at) * self._offset
