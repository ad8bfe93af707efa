"""Blocks whose bits stand for vectors of a table: by llama.cpp's own package, which has the tables."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from onward.checkpoints.types import TensorType


def codebook_floats(kind: TensorType, rows: NDArray[np.uint8], inputs: int) -> NDArray[np.float32]:
    """Return the rows, [rows, bytes per row], as float32 [rows, inputs]."""
    from gguf import GGMLQuantizationType, quants  # here: few files need it, and it takes a tenth of a second

    found: Any = quants.dequantize(np.ascontiguousarray(rows), GGMLQuantizationType[kind.name])
    return np.asarray(found, np.float32).reshape(len(rows), inputs)
