"""In which form a tensor's weights are computed: what OpenVINO's kernels take, nearest to what the file has.

Integers with their own scales are exact. Formats with minima need a correction: kernels take integer zero points
only. What has no fast kernel is rounded to 8 bits, with a scale per group: one per row is a little faster where no
layer needs groups, and its errors are twice as large.
"""

from __future__ import annotations

from enum import Enum
from typing import Literal

from onward.checkpoints.tensor import Tensor
from onward.runtimes.options import WeightForm

__all__ = ["Form", "Precision", "form_of", "num_bytes"]

Precision = Literal["fast", "exact"]


class Form(Enum):
    """How weights [rows, inputs] are stored in a graph."""

    FLOAT32 = "float32"
    FLOAT16 = "float16"
    INT8_ROWS = "int8, one scale per row"
    INT8_GROUPS = "int8, one scale per group"
    INT8_ROUNDED = "int8 rounded anew, one scale per group of ROUNDED_GROUP"
    UINT4_GROUPS = "4 bits around 8, one scale per group"
    UINT4_CORRECTED = "4 bits, scale and zero point per group, corrected by sums of the input"
    UINT8_CORRECTED = "8 bits, scale and zero point per group, corrected by sums of the input"


_AS_IN_FILE = {
    "Q4_0": Form.UINT4_GROUPS,
    "Q4_1": Form.UINT4_CORRECTED,
    "Q4_K": Form.UINT4_CORRECTED,
    "Q5_0": Form.INT8_GROUPS,
    "Q5_1": Form.UINT8_CORRECTED,
    "Q5_K": Form.UINT8_CORRECTED,
    "Q8_0": Form.INT8_GROUPS,
}
"""By the type in the file: its own integers, whose kernels are fast."""
_GROUPS = {
    "Q2_K": Form.UINT8_CORRECTED,
    "Q3_K": Form.INT8_GROUPS,
    "Q6_K": Form.INT8_GROUPS,
    "Q8_K": Form.INT8_GROUPS,
    "IQ4_NL": Form.INT8_GROUPS,
    "IQ4_XS": Form.INT8_GROUPS,
    "F16": Form.FLOAT16,
}
"""The file's own numbers too, whose kernels are slower than those for one scale per row."""
_FOUR_BITS = {name: form for name, form in _AS_IN_FILE.items() if form in (Form.UINT4_GROUPS, Form.UINT4_CORRECTED)}
_CORRECTED = (Form.UINT4_CORRECTED, Form.UINT8_CORRECTED)
INT4_GROUP = 32
"""Weights that share a scale and a zero point, where floating point becomes 4 bits."""
ROUNDED_GROUP = 32
"""Weights that share a scale, where others become 8 bits."""


def form_of(tensor: Tensor, precision: Precision, weights: WeightForm = "auto", *, is_table: bool) -> Form:
    """Return the form of a weight matrix. `is_table`: it holds embeddings or the output layer, of which rows are
    selected, so that there is nothing to correct. With the precision "exact" no weight changes."""
    name = tensor.type.name
    if precision == "exact":
        return Form.FLOAT16 if name == "F16" else Form.FLOAT32
    rounded = Form.INT8_ROUNDED if tensor.shape[-1] % ROUNDED_GROUP == 0 else Form.INT8_ROWS
    match weights:
        case "auto":
            found = _AS_IN_FILE.get(name, rounded)
        case "exact":
            found = {**_AS_IN_FILE, **_GROUPS}.get(name, Form.FLOAT32)
        case "int8":
            found = Form.INT8_ROWS
        case "int4":
            has_groups = tensor.shape[-1] % INT4_GROUP == 0
            found = _FOUR_BITS.get(name, Form.UINT4_CORRECTED) if has_groups else Form.INT8_ROWS
    if is_table and found in _CORRECTED:
        return Form.FLOAT32 if weights == "exact" else rounded
    return found


def num_bytes(tensor: Tensor, form: Form) -> int:
    """Return about how many bytes the form takes in a graph."""
    rows, inputs = tensor.num_rows, tensor.shape[-1]
    weights = rows * inputs
    match form:
        case Form.FLOAT32:
            return 4 * weights
        case Form.FLOAT16:
            return 2 * weights
        case Form.INT8_ROWS:
            return weights + 2 * rows
        case Form.INT8_GROUPS:
            return weights + weights // 8
        case Form.INT8_ROUNDED:
            return weights + weights // 16
        case Form.UINT4_GROUPS:
            return weights // 2 + weights // 16
        case Form.UINT4_CORRECTED:
            return weights // 2 + weights // 8 + weights // 64
        case Form.UINT8_CORRECTED:
            return weights + weights // 8 + weights // 32
