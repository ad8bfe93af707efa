"""In which type a tensor is held, and its rows in that type."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np
from numpy.typing import NDArray

from onward.checkpoints.expansion import EXPANDED_TYPES, expanded
from onward.checkpoints.tensor import Tensor
from onward.checkpoints.types import FLOAT8
from onward.kernels.type_table import WEIGHT_TYPES
from onward.kernels.weight_types import GROUP
from onward.runtimes.base import RuntimeOptions

FLOATS = frozenset({"F32", "F16", "BF16", FLOAT8.name})
"""Types of weights in floating point."""
_SENSITIVE = (".ffn_gate_inp", ".ssm_alpha", ".ssm_beta", ".altup_")
StoredType = str
"""The name of a type of weights that has kernels."""


def is_sensitive(name: str) -> bool:
    """Return whether a matrix chooses experts, or says how fast a state decays, or how hidden states are predicted: its
    products have float32 activations, and its weights are kept."""
    return any(part in name for part in _SENSITIVE)


def form_for(options: RuntimeOptions) -> Callable[[Tensor], StoredType]:
    """Return which type a tensor is held in: quantised ones as they are, types without kernels expanded, exactly;
    floating point as `weights` says, by default as 8-bit integers with `fast`, and unchanged with `exact`."""
    chosen = {"auto": "Q8_0" if options.precision == "fast" else None, "int8": "Q8_0", "int4": "Q4_0", "exact": None}
    rounded = chosen[options.weights]

    def form(tensor: Tensor) -> StoredType:
        name = tensor.type.name
        if name in FLOATS and rounded is not None and tensor.shape[-1] % GROUP == 0 and not is_sensitive(tensor.name):
            return rounded
        return EXPANDED_TYPES.get(name, name)

    return form


def expansion_note(tensors: Iterable[Tensor]) -> str:
    """Return a sentence on the tensors that take more memory than in their file, "" where there are none."""
    grown = [tensor for tensor in tensors if tensor.type.name in EXPANDED_TYPES]
    if not grown:
        return ""
    names = ", ".join(sorted({tensor.type.name for tensor in grown}))
    more = sum(_expanded_bytes(tensor) - tensor.num_bytes for tensor in grown)
    return f"Weights of type {names} are expanded, exactly, which takes {more / 1e6:,.0f} MB more than the file."


def _expanded_bytes(tensor: Tensor) -> int:
    kind = WEIGHT_TYPES[EXPANDED_TYPES[tensor.type.name]]
    return tensor.num_rows * tensor.shape[-1] // kind.block_weights * kind.block_bytes


def stored_rows(tensor: Tensor, form: StoredType, start: int, stop: int) -> NDArray[np.uint8]:
    """Return rows in a type, uint8 [rows, bytes], filled up with zeros to whole blocks of 32."""
    if tensor.type.name == form:
        rows = tensor.rows(start, stop)
    elif form == "F32":
        rows = tensor.floats(start, stop).astype("<f4").view(np.uint8)
    elif form == EXPANDED_TYPES.get(tensor.type.name):
        rows = expanded(tensor.type, tensor.rows(start, stop), tensor.shape[-1], tensor.row_factors(start, stop))
    elif form == "Q8_0":
        rows = quantised_8_bits(tensor.floats(start, stop))
    elif form == "Q4_0":
        rows = quantised_4_bits(tensor.floats(start, stop))
    else:
        raise ValueError(f"{tensor.type.name} is not stored as {form}.")
    kind = WEIGHT_TYPES[form]
    blocks = -(-tensor.shape[-1] // kind.block_weights)
    padded = np.zeros((len(rows), blocks * kind.block_bytes), np.uint8)
    padded[:, : rows.shape[1]] = rows
    return padded


def quantised_8_bits(values: NDArray[np.float32]) -> NDArray[np.uint8]:
    """Return rows as Q8_0: blocks of 32 with a float16 scale and 8-bit integers. By operations that IEEE 754 fixes, but
    for the integers of a block with a NaN, whose scale is NaN."""
    blocks = values.reshape(len(values), -1, GROUP)
    with np.errstate(all="ignore"):  # a file may state any number
        scales = np.abs(blocks).max(axis=2, keepdims=True) / np.float32(127)
        stored = scales.astype("<f2")
        inverse = np.divide(np.float32(1), scales, out=np.zeros_like(scales), where=scales > 0)
        steps = np.clip(np.rint(blocks * inverse), -127, 127).astype(np.int8)
    packed = np.concatenate((stored.view(np.uint8).reshape(*scales.shape[:2], 2), steps.view(np.uint8)), axis=2)
    return packed.reshape(len(values), -1)


def quantised_4_bits(values: NDArray[np.float32]) -> NDArray[np.uint8]:
    """Return rows as Q4_0, as ggml rounds them: the largest value of a block, with its sign, becomes -8."""
    blocks = values.reshape(len(values), -1, GROUP)
    largest = np.take_along_axis(blocks, np.abs(blocks).argmax(axis=2)[..., None], axis=2)
    with np.errstate(all="ignore"):
        scales = largest / np.float32(-8)
        inverse = np.divide(np.float32(1), scales, out=np.zeros_like(scales), where=scales != 0)
        steps = np.clip(np.floor(blocks * inverse + np.float32(8.5)), 0, 15).astype(np.uint8)
        stored = scales.astype("<f2").view(np.uint8).reshape(*scales.shape[:2], 2)
    packed = steps[..., : GROUP // 2] | steps[..., GROUP // 2 :] << 4
    return np.concatenate((stored, packed), axis=2).reshape(len(values), -1)
