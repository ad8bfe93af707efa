"""What records of a tape multiply rows with: matrices as panels, tables of rows that are looked up, norms."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from onward.kernels.memory import Vector
from onward.kernels.panels import panel_count
from onward.kernels.type_table import WEIGHT_TYPES
from onward.kernels.weight_types import PANEL_ROWS, FloatType


@dataclass(frozen=True, slots=True)
class Matrix:
    """Weights as panels: [rows, inputs] of a type."""

    type: str
    rows: int
    inputs: int
    panels: NDArray[np.uint8]

    @property
    def blocks(self) -> int:
        """Blocks per row."""
        return -(-self.inputs // WEIGHT_TYPES[self.type].block_weights)

    @property
    def panel_bytes(self) -> int:
        return self.blocks * WEIGHT_TYPES[self.type].panel_block_bytes

    @property
    def padded_inputs(self) -> int:
        return self.blocks * WEIGHT_TYPES[self.type].block_weights

    def part(self, first: int, rows: int) -> Matrix:
        """Return some of the rows, from the beginning of a panel on, in the same memory."""
        begin = first // PANEL_ROWS * self.panel_bytes
        if first % PANEL_ROWS or first + rows > self.rows:
            raise ValueError(f"Rows {first} to {first + rows} are no panels of {self.rows} rows.")
        return replace(self, rows=rows, panels=self.panels[begin : begin + panel_count(rows) * self.panel_bytes])


@dataclass(frozen=True, slots=True)
class Table:
    """Rows of weights as they are in a file, read one at a time."""

    type: str
    rows: int
    inputs: int
    data: NDArray[np.uint8]

    @property
    def row_bytes(self) -> int:
        kind = WEIGHT_TYPES[self.type]
        if isinstance(kind, FloatType):
            return self.inputs * kind.weight_bytes
        return self.inputs // kind.block_weights * kind.block_bytes


@dataclass(frozen=True, slots=True)
class Norm:
    """A norm's numbers. `is_centred`: a layer norm, which subtracts the mean; else one by the root mean square."""

    weight: Vector
    epsilon: float
    bias: Vector | None = None
    is_centred: bool = False
