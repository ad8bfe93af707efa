"""In which form a tensor's weights are computed: what OpenVINO's kernels take, nearest to what the file has.

Integers with their own scales are exact. Formats with minima need a correction: kernels take integer zero points
only. One scale per row moves the mean log-probability by about a thousandth.
"""

from __future__ import annotations

from enum import Enum
from typing import Literal

from onward.checkpoints.tensor import Tensor

Precision = Literal["fast", "exact"]


class Form(Enum):
    """How weights [rows, inputs] are stored in a graph."""

    FLOAT32 = "float32"
    INT8_ROWS = "int8, one scale per row"
    INT8_GROUPS = "int8, one scale per group"
    UINT4_GROUPS = "4 bits around 8, one scale per group"
    UINT4_CORRECTED = "4 bits, scale and zero point per group, corrected by sums of the input"
    UINT8_CORRECTED = "8 bits, scale and zero point per group, corrected by sums of the input"


_FAST = {
    "Q4_0": Form.UINT4_GROUPS,
    "Q4_1": Form.UINT4_CORRECTED,
    "Q4_K": Form.UINT4_CORRECTED,
    "Q5_0": Form.INT8_GROUPS,
    "Q5_1": Form.UINT8_CORRECTED,
    "Q5_K": Form.UINT8_CORRECTED,
    "Q8_0": Form.INT8_GROUPS,
}
"""By the type in the file; all others have one scale per row."""
_CORRECTED = (Form.UINT4_CORRECTED, Form.UINT8_CORRECTED)


def form_of(tensor: Tensor, precision: Precision, *, is_table: bool) -> Form:
    """Return the form of a weight matrix. `is_table`: it holds the embeddings or the output layer, of which rows are
    selected, so that there is nothing to correct. With "exact" no weight changes."""
    if precision == "exact":
        return Form.FLOAT32
    found = _FAST.get(tensor.type.name, Form.INT8_ROWS)
    return Form.INT8_ROWS if is_table and found in _CORRECTED else found


def num_bytes(tensor: Tensor, form: Form) -> int:
    """Return about how many bytes the form takes in a graph."""
    rows, inputs = tensor.num_rows, tensor.shape[-1]
    weights = rows * inputs
    match form:
        case Form.FLOAT32:
            return 4 * weights
        case Form.INT8_ROWS:
            return weights + 2 * rows
        case Form.INT8_GROUPS:
            return weights + weights // 16
        case Form.UINT4_GROUPS:
            return weights // 2 + weights // 16
        case Form.UINT4_CORRECTED:
            return weights // 2 + weights // 8 + weights // 64
        case Form.UINT8_CORRECTED:
            return weights + weights // 8 + weights // 32
