"""All types of weights as panels: where the words of a block lie, and how integers become weights.

Adding a type is an entry of `WEIGHT_TYPES`, with a function that reads a block's scales (`head`) and one that reads its
weights four at a time (`words`). Products of every kind follow from these two. Sources: ggml-quants.c, ggml-common.h;
for FP8, OCP's 8-bit floating point (OFP8, revision 1.0).
"""

from __future__ import annotations

from collections.abc import Callable

from onward.kernels.values import F32X16, I16, I32, Value
from onward.kernels.weight_types import (
    F16X16,
    I32X16,
    PANEL_ROWS,
    WORD_BYTES,
    BlockReader,
    FloatType,
    Head,
    WeightType,
    WordReader,
)


def _low_and_high(words: Value) -> tuple[Value, Value]:
    """Return the two float16 of each word as float32."""
    return words.trunc(I16).as_(F16X16).fpext(), (words >> 16).trunc(I16).as_(F16X16).fpext()


def _byte(words: Value, index: int) -> Value:
    return (words >> (8 * index)) & 0xFF if index < 3 else words >> 24


def _nibbles(words: Value, is_high: int) -> Value:
    return (words >> 4 if is_high else words) & 0x0F0F0F0F


def _blocks_of_32(head_bytes: int, fifth_bits_at: int = -1) -> Callable[[BlockReader, Value], WordReader]:
    """Words of Q4_0, Q4_1, Q5_0 and Q5_1: weights 0 to 15 are the low halves of bytes, 16 to 31 the high ones. Bit j of
    the word at `fifth_bits_at` is the fifth bit of weight j."""

    def words(r: BlockReader, step: Value) -> WordReader:
        def word(e: int, i: int) -> Value:
            low = _nibbles(r.words(r.block, head_bytes + i % 4 * WORD_BYTES), i // 4)
            if fifth_bits_at < 0:
                return low
            four = (r.words(r.block, fifth_bits_at) >> (4 * i)) & 0xF
            return low | (((four * 0x00204081) & 0x01010101) << 4)  # bit k of the four to byte k

        return word

    return words


def _q4_1_head(r: BlockReader) -> Head:
    factor, minimum = _low_and_high(r.words(r.block, 0))
    return Head(factor, minimum, minima=(r.f.const(I32X16, 1),))


def _k_scales(r: BlockReader) -> Head:
    """Q4_K and Q5_K: eight scales and eight minima of 6 bits in 12 bytes."""
    factor, min_factor = _low_and_high(r.words(r.block, 0))
    first, second, third = (r.words(r.block, (1 + i) * WORD_BYTES) for i in range(3))
    scales = (first & 0x3F3F3F3F, (third & 0x0F0F0F0F) | (((first >> 6) & 0x03030303) << 4))
    minima = (second & 0x3F3F3F3F, ((third >> 4) & 0x0F0F0F0F) | (((second >> 6) & 0x03030303) << 4))
    each = [(half, index) for half in range(2) for index in range(4)]
    return Head(
        factor,
        -min_factor,
        tuple(_byte(scales[half], index) for half, index in each),
        tuple(_byte(minima[half], index) for half, index in each),
    )


def _q4_k_words(r: BlockReader, step: Value) -> WordReader:
    at = r.at(step * (8 * WORD_BYTES) + 4 * WORD_BYTES)
    return lambda e, i: _nibbles(r.words(at, i * WORD_BYTES), e)


def _q5_k_words(r: BlockReader, step: Value) -> WordReader:
    """64 weights: their low bits as Q4_K's; bit g of byte j is the fifth bit of weight j of group g."""
    at = r.at(step * (8 * WORD_BYTES) + 12 * WORD_BYTES)

    def word(e: int, i: int) -> Value:
        fifth = (r.words(r.block, (4 + i) * WORD_BYTES) >> _in_lanes(r, step * 2 + e)) & 0x01010101
        return _nibbles(r.words(at, i * WORD_BYTES), e) | (fifth << 4)

    return word


def _in_lanes(r: BlockReader, count: Value) -> Value:
    return r.f.splat(count.trunc(I32), PANEL_ROWS)


def _q2_k_head(r: BlockReader) -> Head:
    """Sixteen scales and minima of 4 bits, one per 16 weights."""
    factor, min_factor = _low_and_high(r.words(r.block, 0))
    both = [_byte(r.words(r.block, (1 + i // 4) * WORD_BYTES), i % 4) for i in range(16)]
    return Head(factor, -min_factor, tuple(each & 0xF for each in both), tuple(each >> 4 for each in both))


def _two_bits(words: Value, e: int) -> Value:
    return (words >> (2 * e) if e else words) & 0x03030303


def _q2_k_words(r: BlockReader, step: Value) -> WordReader:
    """Half a block: bits 2 e and 2 e + 1 of 32 bytes are the weights of group e."""
    at = r.at(step * (8 * WORD_BYTES) + 5 * WORD_BYTES)
    return lambda e, i: _two_bits(r.words(at, i * WORD_BYTES), e)


def _q3_k_head(r: BlockReader) -> Head:
    """Sixteen scales of 6 bits, minus 32: low halves in 8 bytes, the two high bits of four at a time in 4 bytes."""
    first, second, high = (r.words(r.block, 32 + i * WORD_BYTES) for i in range(3))
    words = [_nibbles(low, i // 2) | (_two_bits(high, i) << 4) for i, low in enumerate((first, second, first, second))]
    scales = tuple(_byte(word, index) - 32 for word in words for index in range(4))
    return Head(r.halves(r.block, 0), scales=scales)


def _q3_k_words(r: BlockReader, step: Value) -> WordReader:
    """Half a block: as Q2_K, and bit 4 half + e of byte j is the third bit of weight j of group e."""
    at = r.at(step * (8 * WORD_BYTES) + (32 + 11 * WORD_BYTES))

    def word(e: int, i: int) -> Value:
        third = (r.words(r.block, 32 + (3 + i) * WORD_BYTES) >> _in_lanes(r, step * 4 + e)) & 0x01010101
        return _two_bits(r.words(at, i * WORD_BYTES), e) | (third << 2)

    return word


def _q8_x_head(r: BlockReader) -> Head:
    scales = r.words(r.block, WORD_BYTES)
    return Head(r.words(r.block, 0).as_(F32X16), scales=((scales << 16).sar(16), scales.sar(16)))


def _q6_k_head(r: BlockReader) -> Head:
    words = [r.words(r.block, 32 + i * WORD_BYTES) for i in range(4)]
    scales = tuple((word << (24 - 8 * i)).sar(24) if i < 3 else word.sar(24) for word in words for i in range(4))
    return Head(r.halves(r.block, 0), scales=scales)


def _q6_k_words(r: BlockReader, step: Value) -> WordReader:
    """Half a block: 128 weights, whose high bits come first in the panel, then their low ones."""
    at = r.at(step * (24 * WORD_BYTES) + (32 + 4 * WORD_BYTES))

    def word(e: int, i: int) -> Value:
        low = _nibbles(r.words(at, (8 + e % 2 * 8 + i) * WORD_BYTES), e // 2)
        high = r.words(at, i * WORD_BYTES)
        shifted = high << 4 if e == 0 else high << 2 if e == 1 else high if e == 2 else high >> 2
        return low | (shifted & 0x30303030)

    return word


def _q1_0_words(r: BlockReader, step: Value) -> WordReader:
    """Signs: bit j of the step's word is set where weight j is positive."""
    at = r.at(step * WORD_BYTES + 32)

    def word(e: int, i: int) -> Value:
        four = (r.words(at, 0) >> (4 * i)) & 0xF
        return ((four * 0x00204081) & 0x01010101) << 1

    return word


def _q2_0_words(r: BlockReader, step: Value) -> WordReader:
    """Bits 2 j and 2 j + 1 of the i-th byte of a group's eight are its weight 4 i + j."""
    at = r.at(step * (2 * WORD_BYTES) + 32)

    def word(e: int, i: int) -> Value:
        packed = r.words(at, i // 4 * WORD_BYTES)
        four = (packed >> (8 * (i % 4)) if i % 4 else packed) & 0xFF
        pairs = (four | (four << 12)) & 0x000F000F
        return (pairs | (pairs << 6)) & 0x03030303

    return word


_MXFP4 = (12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0)
"""By code, twice the number of 4 bits (OCP's E2M1: 0, 0.5, 1, 1.5, 2, 3, 4, 6, then the same below zero), plus 12."""


def _mxfp4_head(r: BlockReader) -> Head:
    """Half of 2 to the power of a byte minus 127; the two smallest are denormal."""
    exponent = r.octets(r.block, 0)
    denormal = r.f.const(I32X16, 1 << 21) << (exponent & 1)
    return Head(r.f.select(exponent < 2, denormal, (exponent - 1) << 23).as_(F32X16))


def _mxfp4_words(r: BlockReader, step: Value) -> WordReader:
    codes = _blocks_of_32(16)(r, step)
    return lambda e, i: r.lookup(_MXFP4, codes(e, i))


def _f8_e4m3(r: BlockReader, k: Value) -> Value:
    """Sign, four bits of exponent, three of mantissa: in the places of a float16's they are a 256th of the number, also
    of a subnormal one. Its conversion is exact, and the block's factor is 256 times its scale."""
    codes = r.octets(r.at(k * PANEL_ROWS + WORD_BYTES), 0)
    halves = (codes & 0x7F) << 7 | (codes & 0x80) << 8
    return halves.trunc(I16).as_(F16X16).fpext() * r.words(r.block, 0).as_(F32X16)


def _nvfp4_head(r: BlockReader) -> Head:
    """A factor, and four scales of 7 bits."""
    octets = r.words(r.block, WORD_BYTES)
    return Head(r.words(r.block, 0).as_(F32X16), scales=tuple(_half_of_e4m3(_byte(octets, i)) for i in range(4)))


def _half_of_e4m3(octets: Value) -> Value:
    """Return half of a float of 4 bits of exponent and 3 of mantissa, without a sign, whose bits are these."""
    return (octets << 7).trunc(I16).as_(F16X16).fpext() * 128.0  # a 256th, as float16


def _nvfp4_words(r: BlockReader, step: Value) -> WordReader:
    """Runs of 16 weights: 0 to 7 are the low halves of 8 bytes, 8 to 15 the high ones."""
    at = r.at(step * (4 * WORD_BYTES) + 2 * WORD_BYTES)
    return lambda e, i: r.lookup(_MXFP4, _nibbles(r.words(at, (i // 4 * 2 + i % 2) * WORD_BYTES), i // 2 % 2))


def _bytes_at(offset: int) -> Callable[[BlockReader, Value], WordReader]:
    return lambda r, step: lambda e, i: r.words(r.block, offset + i * WORD_BYTES)


def _factor_alone(r: BlockReader) -> Head:
    return Head(r.halves(r.block, 0))


WEIGHT_TYPES: dict[str, WeightType | FloatType] = {
    each.name: each
    for each in (
        WeightType("Q1_0", 128, 18, ((0, 2, 1), (2, 4, 4)), _factor_alone, _q1_0_words, max_integer=2, offset=1),
        WeightType("Q2_0", 64, 18, ((0, 2, 1), (2, 4, 4)), _factor_alone, _q2_0_words, max_integer=3, offset=1),
        WeightType("Q4_0", 32, 18, ((0, 2, 1), (2, 4, 4)), _factor_alone, _blocks_of_32(32), max_integer=15, offset=8,
                   few_rows_without_spare_units=19),
        WeightType("MXFP4", 32, 17, ((0, 1, 1), (1, 4, 4)), _mxfp4_head, _mxfp4_words, max_integer=24, offset=12,
                   few_rows_without_spare_units=8),
        WeightType("NVFP4_X", 64, 40, ((0, 4, 10),), _nvfp4_head, _nvfp4_words,
                   max_integer=24, offset=12, scale_weights=16, has_float_scales=True,
                   few_rows_without_spare_units=8),
        WeightType("Q4_1", 32, 20, ((0, 4, 5),), _q4_1_head, _blocks_of_32(64), max_integer=15, minimum_weights=32,
                   few_rows_without_spare_units=19),
        WeightType("Q5_0", 32, 22, ((0, 2, 1), (2, 4, 5)), _factor_alone, _blocks_of_32(96, 32),
                   max_integer=31, offset=16, few_rows=16),
        WeightType("Q5_1", 32, 24, ((0, 4, 6),), _q4_1_head, _blocks_of_32(128, 64),
                   max_integer=31, minimum_weights=32, few_rows=16, few_rows_without_spare_units=8),
        WeightType("Q8_0", 32, 34, ((0, 2, 1), (2, 4, 8)), _factor_alone, _bytes_at(32),
                   few_rows_without_spare_units=32),
        WeightType("Q8_X", 32, 40, ((0, 4, 10),), _q8_x_head, _bytes_at(128), scale_weights=16),
        WeightType(
            "Q2_K", 256, 84, ((80, 4, 1), (0, 4, 20)), _q2_k_head, _q2_k_words,
            max_integer=3, scale_weights=16, minimum_weights=16, step_groups=4, few_rows_without_spare_units=8,
        ),
        WeightType(
            "Q3_K", 256, 110, ((108, 2, 1), (96, 4, 3), (0, 4, 24)), _q3_k_head, _q3_k_words,
            max_integer=7, offset=4, scale_weights=16, step_groups=4, few_rows=4,
        ),
        WeightType(
            "Q4_K", 256, 144, ((0, 4, 36),), _k_scales, _q4_k_words,
            max_integer=15, scale_weights=32, minimum_weights=32, step_groups=2, few_rows_without_spare_units=19,
        ),
        WeightType(
            "Q5_K", 256, 176, ((0, 4, 44),), _k_scales, _q5_k_words,
            max_integer=31, scale_weights=32, minimum_weights=32, step_groups=2, few_rows=8,
        ),
        WeightType(
            "Q6_K", 256, 210, ((208, 2, 1), (192, 4, 4), (128, 4, 8), (0, 4, 16), (160, 4, 8), (64, 4, 16)),
            _q6_k_head, _q6_k_words, max_integer=63, offset=32, scale_weights=16, step_groups=4, few_rows=8,
        ),
        FloatType("F16", 2, lambda r, k: r.halves(r.at(k * (2 * PANEL_ROWS)), 0)),
        FloatType("BF16", 2, lambda r, k: (r.shorts(r.at(k * (2 * PANEL_ROWS)), 0) << 16).as_(F32X16)),
        FloatType("F8_E4M3", 1, _f8_e4m3, head_bytes=4),
        FloatType("F32", 4, lambda r, k: r.words(r.at(k * (4 * PANEL_ROWS)), 0).as_(F32X16)),
    )
}  # fmt: skip
"""By ggml's name. Not ggml's are Q8_X: a float32 factor, two int16 scales and 32 bytes, to which types without
kernels of their own are expanded exactly, and NVFP4_X: a float32 factor, which a file states once per tensor, before a
block of NVFP4 (checkpoints.expansion makes both). F8_E4M3 is that of safetensors files, each 32 weights
with 256 times their scale as float32 (checkpoints.blocks.float8_blocks)."""
