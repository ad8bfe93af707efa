"""Products of integer weights with int8 activations: exact sums within a group of 32, then float32.

For a row of activations and one output, the definition in every form, of every type and any number of rows:

    for each block of weights, ascending:
        total = minima = 0.0
        for each group of 32, ascending:
            exact = sum of (weight - offset) * scale * activation, in int32
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
from functools import partial
from typing import Any

from onward.kernels.activations import (
    I8X64,
    I16X32,
    INT8_PAIR,
    INT8_SCALE,
    INT8_SCALED_SUM,
    INT8_SUM,
    broadcast_float,
    broadcast_word,
)
from onward.kernels.function import Variable
from onward.kernels.isa import Isa
from onward.kernels.values import I16, I32, Value
from onward.kernels.weight_types import F32X16, I32X16, BlockReader, Head, WeightType

VECTOR = 64
"""Bytes of a vector of 16 lanes."""
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
    """int8 activations. Unpacked weights are bytes, as in the file. `f`: the function that is being written.

    Where a processor sums four products of bytes, scales are multiplied in as int32; elsewhere pairs are summed in
    int16, as many as fit, and the multiplication with the scale widens them.
    """

    block_bytes = 48
    """Of 32 activations."""
    group_bytes = WORDS * VECTOR
    """Of 32 unpacked weights of each row."""

    def __init__(self, f: Any, isa: Isa, kind: WeightType) -> None:
        self.f, self.isa, self.kind = f, isa, kind

    # a block, unpacked: weights of each group | scales | minima as float32 | factor | factor of the minima

    @classmethod
    def _offsets(cls, kind: WeightType) -> tuple[int, int, int]:
        scales = kind.groups * cls.group_bytes
        minima = scales + kind.groups * kind.scales_per_group * VECTOR
        return scales, minima, minima + kind.groups * kind.minima_per_group * VECTOR

    @classmethod
    def unpacked_bytes(cls, kind: WeightType) -> int:
        return cls._offsets(kind)[2] + 2 * VECTOR

    def _store_head(self, head: Head, scales: Value, minima: Value) -> None:
        for index, scale in enumerate(head.scales):
            self.f.store(self._scale(scale), scales, index * VECTOR, VECTOR)
        for index, minimum in enumerate(head.minima):
            stored = minimum if self.kind.minimum_weights == 16 else minimum.to_f32()
            self.f.store(stored, minima, index * VECTOR, VECTOR)

    @property
    def _minimum_type(self) -> Any:
        return I32X16 if self.kind.minimum_weights == 16 else F32X16

    def packed(self, block: Value, ahead: int) -> Block:
        """Return a block of a panel; its scales are kept on the stack."""
        f, kind = self.f, self.kind
        reader = BlockReader(f, self.isa, block, ahead)
        head = kind.head(reader)
        scales = f.stack(I32X16, max(1, len(head.scales)))
        minima = f.stack(self._minimum_type, max(1, len(head.minima)))
        self._store_head(head, scales, minima)

        return Block(
            head.factor, head.min_factor, kind.step_groups, partial(kind.words, reader),
            lambda index: f.load(scales, I32X16, index * VECTOR, VECTOR),
            lambda index: f.load(minima, self._minimum_type, index * VECTOR, VECTOR),
        )  # fmt: skip

    def unpack(self, block: Value, target: Value, ahead: Value) -> None:
        """Emit the unpacking of a block of a panel into memory, `unpacked_bytes` of it."""
        f, kind = self.f, self.kind
        scales, minima, factors = self._offsets(kind)
        reader = BlockReader(f, self.isa, block, ahead)
        head = kind.head(reader)
        self._store_head(head, f.at(target, scales), f.at(target, minima))
        f.store(head.factor, target, factors, VECTOR)
        if head.min_factor is not None:
            f.store(head.min_factor, target, factors + VECTOR, VECTOR)
        with f.loop(0, kind.groups // kind.step_groups) as step:
            words = kind.words(reader, step)
            place = f.at(target, step * (kind.step_groups * self.group_bytes))
            for e in range(kind.step_groups):
                for index in range(WORDS):
                    f.store(words(e, index), place, e * self.group_bytes + index * VECTOR, VECTOR)

    def unpacked(self, target: Value) -> Block:
        """Return a block that `unpack` wrote."""
        f = self.f
        scales, minima, factors = self._offsets(self.kind)

        def words(step: Value) -> Words:
            place = f.at(target, step * self.group_bytes)
            return lambda e, i: f.load(place, I32X16, i * VECTOR, VECTOR)

        return Block(
            f.load(target, F32X16, factors, VECTOR),
            f.load(target, F32X16, factors + VECTOR, VECTOR) if self.kind.has_minima else None,
            1, words,
            lambda index: f.load(f.at(target, scales), I32X16, index * VECTOR, VECTOR),
            lambda index: f.load(f.at(target, minima), self._minimum_type, index * VECTOR, VECTOR),
        )  # fmt: skip

    def add(self, block: Block, rows: Sequence[Value], results: Sequence[Variable]) -> None:
        """Emit the sums of one block. `rows`: pointers to the first of its blocks of activations; `results`: float32 x
        16 of each row."""
        f, kind = self.f, self.kind
        totals = [f.var(F32X16, 0.0) for _ in rows]
        minima = [f.var(F32X16, 0.0) for _ in rows] if kind.has_minima else []
        if kind.groups == block.step_groups == 1:
            self._step(block, f.i64(0), rows, totals, minima)
        else:
            with f.loop(0, kind.groups // block.step_groups) as step:
                self._step(block, step, rows, totals, minima)
        for m, result in enumerate(results):
            value = f.fma(block.factor, totals[m].value, result.value)
            if block.min_factor is not None:
                value = f.fma(block.min_factor, minima[m].value, value)
            result.set(value)

    def _step(
        self, block: Block, step: Value, rows: Sequence[Value], totals: list[Variable], minima: list[Variable]
    ) -> None:
        f, kind, count = self.f, self.kind, block.step_groups
        words = block.words(step)
        places = [f.at(row, step * (count * self.block_bytes)) for row in rows]
        together = count == 2  # both read the same bytes
        for parts in [range(count)] if together else [range(e, e + 1) for e in range(count)]:
            exact = self._dots(block, words, step, list(parts), places)
            for e in parts:
                group = step * count + e
                for m, place in enumerate(places):
                    scale = broadcast_float(f, place, e * self.block_bytes + INT8_SCALE)
                    totals[m].set(f.fma(exact[e, m].to_f32(), scale, totals[m].value))
                    if kind.minimum_weights == 16:
                        least = self._minimum_term(block, group, place, e * self.block_bytes)
                        minima[m].set(f.fma(least.to_f32(), scale, minima[m].value))
                    elif minima:
                        scaled = broadcast_float(f, place, e * self.block_bytes + INT8_SCALED_SUM)
                        minima[m].set(f.fma(block.minimum(group), scaled, minima[m].value))

    def _minimum_term(self, block: Block, group: Value, row: Value, at: int) -> Value:
        """Return the exact sum of minima times sums of 16 activations, int32 x 16. `at`: of the row's block."""
        low, high = (block.minimum(group * 2 + half) * self._half_sum(row, at, half) for half in range(2))
        return low + high

    def _half_sum(self, row: Value, at: int, half: int) -> Value:
        """Return the sum of 16 activations of a block, int32 in every lane."""
        f = self.f
        return f.splat(f.load(row, I16, at + INT8_PAIR + 2 * half).sext(I32), 16)  # type: ignore[no-any-return]

    def _scale(self, scale: Value) -> Value:
        return scale if self.isa.has_dot else as_pairs(scale)

    @property
    def _is_biased(self) -> bool:
        """Whether signed bytes are made unsigned by adding 128."""
        return self.kind.is_signed and self.isa.has_dot and not self.isa.signed_dot

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
        """Return the exact sums, int32 x 16, by group of the step and row."""
        sums = self._fours if self.isa.has_dot else self._pairs
        exact = sums(block, words, step, parts, rows)
        offset = _SIGN_OFFSET if self._is_biased else self.kind.offset
        if offset:
            for e in parts:
                for m, row in enumerate(rows):
                    exact[e, m] = exact[e, m] - self._offset_term(block, step, e, row, offset)
        return exact

    def _scale_of(self, block: Block, step: Value, e: int, half: int) -> Value:
        return block.scale((step * block.step_groups + e) * self.kind.scales_per_group + half)

    def _pairs(
        self, block: Block, words: Words, step: Value, parts: list[int], rows: Sequence[Value]
    ) -> dict[tuple[int, int], Value]:
        f, isa, span = self.f, self.isa, self._words_in_int16()
        exact: dict[tuple[int, int], Value] = {}
        for start in range(0, WORDS, span):
            short: dict[tuple[int, int], Value] = {}
            for i in range(start, start + span):
                for e in parts:
                    weights = words(e, i).as_(I8X64)
                    unsigned = isa.pabsb(f, weights) if self.kind.is_signed else weights
                    for m, row in enumerate(rows):
                        x = broadcast_word(f, row, e * self.block_bytes + 4 * i).as_(I8X64)
                        x = isa.psignb(f, x, weights) if self.kind.is_signed else x
                        product = isa.maddubs(f, unsigned, x)
                        short[e, m] = short[e, m] + product if (e, m) in short else product
            for e in parts:
                scale = f.const(I16X32, 1)
                if self.kind.scale_weights:
                    scale = self._scale_of(block, step, e, start // 4 if self.kind.scale_weights == 16 else 0).as_(
                        I16X32
                    )
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
            dots = {(e, m): f.const(I32X16, 0) for e in parts for m in range(len(rows))}
            for i in range(half * WORDS // halves, (half + 1) * WORDS // halves):
                for e in parts:
                    weights = words(e, i)
                    if self._is_biased:
                        weights = weights ^ _SIGN_BITS
                    for m, row in enumerate(rows):
                        x = broadcast_word(f, row, e * self.block_bytes + 4 * i).as_(I8X64)
                        dots[e, m] = isa.dpbusd(f, dots[e, m], weights.as_(I8X64), x)
            for e, m in dots:
                dot = dots[e, m]
                if self.kind.scale_weights:
                    dot = dot * self._scale_of(block, step, e, half)
                exact[e, m] = exact[e, m] + dot if (e, m) in exact else dot
        return exact

    def _offset_term(self, block: Block, step: Value, e: int, row: Value, offset: int) -> Value:
        """Return offset * scale * sum of activations, int32 x 16."""
        f, at = self.f, e * self.block_bytes
        if not self.kind.scale_weights:
            return f.splat(f.load(row, I32, at + INT8_SUM) * offset, 16)  # type: ignore[no-any-return]
        assert self.kind.scale_weights == 16, "no type with an offset has a scale per 32"
        low, high = (self._scale_of(block, step, e, half) for half in range(2))
        scales = ((low & 0xFFFF) | (high << 16)).as_(I16X32)
        sums = broadcast_word(f, row, at + INT8_PAIR).as_(I16X32)
        return self.isa.maddwd(f, scales, sums) * offset
