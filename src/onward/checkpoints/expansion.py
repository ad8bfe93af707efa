"""Rows of types that kernels do not read as they are in a file, in forms that they read: exactly what ggml computes.

Those whose bits stand for vectors of a table become 8-bit integers (Q8_X). In all of these types a weight is factor *
scale * integer: a factor per block, an odd or small scale per 16 or 32 weights, and an integer of the table. Those of
NVFP4 stay what they are (NVFP4_X): each block gets the factor of its tensor, which a file states beside it. Sources:
ggml-quants.c (dequantize_row_…), ggml-common.h.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from onward.checkpoints.blocks import NVFP4_SCALES, codebook_floats, nvfp4_scales, unpack
from onward.checkpoints.types import CODEBOOK_TYPES, NVFP4, TensorType

GROUP = 32
EXPANDED_TYPES = dict.fromkeys((*CODEBOOK_TYPES, "IQ4_NL", "IQ4_XS", "Q8_K"), "Q8_X") | {"NVFP4": "NVFP4_X"}
"""By type, the one that it is expanded to."""

EIGHTH = np.float32(0.125)

Bytes = NDArray[Any]
Factors = tuple[NDArray[np.float32], NDArray[np.int16]]
"""Of n blocks of 256 weights: factors [n], scales [n, 16]; of blocks of 32, scales [n, 2]."""


def expanded(
    kind: TensorType, rows: NDArray[np.uint8], inputs: int, factors: NDArray[np.float32] | float = 1.0
) -> NDArray[np.uint8]:
    """Return rows of one of EXPANDED_TYPES, [rows, bytes per row], in the type that it is expanded to, uint8 [rows,
    bytes]. `factors`: of the weights of each row, or of all, where the type has some."""
    if kind == NVFP4:
        return _with_factors(rows.reshape(len(rows), -1, kind.block_bytes), factors).reshape(len(rows), -1)
    with np.errstate(all="ignore"):  # a damaged file may state any factor
        return _in_8_bits(kind, rows, inputs)


def _with_factors(blocks: Bytes, factors: NDArray[np.float32] | float) -> Bytes:
    """Return blocks [rows, blocks, bytes] with the factors of their rows before them."""
    numbers = np.asarray(factors, "<f4").reshape(-1, 1, 1)
    heads = np.ascontiguousarray(np.broadcast_to(numbers, (*blocks.shape[:2], 1))).view(np.uint8)
    return np.concatenate((heads, nvfp4_scales(blocks), blocks[..., NVFP4_SCALES:]), axis=2)


def _in_8_bits(kind: TensorType, rows: NDArray[np.uint8], inputs: int) -> NDArray[np.uint8]:
    """Return blocks of 32 weights of Q8_X: float32 factor, two int16 scales of 16 weights, 32 bytes."""
    if kind.name in CODEBOOK_TYPES:
        factors, scales = _FACTORS[kind.name](rows.reshape(-1, kind.block_bytes))
        factors = np.repeat(factors, kind.block_weights // GROUP)
        values = _integers(codebook_floats(kind, rows, inputs), factors, scales)
    else:
        found = unpack(kind, rows, inputs)
        factors = np.repeat(found.scales.reshape(-1), inputs // found.num_groups // GROUP)
        scales = np.ones((len(factors), 2), np.int16)
        values = found.values.reshape(-1, GROUP).view(np.int8)
    parts = (factors.astype("<f4").reshape(-1, 1), scales.astype("<i2").reshape(-1, 2), values)
    packed = np.concatenate([np.ascontiguousarray(part).view(np.uint8) for part in parts], axis=1)
    return packed.reshape(len(rows), -1)


def _integers(
    weights: NDArray[np.float32], factors: NDArray[np.float32], scales: NDArray[np.int16]
) -> NDArray[np.int8]:
    """Return what the factors and scales are multiplied with, int8 [blocks of 32, 32]."""
    steps = factors[:, None].astype(np.float64) * scales.reshape(-1, 2)
    quotients = weights.reshape(-1, 2, 16).astype(np.float64) / steps[..., None]
    rounded = np.clip(np.rint(np.nan_to_num(quotients, nan=0.0, posinf=0.0, neginf=0.0)), -127, 127)
    return rounded.astype(np.int8).reshape(-1, GROUP)


def _half(blocks: Bytes, at: int) -> NDArray[np.float32]:
    return np.ascontiguousarray(blocks[:, at : at + 2]).view("<f2")[:, 0].astype(np.float32)


def _odd(scales: Bytes) -> NDArray[np.int16]:
    return (2 * scales.astype(np.int16) + 1).astype(np.int16)


def _nibbles(packed: Bytes) -> Bytes:
    """Return the two halves of each byte, lower first: [n, bytes] → [n, 2 × bytes]."""
    return np.stack((packed & 15, packed >> 4), axis=2).reshape(len(packed), -1)


def _per_32(scales: NDArray[np.int16]) -> NDArray[np.int16]:
    return np.repeat(scales, 2, axis=1)


def _iq2_xxs(blocks: Bytes) -> Factors:
    return _half(blocks, 0) * EIGHTH, _per_32(_odd(blocks[:, 2:66].reshape(-1, 8, 8)[:, :, 7] >> 4))


def _iq2_xs(blocks: Bytes) -> Factors:
    return _half(blocks, 0) * EIGHTH, _odd(_nibbles(blocks[:, 66:74]))


def _iq2_s(blocks: Bytes) -> Factors:
    return _half(blocks, 0) * EIGHTH, _odd(_nibbles(blocks[:, 74:82]))


def _iq3_xxs(blocks: Bytes) -> Factors:
    return _half(blocks, 0) * (2 * EIGHTH), _per_32(_odd(blocks[:, 66:98].reshape(-1, 8, 4)[:, :, 3] >> 4))


def _iq3_s(blocks: Bytes) -> Factors:
    return _half(blocks, 0), _per_32(_odd(_nibbles(blocks[:, 106:110])))


def _iq1_s(blocks: Bytes) -> Factors:
    high = np.ascontiguousarray(blocks[:, 34:50]).view("<u2")
    return _half(blocks, 0) * EIGHTH, _per_32(_odd(high >> 12 & 7))


def _iq1_m(blocks: Bytes) -> Factors:
    """The float16 is in the highest four bits of four words, whose other bits are scales of three bits."""
    words = np.ascontiguousarray(blocks[:, 48:56]).view("<u2")
    half = words[:, 0] >> 12 | words[:, 1] >> 8 & 0xF0 | words[:, 2] >> 4 & 0xF00 | words[:, 3] & 0xF000
    scales = np.stack([words >> shift & 7 for shift in (0, 3, 6, 9)], axis=2).reshape(len(blocks), 16)
    return half.astype("<u2").view("<f2").astype(np.float32) * EIGHTH, _odd(scales)


def _ternary(at: int) -> Callable[[Bytes], Factors]:
    return lambda blocks: (_half(blocks, at), np.ones((len(blocks), 16), np.int16))


_FACTORS: dict[str, Callable[[Bytes], Factors]] = {
    "IQ2_XXS": _iq2_xxs,
    "IQ2_XS": _iq2_xs,
    "IQ2_S": _iq2_s,
    "IQ3_XXS": _iq3_xxs,
    "IQ3_S": _iq3_s,
    "IQ1_S": _iq1_s,
    "IQ1_M": _iq1_m,
    "TQ1_0": _ternary(52),
    "TQ2_0": _ternary(64),
}
