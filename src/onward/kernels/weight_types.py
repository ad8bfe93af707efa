"""What a type of weights is, and how blocks of panels are read.

A panel is 16 rows of a matrix with their words interleaved: the file's bits, rearranged. One lane of a vector is one
row, so that a product needs no sums across lanes, and no row's bits depend on another row.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from onward.kernels.function import Function
from onward.kernels.isa import Isa
from onward.kernels.values import F16, I8, I16, I32, Value, vec

PANEL_ROWS = 16
GROUP = 32
"""Weights that are multiplied with one block of activations."""
WORD_BYTES = 4 * PANEL_ROWS
PREFETCH_BYTES = 1024
"""How far ahead of the weights in use others are fetched, where panels of F32 are multiplied with many rows."""
I32X16, F16X16, I16X16, I8X16 = (vec(each, PANEL_ROWS) for each in (I32, F16, I16, I8))
_I8X4, _I8X64 = vec(I8, 4), vec(I8, 4 * PANEL_ROWS)


class BlockReader:
    """Reads one block of a panel, in the function that is being written. `ahead`: how many bytes further to prefetch
    with each line that is read for the first time, None for no prefetches; `level`: to which cache."""

    def __init__(self, f: Function, isa: Isa, block: Value, ahead: Value | int | None = None, level: int = 1) -> None:
        self.f, self.isa, self.block, self._ahead, self._level = f, isa, block, ahead, level
        self._seen: set[tuple[str, int]] = set()

    def at(self, offset: Value | int) -> Value:
        """Return a pointer into the block."""
        return self.f.at(self.block, offset)

    def words(self, pointer: Value, offset: int) -> Value:
        """Return 4 bytes of every row, int32 x 16. The offset is one of the panel's, in bytes."""
        self._prefetch(pointer, offset, WORD_BYTES)
        return self.f.load(pointer, I32X16, offset)

    def halves(self, pointer: Value, offset: int) -> Value:
        """Return a float16 of every row as float32 x 16."""
        self._prefetch(pointer, offset, WORD_BYTES // 2)
        return self.f.load(pointer, F16X16, offset).fpext()

    def shorts(self, pointer: Value, offset: int) -> Value:
        """Return 16 bits of every row as int32 x 16."""
        self._prefetch(pointer, offset, WORD_BYTES // 2)
        return self.f.load(pointer, I16X16, offset).zext(I32)

    def octets(self, pointer: Value, offset: int) -> Value:
        """Return 8 bits of every row as int32 x 16."""
        self._prefetch(pointer, offset, WORD_BYTES // 4)
        return self.f.load(pointer, I8X16, offset).zext(I32)

    def lookup(self, table: Sequence[int], codes: Value) -> Value:
        """Return words whose bytes are those of a table of 16."""
        return self.isa.lookup(self.f, table, codes.as_(_I8X64)).as_(I32X16)

    def _prefetch(self, pointer: Value, offset: int, size: int) -> None:
        # One line between the uses of two others: a burst of a whole block fills the processor's buffers of misses.
        if self._ahead is not None and (key := (pointer.v.name, offset)) not in self._seen:
            self._seen.add(key)
            if offset % WORD_BYTES < size:
                self.f.prefetch(self.f.at(pointer, self._ahead), offset, 4 - self._level)


class RowReader(BlockReader):
    """Reads one block of one row, its words in the panel's order: what is read is in every lane."""

    def at(self, offset: Value | int) -> Value:
        return self.f.at(self.block, offset // PANEL_ROWS if isinstance(offset, int) else offset >> 4)

    def words(self, pointer: Value, offset: int) -> Value:
        return self.f.splat(self.f.load(pointer, I32, offset // PANEL_ROWS), PANEL_ROWS)

    def halves(self, pointer: Value, offset: int) -> Value:
        return self.f.splat(self.f.load(pointer, F16, offset // PANEL_ROWS).fpext(), PANEL_ROWS)

    def shorts(self, pointer: Value, offset: int) -> Value:
        return self.f.splat(self.f.load(pointer, I16, offset // PANEL_ROWS).zext(I32), PANEL_ROWS)

    def lookup(self, table: Sequence[int], codes: Value) -> Value:
        # of one lane, and not by an instruction: LLVM takes minutes for shuffles of lanes that are all the same
        return self.f.splat(Isa().lookup(self.f, table, codes.lane(0).as_(_I8X4)).as_(I32), PANEL_ROWS)

    def octets(self, pointer: Value, offset: int) -> Value:
        return self.f.splat(self.f.load(pointer, I8, offset // PANEL_ROWS).zext(I32), PANEL_ROWS)


@dataclass(frozen=True, slots=True)
class Head:
    """What a block of a panel states in addition to its weights: each a vector of one number per row.

    A weight is `factor * scale * (integer - offset) + min_factor * minimum`.
    """

    factor: Value
    min_factor: Value | None = None
    scales: tuple[Value, ...] = ()
    """int32, or float32 with `WeightType.has_float_scales`: one per 32 weights or one per 16."""
    minima: tuple[Value, ...] = ()
    """int32, one per `WeightType.minimum_weights`."""


WordReader = Callable[[int, int], Value]
"""Returns four weights of every row as the bytes of int32 x 16, in ascending order from the lowest: word i (0 to 7) of
group e of a step."""


@dataclass(frozen=True)
class WeightType:
    """A type of weights in blocks of integers."""

    name: str
    block_weights: int
    block_bytes: int
    fields: tuple[tuple[int, int, int], ...]
    """The order of a block in the panel: (offset in the file's block, bytes of a word, number of words)."""
    head: Callable[[BlockReader], Head]
    words: Callable[[BlockReader, Value], WordReader]
    """Called with the index of a step."""
    max_integer: int = 0
    """The largest integer; 0: they are signed bytes."""
    offset: int = 0
    """Subtracted from every integer."""
    scale_weights: int = 0
    """Weights per scale: 32, 16, or 0 where there are none."""
    has_float_scales: bool = False
    """Whether scales are float32 with at most 8 significant bits, one per 16 weights: their products with exact sums
    of 16 are exact, too."""
    minimum_weights: int = 0
    """Weights per minimum: 32, 16, or 0 where there are none."""
    step_groups: int = 1
    """Groups of 32 weights that share bytes, and that `words` reads together."""
    few_rows: int | None = None
    """Up to how many rows their products hide that each reads its words again; None: any number."""
    few_rows_without_spare_units: int = 4
    """The same where reading words takes the units that multiply (`Isa.has_spare_units`). Beyond 19 rows, groups have
    five or six of them: fewer functions to compile."""

    @property
    def is_signed(self) -> bool:
        return self.max_integer == 0

    @property
    def groups(self) -> int:
        """Groups of 32 weights per block."""
        return self.block_weights // GROUP

    @property
    def scales_per_group(self) -> int:
        return GROUP // self.scale_weights if self.scale_weights else 0

    @property
    def has_minima(self) -> bool:
        return self.minimum_weights > 0

    @property
    def minima_per_group(self) -> int:
        return GROUP // self.minimum_weights if self.minimum_weights else 0

    @cached_property
    def panel_block_bytes(self) -> int:
        return self.block_bytes * PANEL_ROWS


@dataclass(frozen=True)
class FloatType:
    """A type of weights in floating point, which is multiplied with float32 only. A block is 32 weights."""

    name: str
    weight_bytes: int
    load: Callable[[BlockReader, Value], Value] = field(repr=False)
    """Return weight k of a block, float32 x 16."""
    head_bytes: int = 0
    """Of a float32 before the weights of a block: 4, or 0 where there is none."""

    block_weights = GROUP
    groups = 1

    @property
    def block_bytes(self) -> int:
        return self.head_bytes + GROUP * self.weight_bytes

    @property
    def panel_block_bytes(self) -> int:
        return self.block_bytes * PANEL_ROWS

    @property
    def fields(self) -> tuple[tuple[int, int, int], ...]:
        head = ((0, self.head_bytes, 1),) if self.head_bytes else ()
        return (*head, (self.head_bytes, self.weight_bytes, GROUP))
