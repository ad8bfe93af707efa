"""One tensor of a model file: its shape, type and bytes, which stay in the file until they are used."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from onward.checkpoints.blocks import (
    FLOAT8_GROUP,
    Bytes,
    Groups,
    codebook_floats,
    float8_blocks,
    float8_floats,
    have_nan,
    mxfp4_blocks,
    nvfp4_blocks,
    unpack,
)
from onward.checkpoints.mapped import copied
from onward.checkpoints.types import CODEBOOK_TYPES, FLOAT32, NVFP4, TensorType
from onward.errors import CheckpointError

_MAX_TRANSPOSED = 1 << 20
"""Numbers that are transposed at a time."""
_MAX_CHANGED = 1 << 22
"""Numbers of a norm, of factors of positions, of a convolution of each number by itself, and the like: ten times those
of any model."""
_FEW_INPUTS, _MAX_SHORT_ROWS = 32, 1 << 22
"""How many rows of fewer inputs than the first all matrices may have together: twice the kernels of short
convolutions of the largest models. Models that were made for tests have a whole vocabulary of 8 numbers each."""
_MAX_ROWS_OF_ONE, _MAX_ROWS = 1 << 22, 1 << 25
"""Rows of one matrix: 16 times the largest known vocabulary. Of all matrices together, but for experts that are stored
one by one, of which no rows are put in order: Llama 3.1 405B has 20 million."""
_ONE_EXPERT = re.compile(r".*\.(?:experts|ffn_(?:gate|up|down))\.\d")


@dataclass(frozen=True, slots=True)
class Scales:
    """What the codes of a matrix in FP8 are multiplied with: one number for every `rows` x `inputs` of them.

    `stored` has a row of them for every `rows` of the matrix.
    """

    stored: Tensor
    rows: int
    inputs: int

    def of_rows(self, rows: NDArray[np.int64], num_groups: int) -> NDArray[np.float32]:
        """Return those of some rows, for each group of FLOAT8_GROUP weights, float32 [rows, groups]."""
        blocks = rows // self.rows
        first, last = (int(blocks.min()), int(blocks.max())) if len(blocks) else (0, -1)
        numbers = self.stored.floats(first, last + 1)
        return numbers[blocks - first][:, np.arange(num_groups) * FLOAT8_GROUP // self.inputs]


@dataclass(frozen=True, slots=True)
class Tensor:
    """A tensor. `shape` is in numpy's order: [rows, inputs] for the weights of a layer, [inputs] for a norm's.

    `data` are its bytes, uint8: a view of the mapped file, flat or with an axis of the stored rows and others of
    a row's bytes. `order` says which of the stored rows each row is, None: all as they are stored.
    """

    name: str
    shape: tuple[int, ...]
    type: TensorType
    data: NDArray[np.uint8]
    order: NDArray[np.int64] | None = None
    parts: tuple[Tensor, ...] = ()
    """Of experts that a file has one by one: their matrices, [rows, inputs] each; `data` is empty."""
    block_scales: NDArray[np.uint8] | None = None
    """Of MXFP4 and NVFP4 as safetensors files have them, uint8 [stored rows, blocks of 32 or 16 weights]; `data` are
    codes, [stored rows, inputs / 2] (blocks.mxfp4_blocks, nvfp4_blocks)."""
    factors: NDArray[np.float32] | None = None
    """Of NVFP4: what its weights are multiplied with, too, one number, or one per expert or head, whose rows follow
    each other."""
    stored: Tensor | None = None
    """Of a matrix of several heads that a file has transposed: as it is there (`transposed_heads`)."""
    scales: Scales | None = None
    """Of a matrix in FP8, whose `data` are its codes, uint8 [stored rows, inputs]; its `rows` are blocks of them
    (blocks.float8_blocks)."""

    @property
    def num_rows(self) -> int:
        """Rows, counted over all dimensions but the last."""
        return math.prod(self.shape[:-1])

    def rows(self, start: int, stop: int) -> NDArray[np.uint8]:
        """Return the bytes of these rows, uint8 [rows, bytes per row]: a view where they are stored like that."""
        if self.block_scales is not None:
            stored = self._stored(start, stop)
            join = nvfp4_blocks if self.type == NVFP4 else mxfp4_blocks
            return join(self.data[stored], self.block_scales[stored])
        if self.stored is not None:
            return _transposed_rows(self.stored, start, stop)
        if self.scales is not None:
            return float8_blocks(*self._codes(self.scales, start, stop))
        row_bytes = self.shape[-1] // self.type.block_weights * self.type.block_bytes
        whole = self.data if self.data.ndim > 1 else self.data.reshape(-1, row_bytes)
        picked = whole[self._stored(start, stop)]
        return picked.reshape(len(picked), row_bytes)

    def _stored(self, start: int, stop: int) -> slice | NDArray[np.int64]:
        """Return which of the stored rows these are."""
        return slice(start, stop) if self.order is None else self.order[start:stop]

    def _codes(self, scales: Scales, start: int, stop: int) -> tuple[Bytes, NDArray[np.float32]]:
        """Return rows of a matrix in FP8 as they are stored, and their scales."""
        rows = np.arange(start, stop) if self.order is None else self.order[start:stop]
        return self.data[self._stored(start, stop)], scales.of_rows(rows, -(-self.shape[-1] // FLOAT8_GROUP))

    @property
    def num_bytes(self) -> int:
        """Return the bytes that it takes in its file."""
        return self.num_rows * (self.shape[-1] // self.type.block_weights) * self.type.block_bytes

    def part(self, index: int) -> Tensor:
        """Return the matrix of one expert, of a tensor [experts, rows, inputs] as it is stored."""
        if self.parts:
            return self.parts[index]
        count, *shape = self.shape
        size = self.data.size // count
        factors = None if self.factors is None else self.factors[index : index + 1]
        return replace(self, shape=tuple(shape), data=self.data[index * size : (index + 1) * size], factors=factors)

    def loaded(self) -> Tensor:
        """Return the tensor with its bytes in memory, also if its file is changed from now on. Raises CheckpointError
        if that was cut short."""
        return replace(self, data=copied(self.data))

    def selected(self, order: NDArray[np.int64]) -> Tensor:
        """Return the tensor with these of its rows, in this order; of a vector, with these of its numbers."""
        if len(self.shape) == 1:
            return vector(self.name, self.loaded().floats()[0][order])
        kept = order if self.order is None else self.order[order]
        return replace(self, shape=(len(order), self.shape[-1]), order=kept)

    def transposed(self) -> Tensor:
        """Return the tensor with its rows as inputs. For types of one weight per block, whose rows are not selected."""
        rows, inputs = self.shape
        data = self.data.reshape(rows, inputs, self.type.block_bytes).transpose(1, 0, 2)
        return replace(self, shape=(inputs, rows), data=data)

    def floats(self, start: int = 0, stop: int | None = None) -> NDArray[np.float32]:
        """Return these rows as float32 [rows, inputs]; exactly what the file states, as ggml computes it."""
        stop = self.num_rows if stop is None else stop
        if self.scales is not None:
            return float8_floats(*self._codes(self.scales, start, stop))
        rows = self.rows(start, stop)
        match self.type.name:
            case "F32":
                return rows.view("<f4").astype(np.float32)
            case "F16":
                return rows.view("<f2").astype(np.float32)
            case "BF16":
                return (rows.view("<u2").astype(np.uint32) << 16).view(np.float32)
        if self.type.name in CODEBOOK_TYPES:
            return codebook_floats(self.type, rows, self.shape[-1])
        return self.groups(start, stop).floats()

    def groups(self, start: int, stop: int) -> Groups:
        """Return these rows of a quantised tensor, whose type is none of CODEBOOK_TYPES, as integers and scales."""
        found = unpack(self.type, self.rows(start, stop), self.shape[-1])
        if self.factors is None:
            return found
        with np.errstate(all="ignore"):  # a file may state any number
            return replace(found, scales=found.scales * self.row_factors(start, stop)[:, None])

    def row_factors(self, start: int, stop: int) -> NDArray[np.float32]:
        """Return what the weights of these rows are multiplied with, too, one number per row: NaN, where a scale of a
        folder's NVFP4 is one, which a block cannot say."""
        factors = np.ones(1, np.float32) if self.factors is None else self.factors
        found = np.repeat(factors, self.num_rows // len(factors))[start:stop]
        if self.type != NVFP4 or self.block_scales is None:
            return found
        return np.where(have_nan(self.block_scales[self._stored(start, stop)]), np.float32("nan"), found)


def split_name(name: str) -> tuple[str, str, str]:
    """Return "blk.0", "attn_q" and "weight" of "blk.0.attn_q.weight"."""
    matrix, _, kind = name.rpartition(".")
    block, _, part = matrix.rpartition(".")
    return block, part, kind


def transposed_heads(stored: Tensor) -> Tensor:
    """Return a tensor [heads, inputs, rows] as a matrix [heads * rows, inputs], in float32: blocks of quantised weights
    lie along its columns. No weights are read."""
    heads, inputs, rows = stored.shape
    return Tensor(stored.name, (heads * rows, inputs), FLOAT32, stored.data.reshape(1, -1), stored=stored)


def _transposed_rows(stored: Tensor, start: int, stop: int) -> NDArray[np.uint8]:
    """Return rows of transposed heads, computed from a bounded number of stored rows at a time."""
    _, inputs, rows = stored.shape
    found = np.empty((stop - start, inputs), "<f4")
    step = max(1, _MAX_TRANSPOSED // rows)
    for head in range(start // rows, -(-stop // rows)):
        first, last = max(start, head * rows), min(stop, (head + 1) * rows)
        columns = slice(first - head * rows, last - head * rows)
        for begin in range(0, inputs, step):
            end = min(begin + step, inputs)
            part = stored.floats(head * inputs + begin, head * inputs + end)
            found[first - start : last - start, begin:end] = part[:, columns].T
    return found.view(np.uint8)


def few_floats(tensor: Tensor, where: str) -> NDArray[np.float32]:
    """Return a tensor that is read before its size is checked, such as a norm of a folder, as float32 [rows, inputs].
    Raises CheckpointError, in which `where` names the folder or file, for one that is as large as no such tensor."""
    if tensor.num_rows * tensor.shape[-1] > _MAX_CHANGED:
        raise _impossible(tensor, where)
    return tensor.loaded().floats()


def require_possible_shapes(tensors: Iterable[Tensor], where: str) -> None:
    """Raise CheckpointError for matrices of more rows, or of more short ones, than any model has, and for a vector
    longer than any. Rows are put in order before all sizes are checked, which takes 8 bytes per row, while a file of
    zeros takes no space on the disk."""
    all_rows = short_rows = 0
    for tensor in tensors:
        rows, inputs = max(tensor.shape[:-1], default=1), tensor.shape[-1]
        short_rows += rows if inputs < _FEW_INPUTS else 0
        all_rows += 0 if _ONE_EXPERT.match(tensor.name) else rows
        are_too_many = rows > _MAX_ROWS_OF_ONE or all_rows > _MAX_ROWS or short_rows > _MAX_SHORT_ROWS
        if are_too_many or (rows == 1 and inputs > _MAX_CHANGED):
            raise _impossible(tensor, where)


def _impossible(tensor: Tensor, where: str) -> CheckpointError:
    return CheckpointError(
        f"{where} has a tensor {tensor.name[:80]!r} of the shape {list(tensor.shape)}, which no model has."
    )


def vector(name: str, values: NDArray[np.floating]) -> Tensor:
    """Return a tensor of one dimension that no file contains as it is."""
    return Tensor(name, (len(values),), FLOAT32, np.ascontiguousarray(values, "<f4").view(np.uint8))
