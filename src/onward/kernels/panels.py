"""Makes panels from the rows of a file: 16 rows with their words interleaved (see weight_types)."""

from __future__ import annotations

from typing import Any

from onward.kernels.function import Function, Module
from onward.kernels.type_table import WEIGHT_TYPES
from onward.kernels.values import I8, I16, I32, I64, PTR, Value
from onward.kernels.weight_types import PANEL_ROWS, WeightType

WORD_TYPES = {1: I8, 2: I16, 4: I32}


def panel_count(rows: int) -> int:
    """Return the panels of a matrix; the last one is filled up with rows of zeros."""
    return -(-rows // PANEL_ROWS)


def emit_interleave(module: Module, weights: str) -> Any:
    """Emit interleave_TYPE(rows, blocks, target, first panel, last panel).

    `rows`: pointers to 16 rows of each panel, those of panel `first` first; `target`: the matrix's panels.
    """
    kind = WEIGHT_TYPES[weights]
    f = Function(module, f"interleave_{weights}", [PTR, I64, PTR, I64, I64], exported=True)
    rows, blocks, target, first, last = f.args
    with f.loop(first, last) as panel:
        sources = [f.load_pointer(rows, (panel - first) * (8 * PANEL_ROWS) + 8 * row) for row in range(PANEL_ROWS)]
        with f.loop(0, blocks) as block:
            place = f.at(target, (panel * blocks + block) * kind.panel_block_bytes)
            at = 0
            for offset, size, count in kind.fields:
                with f.loop(0, count) as word:
                    source_at = block * kind.block_bytes + word * size + offset
                    for row, source in enumerate(sources):
                        value = f.load(source, WORD_TYPES[size], source_at)
                        f.store(value, place, word * (size * PANEL_ROWS) + (at + row * size))
                at += size * count * PANEL_ROWS
    return f.ret()


def emit_ordered_block(f: Function, kind: WeightType, source: Value, target: Value) -> None:
    """Emit the copy of one block of one row, its words in the order of a panel."""
    at = 0
    for offset, size, count in kind.fields:
        with f.loop(0, size * count, size) as each:
            f.store(f.load(source, WORD_TYPES[size], each + offset), target, each + at)
        at += size * count
