"""From a tensor of a file to the arrays of a form, a few rows at a time on several threads."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from onward.checkpoints.blocks import Groups
from onward.checkpoints.tensor import Tensor
from onward.checkpoints.types import CODEBOOK_TYPES
from onward.machine import cpu_quota
from onward.runtimes.openvino.graphs.forms import INT4_GROUP, ROUNDED_GROUP, Form

_PART_WEIGHTS = 1 << 20
"""Weights that are processed at once: with fewer, numpy's calls cost more than their work; with more, temporaries
outgrow the processor's cache."""
MAX_INT8 = 127.0
FOUR_BITS = 15


@dataclass(frozen=True, slots=True)
class Packed:
    """Arrays of one form. `values`: [rows, inputs], or [rows, inputs / 2] with the first of two 4-bit values in the low
    half; `scales`, `zeros` and `corrections`: [rows, groups]."""

    values: NDArray[np.uint8] | NDArray[np.int8] | NDArray[np.float16] | NDArray[np.float32]
    scales: NDArray[np.float16] | None = None
    zeros: NDArray[np.uint8] | None = None
    corrections: NDArray[np.float16] | None = None


def repack(tensor: Tensor, form: Form) -> Packed:
    """Return the weights in a form."""
    work = _WORK[form]
    step = max(1, _PART_WEIGHTS // tensor.shape[-1])
    starts = range(0, tensor.num_rows, step)
    first = work(tensor, 0, min(step, tensor.num_rows))
    whole: list[Any] = [
        None if part is None else np.empty((tensor.num_rows, *part.shape[1:]), part.dtype) for part in first
    ]

    def make(start: int) -> None:
        parts = work(tensor, start, min(start + step, tensor.num_rows)) if start else first
        for array, part in zip(whole, parts, strict=True):
            if array is not None:
                array[start : start + step] = part

    with ThreadPoolExecutor(cpu_quota() or os.cpu_count(), thread_name_prefix="onward-repack") as executor:
        for _ in executor.map(make, starts):
            pass
    return Packed(*whole)


def _float32(tensor: Tensor, start: int, stop: int) -> tuple[Any, ...]:
    return (tensor.floats(start, stop),)


def _float16(tensor: Tensor, start: int, stop: int) -> tuple[Any, ...]:
    return (tensor.rows(start, stop).view("<f2"),)


def _int8_rows(tensor: Tensor, start: int, stop: int) -> tuple[Any, ...]:
    return _int8(tensor.floats(start, stop), tensor.shape[-1])


def _int8_rounded(tensor: Tensor, start: int, stop: int) -> tuple[Any, ...]:
    return _int8(tensor.floats(start, stop), ROUNDED_GROUP)


def _int8(weights: NDArray[np.float32], group: int) -> tuple[Any, ...]:
    """Return weights [rows, inputs] as 8-bit integers, nearest to them, and scales [rows, inputs / group]. Overwrites
    the weights."""
    groups = weights.reshape(len(weights), -1, group)
    greatest = np.abs(np.maximum(groups.max(axis=2), -groups.min(axis=2)))
    scales = (greatest / np.float32(MAX_INT8)).astype(np.float16)
    # By the scale that is stored: a float16 is too coarse to divide by another number. A row of zeros stays zeros.
    divisors = np.where(scales == 0, np.float16(1), scales).astype(np.float32)
    np.rint(np.divide(groups, divisors[..., None], out=groups), out=groups)
    return np.clip(groups, -MAX_INT8, MAX_INT8, out=groups).astype(np.int8).reshape(weights.shape), scales


def _int8_groups(tensor: Tensor, start: int, stop: int) -> tuple[Any, ...]:
    groups = tensor.groups(start, stop)
    return groups.values, groups.scales.astype(np.float16)


def _uint4_groups(tensor: Tensor, start: int, stop: int) -> tuple[Any, ...]:
    groups = tensor.groups(start, stop)
    return pack_nibbles((groups.values + np.int8(8)).astype(np.uint8)), groups.scales.astype(np.float16)


def _uint4_corrected(tensor: Tensor, start: int, stop: int) -> tuple[Any, ...]:
    values, *others = _corrected(tensor, start, stop, greatest=FOUR_BITS)
    return pack_nibbles(values), *others


def _uint8_corrected(tensor: Tensor, start: int, stop: int) -> tuple[Any, ...]:
    return _corrected(tensor, start, stop, greatest=255)


def _corrected(tensor: Tensor, start: int, stop: int, greatest: int) -> tuple[NDArray[Any], ...]:
    """Split scale × value - bias into scale × (value - zero), zero being whole, and the rest, zero × scale - bias."""
    groups = _groups(tensor, start, stop, greatest)
    assert groups.biases is not None and groups.values.dtype == np.uint8
    scales = groups.scales.astype(np.float16)
    divisors = np.where(groups.scales == 0, np.float32(1), groups.scales)
    zeros = np.clip(np.rint(groups.biases / divisors), 0, greatest).astype(np.uint8)
    corrections = (zeros * scales.astype(np.float32) - groups.biases).astype(np.float16)
    return groups.values, scales, zeros, corrections


def _groups(tensor: Tensor, start: int, stop: int, greatest: int) -> Groups:
    """Return the file's groups where it has some with minima of at most this size, else new ones."""
    if tensor.type.block_weights > 1 and tensor.type.name not in CODEBOOK_TYPES:
        groups = tensor.groups(start, stop)
        if groups.biases is not None and (greatest > FOUR_BITS or tensor.type.name in ("Q4_1", "Q4_K", "Q2_K")):
            return groups
    return grouped(tensor.floats(start, stop), greatest)


def grouped(weights: NDArray[np.float32], greatest: int) -> Groups:
    """Return weights [rows, inputs] as integers from 0 to `greatest`, nearest to them, in groups of INT4_GROUP."""
    rows, inputs = weights.shape
    groups = weights.reshape(rows, inputs // INT4_GROUP, INT4_GROUP)
    least = np.minimum(groups.min(axis=2), 0)
    scales = (np.maximum(groups.max(axis=2), 0) - least) / np.float32(greatest)
    divisors = np.where(scales == 0, np.float32(1), scales)
    values = np.clip(np.rint((groups - least[..., None]) / divisors[..., None]), 0, greatest).astype(np.uint8)
    return Groups(values.reshape(rows, inputs), scales, -least)


def pack_nibbles(values: NDArray[Any]) -> NDArray[Any]:
    """Return 4-bit values, two per byte along the last axis, the first one in the low half."""
    packed: NDArray[Any] = values[..., 0::2] | values[..., 1::2] << 4
    return packed


_WORK: dict[Form, Callable[[Tensor, int, int], tuple[Any, ...]]] = {
    Form.FLOAT32: _float32,
    Form.FLOAT16: _float16,
    Form.INT8_ROWS: _int8_rows,
    Form.INT8_GROUPS: _int8_groups,
    Form.INT8_ROUNDED: _int8_rounded,
    Form.UINT4_GROUPS: _uint4_groups,
    Form.UINT4_CORRECTED: _uint4_corrected,
    Form.UINT8_CORRECTED: _uint8_corrected,
}
