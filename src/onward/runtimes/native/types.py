"""In which type a tensor is held, and its rows in that type."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from onward.checkpoints.tensor import Tensor
from onward.kernels.weight_types import GROUP, WEIGHT_TYPES
from onward.runtimes.options import RuntimeOptions

FLOATS = frozenset({"F32", "F16", "BF16"})
WeightForm = str
"""The name of a type of weights that has kernels."""


def form_for(options: RuntimeOptions) -> Callable[[Tensor], WeightForm]:
    """Return which type a tensor is held in: quantised ones as they are; floating point as 8-bit integers in blocks of
    32 with `fast`, and unchanged with `exact`; what has no kernels as float32, which is exact."""

    def form(tensor: Tensor) -> WeightForm:
        name = tensor.type.name
        if (
            name in FLOATS
            and options.precision == "fast"
            and options.weights == "auto"
            and tensor.shape[-1] % GROUP == 0
        ):
            return "Q8_0"
        return name if name in WEIGHT_TYPES else "F32"

    return form


def stored_rows(tensor: Tensor, form: WeightForm, start: int, stop: int) -> NDArray[np.uint8]:
    """Return rows in a type, uint8 [rows, bytes], filled up with zeros to whole blocks of 32."""
    if tensor.type.name == form:
        rows = tensor.rows(start, stop)
    elif form == "F32":
        rows = tensor.floats(start, stop).astype("<f4").view(np.uint8)
    elif form == "Q8_0":
        rows = quantised_8_bits(tensor.floats(start, stop))
    else:
        raise ValueError(f"{tensor.type.name} is not stored as {form}.")
    kind = WEIGHT_TYPES[form]
    blocks = -(-tensor.shape[-1] // kind.block_weights)
    padded = np.zeros((len(rows), blocks * kind.block_bytes), np.uint8)
    padded[:, : rows.shape[1]] = rows
    return padded


def quantised_8_bits(values: NDArray[np.float32]) -> NDArray[np.uint8]:
    """Return rows as Q8_0: blocks of 32 with a float16 scale and 8-bit integers. By operations that IEEE 754 fixes."""
    blocks = values.reshape(len(values), -1, GROUP)
    scales = np.abs(blocks).max(axis=2, keepdims=True) / np.float32(127)
    stored = scales.astype("<f2")
    inverse = np.divide(np.float32(1), scales, out=np.zeros_like(scales), where=scales > 0)
    steps = np.clip(np.rint(blocks * inverse), -127, 127).astype(np.int8)
    packed = np.concatenate((stored.view(np.uint8).reshape(*scales.shape[:2], 2), steps.view(np.uint8)), axis=2)
    return packed.reshape(len(values), -1)
