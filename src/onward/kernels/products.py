"""Products of rows of activations with panels of weights: out[m] (+)= (weights x[m] + bias) * scale.

A few rows read a panel as it lies there, with prefetches (`_emit_single`). More rows go through a slab of inputs in
groups, whose sums wait in the scratch memory while the slab stays in the first-level cache (`_emit_many`). Its weights
are read from the panels again by each group where their products hide how they are unpacked, otherwise unpacked once
into the scratch memory (F32 needs no unpacking). All compute in the order of `integer_dots`, or with float32
activations

    result = fma(weight, activation, result), inputs ascending,

so they have the same bits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

from onward.kernels.activations import ACTIVATIONS, ActivationName
from onward.kernels.float_dots import Float32
from onward.kernels.function import Function, Module, Variable
from onward.kernels.integer_dots import Int8
from onward.kernels.isa import Isa
from onward.kernels.records import PRODUCT
from onward.kernels.type_table import WEIGHT_TYPES
from onward.kernels.values import F32X16, I64, PTR, Value
from onward.kernels.weight_types import GROUP, PANEL_ROWS, FloatType, WeightType

OUT_BYTES = 4 * PANEL_ROWS
AHEAD_BYTES = 4096
"""How far ahead of the weights in use others are fetched, to the second-level cache, where panels are read as they lie.
In large blocks the bits of a weight lie up to 1.5 KB apart."""
AHEAD_SLABS = 2
"""How far ahead of the slab in use others are fetched, where weights are not unpacked into memory."""
SLAB_WEIGHTS = {"int8": 256, "float32": 192}
"""Weights of each row that are unpacked at a time, or a block if that has more."""


@dataclass(frozen=True)
class Tile:
    """How many rows and panels are computed together. No bit depends on it."""

    register_rows: int
    register_panels: int
    """Rows and panels whose sums are in registers at a time: enough for an fma not to wait for the one before, and
    each activation that is read serves all panels."""
    rows: int
    panels: int
    """Rows and panels whose sums stay in the scratch memory while all inputs pass by."""


def tile_of(isa: Isa, name: ActivationName) -> Tile:
    """Return the tile for a processor's registers and units."""
    if name == "float32":
        rows, panels = {16: (2, 1), 32: (6, 1), 64: (12, 2)}[isa.width]
        return Tile(rows, panels, 192, 4)
    wide = Tile(4, 2, 48, 2) if isa.has_spare_units else Tile(6, 2, 96, 2)
    return {16: Tile(2, 1, 32, 1), 32: Tile(4, 1, 32, 1), 64: wide}[isa.width]


class Dots(Protocol):
    """One way to multiply: integer_dots.Int8, float_dots.Float32. Blocks are what `add` takes. `unpacked` takes as many
    places as panels are multiplied together."""

    def packed(self, block: Value, ahead: int, *, level: int) -> Any: ...
    def unpack(self, block: Value, target: Value, ahead: Value) -> None: ...
    @property
    def unpacked(self) -> Callable[..., Any]: ...
    def add(self, block: Any, rows: Sequence[Value], results: Sequence[Variable]) -> None: ...


def single_rows(isa: Isa, kind: ProductKind) -> int:
    """Return up to how many rows read one panel after the other. No bit depends on it.

    With 32 registers, four rows are faster so (SmolLM2: Q4_1 1.3 times with int8), except for blocks of 256 weights,
    whose scales need registers too (four rows of Q6_K: 0.8 times with float32; two with int8 read two panels together
    1.5 times as fast from memory).
    """
    if kind.activations == "float32" and "fma" in isa.soft:
        return 0  # each fma is spelt out: one copy of a type's is enough to compile
    if isa.width < 64:
        return 2
    return 4 if kind.type.block_weights == GROUP else 1 if kind.activations == "int8" else 2


def few_rows(isa: Isa, kind: ProductKind) -> int | None:
    """Return up to how many rows weights are not unpacked into memory; None for any number. No bit depends on it."""
    if isinstance(kind.type, FloatType) or kind.activations == "float32" or isa.width < 64:
        return single_rows(isa, kind)
    return kind.type.few_rows if isa.has_spare_units else kind.type.few_rows_without_spare_units


@dataclass(frozen=True)
class ProductKind:
    """A type of weights with a form of activations."""

    weights: str
    activations: ActivationName

    @property
    def type(self) -> WeightType | FloatType:
        return WEIGHT_TYPES[self.weights]

    @property
    def name(self) -> str:
        return f"{self.weights}_{self.activations}"

    @property
    def is_unpacked(self) -> bool:
        """Whether panels are what `unpack` would write."""
        return Float32.is_unpacked(self.type)

    @property
    def slab_blocks(self) -> int:
        return max(1, SLAB_WEIGHTS[self.activations] // self.type.block_weights)

    @property
    def slab_bytes(self) -> int:
        """Of a panel's unpacked weights."""
        return self.slab_blocks * self.unpacked_bytes

    @property
    def head_bytes(self) -> int:
        """Of a block's unpacked head, with int8."""
        assert isinstance(self.type, WeightType)
        return Int8.head_bytes(self.type)

    @property
    def activation_block_bytes(self) -> int:
        """Of the activations that one block of weights is multiplied with."""
        return self.type.groups * ACTIVATIONS[self.activations].block_bytes

    @property
    def has_heads_apart(self) -> bool:
        """Whether the heads of blocks are unpacked once for all rows where their weights are not: large ones."""
        return self.type.block_weights > GROUP

    def arithmetic(self, f: Function, isa: Isa, panels: int = 1) -> Dots:
        """Return how to multiply so many panels together."""
        if isinstance(self.type, FloatType) or self.activations == "float32":
            return Float32(f, isa, self.type)
        return Int8(f, isa, self.type, panels)

    def scratch_bytes(self, isa: Isa) -> int:
        """Return the scratch memory that a thread needs."""
        tile = tile_of(isa, self.activations)
        return tile.register_panels * self.slab_bytes + tile.rows * tile.panels * OUT_BYTES

    @property
    def unpacked_bytes(self) -> int:
        """Of a block, in the scratch memory."""
        if isinstance(self.type, FloatType) or self.activations == "float32":
            return Float32.unpacked_bytes(self.type)
        return Int8.unpacked_bytes(self.type)


def whole_claim(f: Function, isa: Isa, kind: ProductKind, claim: Value) -> Value:
    """Return how many panels a thread takes at a time: `claim`, as a multiple of those that are multiplied together."""
    together = tile_of(isa, kind.activations).register_panels
    return (claim + (together - 1)) // together * together


def emit_product(module: Module, isa: Isa, kind: ProductKind) -> Any:
    """Emit product_KIND(record, first panel, last panel, rows, scratch): panels of a PRODUCT record."""
    tile, single, few = tile_of(isa, kind.activations), single_rows(isa, kind), few_rows(isa, kind)
    most = tile.rows if few is None else few
    singles = [_emit_single(module, isa, kind, count) for count in range(1, single + 1)]
    packed = _emit_many(module, isa, kind, range(single + 1, most + 1), is_packed=True) if most > single else None
    many = _emit_many(module, isa, kind, range(most + 1, tile.rows + 1)) if few is not None else packed
    # bytes are multiplied as they lie: memory is the limit, which gives a thread of Intel's more where it reads twice
    has_bytes = isinstance(kind.type, WeightType) and kind.type.is_signed and kind.activations == "int8"
    reads_pairs = has_bytes and isa.width == 64 and not isa.has_spare_units
    f = Function(module, f"product_{kind.name}", [PTR, I64, I64, I64, PTR], exported=True)
    record, first, last, rows, scratch = f.args
    for count, function in enumerate(singles, 1):
        with f.when(rows.eq(count)):
            alone = first + (last - first) // 2 * 2 if reads_pairs else first
            if reads_pairs:
                pair = _emit_single(module, isa, kind, count, panels=2)
                with f.loop(first, alone, 2) as panel:
                    f.call(pair, [record, panel])
            with f.loop(alone, last) as panel:
                f.call(function, [record, panel])

    def emit_tiles(function: Any) -> None:
        with _nearly_equal(f, rows, tile.rows) as (row, count), f.loop(first, last, tile.panels) as panel:
            f.call(function, [record, row, count, panel, f.min(last - panel, tile.panels), scratch])

    if packed is not None and packed is not many:
        with f.when((rows > single) & (rows <= most)):
            emit_tiles(packed)
    with f.when(rows > (single if packed is many else most)):
        emit_tiles(many)
    return f.ret()


Put = Callable[[Value, Value, Value], None]
"""(row, panel, result): emits the store of one row's result of a panel, float32 x 16."""


class _Record:
    """The fields of a PRODUCT record, loaded where they are used."""

    def __init__(self, f: Function, record: Value) -> None:
        self._f, self._record = f, record

    def panel(self, index: Value) -> Value:
        at = self.panel_bytes() * index
        return self._f.at(PRODUCT.load(self._f, self._record, "panels"), at)

    def panel_bytes(self) -> Value:
        return PRODUCT.load(self._f, self._record, "panel_bytes")

    def activations(self, row: Value) -> Value:
        at = PRODUCT.load(self._f, self._record, "source_stride") * row
        return self._f.at(PRODUCT.load(self._f, self._record, "source"), at)

    def blocks(self) -> Value:
        return PRODUCT.load(self._f, self._record, "blocks")

    def stride(self) -> Value:
        return PRODUCT.load(self._f, self._record, "source_stride")

    def finish(self, each: Callable[[Put], None]) -> None:
        """Emit `each(put)` for every way to finish results, of which a record has one."""
        f, record = self._f, self._record
        bias, scale = PRODUCT.load(f, record, "bias"), f.splat(PRODUCT.load(f, record, "scale"), PANEL_ROWS)
        target, stride = PRODUCT.load(f, record, "target"), PRODUCT.load(f, record, "target_stride")

        def put(has_bias: bool, is_added: bool, row: Value, panel: Value, result: Value) -> None:
            place = f.at(target, stride * row + panel * OUT_BYTES)
            scaled = (result + f.load(bias, F32X16, panel * OUT_BYTES) if has_bias else result) * scale
            f.store(f.load(place, F32X16) + scaled if is_added else scaled, place)

        with f.otherwise(bias.is_null()) as without_and_with_bias:
            for has_bias, branch in enumerate(without_and_with_bias):
                with branch, f.otherwise(PRODUCT.load(f, record, "is_added").ne(0)) as (added, alone):
                    with added:
                        each(partial(put, bool(has_bias), True))
                    with alone:
                        each(partial(put, bool(has_bias), False))


def _emit_single(module: Module, isa: Isa, kind: ProductKind, rows: int, panels: int = 1) -> Any:
    """Emit (record, first panel): the first rows with so many panels, weights unpacked in registers."""
    f = Function(module, f"single_{kind.name}_{rows}_{panels}", [PTR, I64], inline=False)
    record, first = f.args
    fields = _Record(f, record)
    arithmetic: Any = kind.arithmetic(f, isa, panels)  # with float32, one panel
    each_weights = [fields.panel(first + panel) for panel in range(panels)]
    sources = [fields.activations(f.i64(row)) for row in range(rows)]
    results = [f.var(F32X16, 0.0) for _ in range(rows * panels)]
    with f.loop(0, fields.blocks()) as block:
        places = [f.at(weights, block * kind.type.panel_block_bytes) for weights in each_weights]
        packed = arithmetic.packed(places[0], AHEAD_BYTES, *places[1:], level=2)
        arithmetic.add(packed, [f.at(source, block * kind.activation_block_bytes) for source in sources], results)

    def finish(put: Put) -> None:
        for row in range(rows):
            for panel in range(panels):
                put(f.i64(row), first + panel, results[row * panels + panel].value)

    fields.finish(finish)
    return f.ret()


def _emit_micro(module: Module, isa: Isa, kind: ProductKind, panels: int, rows: int, is_packed: bool) -> Any:
    """Emit (blocks, bytes from one panel's to the next one's, their number, activations, stride, sums):
    sums[panel][row][16] += weights * activations. `is_packed`: blocks are not unpacked, but for their heads; there are
    also the arguments (heads, bytes to prefetch ahead)."""
    tile = tile_of(isa, kind.activations)
    name = f"micro_{kind.name}_{panels}_{rows}{'_packed' * is_packed}"
    f = Function(module, name, [PTR, I64, I64, PTR, I64, PTR] + [PTR, I64] * is_packed, inline=False)
    first, distance, blocks, source, stride, sums, *rest = f.args
    arithmetic = kind.arithmetic(f, isa, panels)
    sources = [f.at(source, stride * row) for row in range(rows)]
    places = [(panel * tile.rows + row) * OUT_BYTES for row in range(rows) for panel in range(panels)]
    results = [f.var(F32X16, f.load(sums, F32X16, place, OUT_BYTES)) for place in places]
    block_bytes = kind.type.panel_block_bytes if is_packed else kind.unpacked_bytes
    with f.loop(0, blocks) as block:
        weights = f.at(first, block * block_bytes)
        each_weights = [f.at(weights, distance * panel) for panel in range(panels)]
        if is_packed and isinstance(arithmetic, Int8):
            heads, ahead = rest
            if kind.has_heads_apart:
                head = f.at(heads, block * kind.head_bytes)
                each_head = [f.at(head, kind.slab_blocks * kind.head_bytes * panel) for panel in range(panels)]
                both = arithmetic.half_packed(each_head, each_weights, ahead)
            else:
                both = arithmetic.packed(each_weights[0], ahead, *each_weights[1:])
        else:
            both = arithmetic.unpacked(*each_weights)
        at = block * kind.activation_block_bytes
        arithmetic.add(both, [f.at(each, at) for each in sources], results)
    for place, result in zip(places, results, strict=True):
        f.store(result.value, sums, place, OUT_BYTES)
    return f.ret()


def _emit_many(module: Module, isa: Isa, kind: ProductKind, row_counts: Sequence[int], is_packed: bool = False) -> Any:
    """Emit (record, first row, rows, first panel, panels, scratch): at most a tile. `row_counts`: it may be called
    with; `is_packed`: weights are not unpacked into memory."""
    tile, size = tile_of(isa, kind.activations), kind.type.panel_block_bytes
    sizes = _group_sizes(row_counts, tile.register_rows)
    # a panel that is left over with int8 is multiplied twice, which is not worth functions of its own
    counts = range(1, tile.register_panels + 1) if kind.activations == "float32" else (tile.register_panels,)
    micro = {
        count: {rows: _emit_micro(module, isa, kind, count, rows, is_packed) for rows in sizes} for count in counts
    }
    suffix = "_packed" if is_packed else ""
    f = Function(module, f"many_{kind.name}{suffix}", [PTR, I64, I64, I64, I64, PTR], inline=False)
    record, first_row, rows, first_panel, panels, scratch = f.args
    fields, arithmetic = _Record(f, record), kind.arithmetic(f, isa)
    sums = f.at(scratch, tile.register_panels * kind.slab_bytes)
    blocks, stride, source = fields.blocks(), fields.stride(), fields.activations(first_row)
    with f.loop(0, panels * (tile.rows * OUT_BYTES), OUT_BYTES) as at:
        f.store(f.const(F32X16, 0.0), sums, at, OUT_BYTES)
    with f.loop(0, blocks, kind.slab_blocks) as block:
        count = f.min(blocks - block, kind.slab_blocks)
        with f.loop(0, panels, tile.register_panels) as panel:
            together = f.min(panels - panel, tile.register_panels) if tile.register_panels > 1 else f.i64(1)
            weights, distance = f.at(fields.panel(first_panel + panel), block * size), fields.panel_bytes()
            if is_packed:
                ahead = _further(f, fields, block, kind, AHEAD_SLABS, tile.panels)
            else:
                # what is unpacked next is fetched: of the panels that follow, or the next slab of the first ones
                is_last = panel + tile.register_panels >= panels
                to_first = _further(f, fields, block, kind, 1, tile.panels) - panel * distance
                ahead = f.select(is_last, to_first, distance * tile.register_panels)
            unpacked_bytes = kind.head_bytes if is_packed else kind.unpacked_bytes
            if kind.has_heads_apart if is_packed else not kind.is_unpacked:
                with f.loop(0, together) as one, f.loop(0, count) as each:
                    packed = f.at(weights, one * distance + each * size)
                    target = f.at(scratch, one * (kind.slab_blocks * unpacked_bytes) + each * unpacked_bytes)
                    if is_packed and isinstance(arithmetic, Int8):
                        arithmetic.unpack_head(packed, target, ahead)
                    else:
                        arithmetic.unpack(packed, target, ahead)
            if not is_packed and not kind.is_unpacked:
                weights, distance = scratch, f.i64(kind.slab_bytes)
            x, c = f.at(source, block * kind.activation_block_bytes), f.at(sums, panel * (tile.rows * OUT_BYTES))
            rest = [scratch, ahead] if is_packed else []
            for number, functions in micro.items():
                used = distance if len(micro) > 1 else f.select(together.eq(number), distance, f.i64(0))
                with f.when(together.eq(number) if len(micro) > 1 else together > 0):
                    _in_groups(f, functions, tile, rows, lambda function, row, used=used: f.call(
                        function,
                        [weights, used, count, f.at(x, row * stride), stride, f.at(c, row * OUT_BYTES), *rest],
                    ))  # fmt: skip

    def finish(put: Put) -> None:
        with f.loop(0, rows) as row, f.loop(0, panels) as panel:
            at = panel * (tile.rows * OUT_BYTES) + row * OUT_BYTES
            put(first_row + row, first_panel + panel, f.load(sums, F32X16, at, OUT_BYTES))

    fields.finish(finish)
    return f.ret()


def _further(f: Function, fields: _Record, block: Value, kind: ProductKind, slabs: int, panels: int) -> Value:
    """Return how many bytes further the slab lies that is used so much later, of `panels` that pass by together: behind
    their last one, in the panels that follow."""
    blocks = slabs * kind.slab_blocks
    skipped = f.select(block + blocks >= fields.blocks(), fields.panel_bytes() * (panels - 1), f.i64(0))
    return skipped + blocks * kind.type.panel_block_bytes


def _group_sizes(row_counts: Sequence[int], register_rows: int) -> list[int]:
    """Return the sizes of the groups that `_in_groups` makes of so many rows."""
    cut = [(rows // groups, rows % groups) for rows in row_counts if (groups := -(-rows // register_rows))]
    return sorted({size for size, _ in cut} | {size + 1 for size, larger in cut if larger})


@contextmanager
def _nearly_equal(f: Function, total: Value, most: int) -> Iterator[tuple[Value, Value]]:
    """Repeat the body for parts of at most so many of `total`, which is not 0: (first, size). Where there are several,
    none has less than half of `most`, rounded up."""
    parts = (total + (most - 1)) // most
    least = total // parts
    larger = total - least * parts
    with f.loop(0, parts) as part:
        yield part * least + f.min(part, larger), f.select(part < larger, least + 1, least)


def _in_groups(f: Function, functions: dict[int, Any], tile: Tile, rows: Value, call: Any) -> None:
    """Emit calls for all rows, in groups of nearly equal size of at most `tile.register_rows`."""
    with _nearly_equal(f, rows, tile.register_rows) as (first, size):
        done = f.fn.append_basic_block()
        switch = f.b.switch(size.v, done)
        for count, function in functions.items():
            case = f.fn.append_basic_block()
            switch.add_case(I64(count), case)
            f.b.position_at_end(case)
            call(function, first)
            f.b.branch(done)
        f.b.position_at_end(done)
