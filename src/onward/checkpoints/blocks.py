"""From ggml's blocks to integers and scales (ggml/src/ggml-quants.c): weight = scale × integer - bias, per group.

Everything here is numpy over many blocks at once: uint8 [rows, bytes per row] in, [rows, …] out. Blocks whose bits
stand for vectors of a table are read by llama.cpp's own package, which has the tables.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from onward.checkpoints.types import TensorType

Bytes = NDArray[Any]
"""uint8, which numpy's types lose in arithmetic."""
Floats = NDArray[np.float32]

Unpacked = tuple[NDArray[np.int8] | NDArray[np.uint8], Floats, Floats | None]
"""Of n blocks: values [n, weights], scales [n, groups], biases [n, groups] or None."""

_IQ4_VALUES = np.array([-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113], np.int8)
"""What the 4-bit numbers of IQ4 types stand for."""
FLOAT8_GROUP = 32
"""Weights in FP8 that are held with one scale."""
_FP4_VALUES = np.array([0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12], np.int8)
"""Twice what those of MXFP4 and NVFP4 stand for."""
NVFP4_SCALES = 4
"""Of a block, a byte each, before its weights."""


@dataclass(frozen=True, slots=True)
class Groups:
    """Rows of quantised weights: `values` int8 or uint8 [rows, inputs], `scales` and `biases` float32 [rows, groups].

    `biases` None: none are subtracted.
    """

    values: NDArray[np.int8] | NDArray[np.uint8]
    scales: Floats
    biases: Floats | None

    @property
    def num_groups(self) -> int:
        """Groups per row."""
        return int(self.scales.shape[1])

    def floats(self) -> Floats:
        """Return the weights, float32 [rows, inputs]."""
        rows, inputs = self.values.shape
        grouped = self.values.reshape(rows, self.num_groups, -1).astype(np.float32)
        with np.errstate(all="ignore"):  # a file may state any scale
            grouped *= self.scales[..., None]
            if self.biases is not None:
                grouped -= self.biases[..., None]
        return grouped.reshape(rows, inputs)


def unpack(kind: TensorType, rows: Bytes, inputs: int) -> Groups:
    """Return the rows of a quantised tensor, [rows, bytes per row] with `inputs` weights each."""
    blocks = rows.reshape(-1, kind.block_bytes)
    values, scales, biases = _UNPACK[kind.name](blocks)
    shape = (rows.shape[0], -1)
    return Groups(
        values.reshape(rows.shape[0], inputs), scales.reshape(shape), None if biases is None else biases.reshape(shape)
    )


def _half(blocks: Bytes, offset: int) -> Floats:
    """Return the float16 at a byte offset of each block as float32 [n, 1]."""
    return np.ascontiguousarray(blocks[:, offset : offset + 2]).view("<f2").astype(np.float32)


def _nibbles(packed: Bytes) -> Bytes:
    """Return the low halves of the bytes, then the high ones: [n, bytes] → [n, 2 × bytes]."""
    return np.concatenate([packed & 15, packed >> 4], axis=1)


def _bits(packed: Bytes) -> Bytes:
    """Return the bits of the bytes, lowest first: [n, bytes] → [n, 8 × bytes]."""
    return np.unpackbits(packed, axis=1, bitorder="little")


def _signed(values: Bytes, zero: int) -> NDArray[np.int8]:
    return (values.view(np.int8) - np.int8(zero)).astype(np.int8)


def _q1_0(blocks: Bytes) -> Unpacked:
    return _signed(_bits(blocks[:, 2:]) << 1, 1), _half(blocks, 0), None


def _q2_0(blocks: Bytes) -> Unpacked:
    integers = blocks[:, 2:, None] >> np.array([0, 2, 4, 6], np.uint8) & 3
    return _signed(integers.reshape(len(blocks), -1), 1), _half(blocks, 0), None


def _q4_0(blocks: Bytes) -> Unpacked:
    return _signed(_nibbles(blocks[:, 2:]), 8), _half(blocks, 0), None


def _q4_1(blocks: Bytes) -> Unpacked:
    return _nibbles(blocks[:, 4:]), _half(blocks, 0), -_half(blocks, 2)


def _q5_0(blocks: Bytes) -> Unpacked:
    return _signed(_nibbles(blocks[:, 6:]) | _bits(blocks[:, 2:6]) << 4, 16), _half(blocks, 0), None


def _q5_1(blocks: Bytes) -> Unpacked:
    return _nibbles(blocks[:, 8:]) | _bits(blocks[:, 4:8]) << 4, _half(blocks, 0), -_half(blocks, 2)


def _q8_0(blocks: Bytes) -> Unpacked:
    return np.ascontiguousarray(blocks[:, 2:]).view(np.int8), _half(blocks, 0), None


def _q8_k(blocks: Bytes) -> Unpacked:
    scales = np.ascontiguousarray(blocks[:, :4]).view("<f4").astype(np.float32)
    return np.ascontiguousarray(blocks[:, 4:260]).view(np.int8), scales, None


def _shifted(packed: Bytes, width: int, part: int) -> Bytes:
    """Return 2- or 4-bit numbers: for each run of `part` bytes its lowest bits, then the next ones, and so on."""
    runs = packed.reshape(len(packed), -1, 1, part)
    shifts = np.arange(0, 8, width, dtype=np.uint8).reshape(1, 1, -1, 1)
    return (runs >> shifts & ((1 << width) - 1)).reshape(len(packed), -1)


def _q2_k(blocks: Bytes) -> Unpacked:
    both = blocks[:, :16]
    scales = _half(blocks, 80) * (both & 15).astype(np.float32)
    biases = _half(blocks, 82) * (both >> 4).astype(np.float32)
    return _shifted(blocks[:, 16:80], 2, 32), scales, biases


def _q3_k(blocks: Bytes) -> Unpacked:
    low = _shifted(blocks[:, 32:96], 2, 32)
    # The third bits: bit j of the 32 bytes belongs to the j-th run of 32 weights. Where it is 0, 4 is subtracted.
    third = np.unpackbits(blocks[:, None, :32], axis=1, bitorder="little").reshape(len(blocks), 256)
    values = (low.view(np.int8) - (np.int8(4) * (third == 0))).astype(np.int8)
    packed = blocks[:, 96:108]
    low_scales = _nibbles(packed[:, :8])
    high_scales = _shifted(packed[:, 8:12], 2, 4)
    scales = (low_scales | high_scales << 4).view(np.int8) - np.int8(32)
    return values, _half(blocks, 108) * scales.astype(np.float32), None


def _six_bit_pairs(packed: Bytes) -> tuple[Bytes, Bytes]:
    """Return the eight 6-bit scales and the eight 6-bit minima that 12 bytes hold."""
    first, second, third = packed[:, :4], packed[:, 4:8], packed[:, 8:12]
    scales = np.concatenate([first & 63, (third & 15) | (first >> 6) << 4], axis=1)
    minima = np.concatenate([second & 63, third >> 4 | (second >> 6) << 4], axis=1)
    return scales, minima


def _q4_k(blocks: Bytes) -> Unpacked:
    scales, minima = _six_bit_pairs(blocks[:, 4:16])
    values = _shifted(blocks[:, 16:], 4, 32)
    return values, _half(blocks, 0) * scales.astype(np.float32), _half(blocks, 2) * minima.astype(np.float32)


def _q5_k(blocks: Bytes) -> Unpacked:
    scales, minima = _six_bit_pairs(blocks[:, 4:16])
    fifth = np.unpackbits(blocks[:, None, 16:48], axis=1, bitorder="little").reshape(len(blocks), 256)
    values = _shifted(blocks[:, 48:], 4, 32) | fifth << 4
    return values, _half(blocks, 0) * scales.astype(np.float32), _half(blocks, 2) * minima.astype(np.float32)


def _q6_k(blocks: Bytes) -> Unpacked:
    values = _shifted(blocks[:, :128], 4, 64) | _shifted(blocks[:, 128:192], 2, 32) << 4
    scales = np.ascontiguousarray(blocks[:, 192:208]).view(np.int8).astype(np.float32)
    return _signed(values, 32), _half(blocks, 208) * scales, None


def _iq4_nl(blocks: Bytes) -> Unpacked:
    return _IQ4_VALUES[_nibbles(blocks[:, 2:])], _half(blocks, 0), None


def _iq4_xs(blocks: Bytes) -> Unpacked:
    high = _shifted(blocks[:, 2:4], 2, 1)
    low = _shifted(blocks[:, 4:8], 4, 1)
    scales = (low | high << 4).view(np.int8) - np.int8(32)
    values = _nibbles(blocks[:, 8:].reshape(-1, 16)).reshape(len(blocks), 256)
    return _IQ4_VALUES[values], _half(blocks, 0) * scales.astype(np.float32), None


def _mxfp4(blocks: Bytes) -> Unpacked:
    scales = np.ldexp(np.float32(1), blocks[:, :1].astype(np.int32) - 128).astype(np.float32)
    return _FP4_VALUES[_nibbles(blocks[:, 1:])], scales, None


def _nvfp4(blocks: Bytes) -> Unpacked:
    bits = nvfp4_scales(blocks).astype("<u2") << 7  # a 256th, as float16
    scales = bits.view("<f2").astype(np.float32) * np.float32(128)  # half of each: the integers are doubled
    return _FP4_VALUES[_shifted(blocks[:, NVFP4_SCALES:], 4, 8)], scales, None


def nvfp4_scales(blocks: Bytes) -> Bytes:
    """Return the scales of blocks, uint8 [..., 4]: E4M3 without its sign; a NaN without one is 0, as in ggml."""
    octets = blocks[..., :NVFP4_SCALES]
    return np.where(octets == 0x7F, 0, octets & 0x7F).astype(np.uint8)


def mxfp4_blocks(codes: Bytes, exponents: Bytes) -> Bytes:
    """Return rows of MXFP4 as ggml has them, uint8 [rows, bytes per row].

    As safetensors files have them: `codes` [rows, inputs / 2], two successive weights in a byte, the first one in its
    lower half; `exponents` [rows, inputs / 32].
    """
    bytes_of_blocks = codes.reshape(*exponents.shape, 16)
    weights = np.stack((bytes_of_blocks & 15, bytes_of_blocks >> 4), axis=-1).reshape(*exponents.shape, 32)
    packed = weights[..., :16] | weights[..., 16:] << 4
    return np.concatenate((exponents[..., None], packed), axis=-1).reshape(len(codes), -1)


def nvfp4_blocks(codes: Bytes, scales: Bytes) -> Bytes:
    """Return rows of NVFP4 as ggml has them, uint8 [rows, bytes per row], whose scales have no sign.

    As safetensors files have them: `codes` [rows, inputs / 2], two successive weights in a byte, the first one in its
    lower half; `scales` [rows, inputs / 16], E4M3. For a negative one, the codes' signs change.
    """
    octets = codes.reshape(*scales.shape, 8)
    weights = np.stack((octets & 15, octets >> 4), axis=-1).reshape(*scales.shape, 16) ^ (scales >> 7 << 3)[..., None]
    packed = (weights[..., :8] | weights[..., 8:] << 4).reshape(len(codes), -1, 32)
    heads = (scales & 0x7F).reshape(len(codes), -1, NVFP4_SCALES)
    return np.concatenate((heads, packed), axis=-1).reshape(len(codes), -1)


def have_nan(scales: Bytes) -> NDArray[np.bool_]:
    """Return whether each row of numbers in E4M3, uint8 [rows, numbers], has a NaN."""
    found: NDArray[np.bool_] = (scales & 0x7F == 0x7F).any(axis=1)
    return found


def _float8_values() -> Floats:
    """Return the numbers of all codes of E4M3: a 256th of each is the float16 with the same bits in it, except NaN."""
    codes = np.arange(256)
    values = ((codes & 0x7F) << 7 | (codes & 0x80) << 8).astype("<u2").view("<f2").astype(np.float32) * np.float32(256)
    return np.where(codes & 0x7F == 0x7F, np.float32("nan"), values)


_FLOAT8_VALUES = _float8_values()


def float8_floats(codes: Bytes, scales: Floats) -> Floats:
    """Return rows of E4M3 as float32 [rows, inputs]: `codes` [rows, inputs], times `scales` [rows, groups of
    FLOAT8_GROUP], rounded once."""
    with np.errstate(all="ignore"):  # a damaged file may state any number
        found: Floats = _FLOAT8_VALUES[codes] * np.repeat(scales, FLOAT8_GROUP, axis=1)[:, : codes.shape[1]]
    return found


def float8_blocks(codes: Bytes, scales: Floats) -> Bytes:
    """Return the same rows as kernels hold them, uint8 [rows, bytes per row], the last block filled up with zeros: of
    each group 256 times its scale as float32, and its codes. That of a group with a NaN is NaN, as are then all sums
    that its row is in."""
    rows, inputs = codes.shape
    padded = np.pad(codes, ((0, 0), (0, -inputs % FLOAT8_GROUP))).reshape(rows, -1, FLOAT8_GROUP)
    with np.errstate(all="ignore"):
        factors = np.where((padded & 0x7F == 0x7F).any(axis=2), np.float32("nan"), scales * np.float32(256))
    heads = factors.astype("<f4").view(np.uint8).reshape(rows, -1, 4)
    return np.concatenate((heads, padded), axis=2).reshape(rows, -1)


_UNPACK: dict[str, Callable[[Bytes], Unpacked]] = {
    "Q1_0": _q1_0,
    "Q2_0": _q2_0,
    "Q4_0": _q4_0,
    "MXFP4": _mxfp4,
    "NVFP4": _nvfp4,
    "Q4_1": _q4_1,
    "Q5_0": _q5_0,
    "Q5_1": _q5_1,
    "Q8_0": _q8_0,
    "Q2_K": _q2_k,
    "Q3_K": _q3_k,
    "Q4_K": _q4_k,
    "Q5_K": _q5_k,
    "Q6_K": _q6_k,
    "Q8_K": _q8_k,
    "IQ4_NL": _iq4_nl,
    "IQ4_XS": _iq4_xs,
}


def codebook_floats(kind: TensorType, rows: NDArray[np.uint8], inputs: int) -> NDArray[np.float32]:
    """Return the rows, [rows, bytes per row], as float32 [rows, inputs]."""
    from gguf import GGMLQuantizationType, quants  # here: few files need it, and it takes a tenth of a second

    found: Any = quants.dequantize(np.ascontiguousarray(rows), GGMLQuantizationType[kind.name])
    return np.asarray(found, np.float32).reshape(len(rows), inputs)
