"""Products with float32 activations: each weight becomes float32, then one fma, inputs ascending.

A weight of integers is fma(float(integer), factor * scale, min_factor * minimum - factor * scale * offset): what the
file states, rounded once where ggml rounds once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain

from onward.kernels.activations import broadcast_float
from onward.kernels.function import Function, Variable
from onward.kernels.isa import Isa
from onward.kernels.values import F32X16, VECTOR_BYTES, Value
from onward.kernels.weight_types import GROUP, PREFETCH_BYTES, BlockReader, FloatType, Head, WeightType

_TOGETHER = 2
"""Unpacked weights of each row per iteration."""
_UNROLLED = 4
"""Weights of a panel in the order of the file per iteration."""
Use = Callable[..., None]
"""(k, *weights): the k-th weight of every row, a vector for each panel; then those of k + 1, if there are more."""


@dataclass(frozen=True)
class FloatBlock:
    """A block of a panel, or of several: `each(use)` emits the uses of its weights, k ascending."""

    each: Callable[[Use], None]


class Float32:
    """float32 activations. Unpacked weights are float32."""

    def __init__(self, f: Function, isa: Isa, kind: WeightType | FloatType) -> None:
        self.f, self.isa, self.kind = f, isa, kind

    @staticmethod
    def is_unpacked(kind: WeightType | FloatType) -> bool:
        """Return whether panels are float32 themselves."""
        return kind.name == "F32"

    @classmethod
    def unpacked_bytes(cls, kind: WeightType | FloatType) -> int:
        return kind.block_weights * VECTOR_BYTES

    def packed(self, block: Value, ahead: Value | int, *, level: int = 1) -> FloatBlock:
        """Return a block of a panel; what its scales make of it is kept on the stack."""
        return self.read(BlockReader(self.f, self.isa, block, ahead, level))

    def read(self, reader: BlockReader) -> FloatBlock:
        """Return the block of a reader."""
        if isinstance(self.kind, FloatType):
            return FloatBlock(lambda use: self._floats(reader, use))
        return FloatBlock(lambda use: self._integers(reader, use))

    def _floats(self, reader: BlockReader, use: Use) -> None:
        assert isinstance(self.kind, FloatType)
        f = self.f
        with f.loop(0, GROUP, _UNROLLED) as first:
            for k in range(_UNROLLED):
                use(first + k, self.kind.load(reader, first + k))

    def _integers(self, reader: BlockReader, use: Use) -> None:
        f, kind = self.f, self.kind
        assert isinstance(kind, WeightType)
        head = kind.head(reader)
        factors, additions = self._tables(head)
        per_group = kind.scales_per_group

        def steps(step: Value) -> None:
            words = kind.words(reader, step)
            for e in range(kind.step_groups):
                group = step * kind.step_groups + e
                for i in range(8):
                    index = group * per_group + i * per_group // 8 if per_group else f.i64(0)
                    word = words(e, i)
                    for byte in range(4):
                        integer = self._integer(word, byte)
                        weight = self._weight(integer, factors, additions, index)
                        use(group * GROUP + (4 * i + byte), weight)

        if kind.groups == kind.step_groups == 1:
            steps(f.i64(0))
        else:
            with f.loop(0, kind.groups // kind.step_groups) as step:
                steps(step)

    def _tables(self, head: Head) -> tuple[Value, Value]:
        """Store factor * scale, and what is added, for each scale; return where."""
        f, kind = self.f, self.kind
        assert isinstance(kind, WeightType)
        each = head.scales if kind.has_float_scales else [scale.to_f32() for scale in head.scales]
        scales = [head.factor * scale for scale in each] or [head.factor]
        factors, additions = f.stack(F32X16, len(scales)), f.stack(F32X16, len(scales))
        for index, scale in enumerate(scales):
            f.store(scale, factors, index * VECTOR_BYTES, VECTOR_BYTES)
            if head.min_factor is not None:
                minimum = head.minima[index * len(head.minima) // len(scales)]
                f.store(head.min_factor * minimum.to_f32(), additions, index * VECTOR_BYTES, VECTOR_BYTES)
            elif kind.offset:
                f.store(scale * -float(kind.offset), additions, index * VECTOR_BYTES, VECTOR_BYTES)
        return factors, additions

    def _integer(self, word: Value, byte: int) -> Value:
        if self.kind.is_signed:  # type: ignore[union-attr]
            return (word << (24 - 8 * byte) if byte < 3 else word).sar(24).to_f32()
        return ((word >> (8 * byte) if byte else word) & 0xFF).to_f32()

    def _weight(self, integer: Value, factors: Value, additions: Value, index: Value) -> Value:
        f, kind = self.f, self.kind
        assert isinstance(kind, WeightType)
        factor = f.load(factors, F32X16, index * VECTOR_BYTES, VECTOR_BYTES)
        if kind.has_minima or kind.offset:
            return f.fma(integer, factor, f.load(additions, F32X16, index * VECTOR_BYTES, VECTOR_BYTES))
        return integer * factor

    def unpack(self, block: Value, target: Value, ahead: Value) -> None:
        """Emit the unpacking of a block into memory."""
        self.packed(block, ahead).each(lambda k, weight: self.f.store(weight, target, k * VECTOR_BYTES, VECTOR_BYTES))

    def unpacked(self, *targets: Value) -> FloatBlock:
        """Return the blocks that `unpack` wrote, or that need none, of panels that are multiplied together."""
        f = self.f

        def each(use: Use) -> None:
            with f.loop(0, self.kind.block_weights, _TOGETHER) as first:
                weights_of = [
                    [self._unpacked_weight(target, (first + index) * VECTOR_BYTES) for target in targets]
                    for index in range(_TOGETHER)
                ]
                if self.isa.width == 64:  # there are registers for all, so each row's place is computed once
                    use(first, *chain.from_iterable(weights_of))
                else:
                    for index, weights in enumerate(weights_of):
                        use(first + index, *weights)

        return FloatBlock(each)

    def _unpacked_weight(self, target: Value, at: Value) -> Value:
        f, is_panel = self.f, self.is_unpacked(self.kind)
        if is_panel:
            f.prefetch(target, at + PREFETCH_BYTES)
        return f.load(target, F32X16, at, 1 if is_panel else VECTOR_BYTES)

    def add(self, block: FloatBlock, rows: Sequence[Value], results: Sequence[Variable]) -> None:
        """Emit the sums of one block. `rows`: pointers to its first activation; `results`: float32 x 16, those of the
        first row for each panel, then those of the next."""
        f, panels = self.f, len(results) // len(rows)

        def use(k: Value, *weights: Value) -> None:
            for number, row in enumerate(rows):
                for index in range(len(weights) // panels):
                    activation = broadcast_float(f, row, (k + index) * 4)
                    for panel in range(panels):
                        result = results[number * panels + panel]
                        result.set(f.fma(weights[index * panels + panel], activation, result.value))

        block.each(use)
