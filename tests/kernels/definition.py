"""What kernels compute, in plain numpy, operation by operation: the same bits. Nothing is shared with src but exp2's
constants, which tests of `maths` prove."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tests.kernels.float_definitions import exp, expm1, sigmoid, softplus

Floats = NDArray[np.float32]
GROUP = 32
single = np.float32


def fma(a: Any, b: Any, c: Any) -> Any:
    """a * b + c of float32, rounded once: the float64 sum is rounded to odd, so that only the last rounding counts."""
    a, b, c = (np.asarray(each, np.float32).astype(np.float64) for each in (a, b, c))
    product = a * b
    total = product + c
    rest = total - product
    error = (product - (total - rest)) + (c - rest)
    bits = total.view(np.int64) if total.ndim else np.atleast_1d(total).view(np.int64)
    is_inexact = (error != 0) & (bits.reshape(total.shape) & 1 == 0)
    step = np.where((error > 0) ^ (total < 0), 1, -1)
    odd = (bits.reshape(total.shape) + np.where(is_inexact, step, 0)).astype(np.int64)
    return odd.view(np.float64).astype(np.float32)


# activations


def int8_blocks(x: Floats) -> tuple[NDArray[np.int64], Floats]:
    """Steps [rows, groups, 32] and scales [rows, groups]."""
    blocks = x.reshape(len(x), -1, GROUP)
    largest = np.abs(blocks).max(axis=2)
    with np.errstate(divide="ignore"):
        inverse = np.where(largest > single(1e-30), single(127) / largest, single(0))
    scaled = np.rint(blocks * inverse[..., None])
    return np.clip(scaled, -127, 127).astype(np.int64), largest * single(1 / 127)


# units


def xielu(x: Floats, numbers: Floats) -> Floats:
    """The activation with these four numbers: alpha above 0, alpha below, beta, and how close to 0 a negative number
    may come."""
    above, below, beta, closest = numbers
    linear = x * beta
    negative = fma(expm1(np.minimum(x, closest)) - x, below, linear)
    found: Floats = np.where(x > 0, fma(x * above, x, linear), negative)
    return found


# norms, gates, hidden states


def _sum(rows: Floats, *, squared: bool = False) -> Floats:
    """Of each row, [rows, 1]: two vectors of sums, alternately, then their lanes."""
    vectors = np.pad(rows, ((0, 0), (0, -rows.shape[1] % GROUP))).reshape(len(rows), -1, 16)
    totals = np.zeros((2, len(rows), 16), np.float32)
    for index, vector in enumerate(vectors.swapaxes(0, 1)):
        before = totals[index % 2]
        totals[index % 2] = fma(vector, vector, before) if squared else before + vector
    sums: Floats = totals[0] + totals[1]
    while sums.shape[1] > 1:
        half = sums.shape[1] // 2
        sums = sums[:, :half] + sums[:, half:]
    return sums


def mean_square(rows: Floats) -> Floats:
    """Of each row, [rows, 1]."""
    return _sum(rows, squared=True) / single(rows.shape[1])


def as_large(rows: Floats, reference: Floats, weight: Floats, least: float) -> Floats:
    """Rows as large as others, times a weight."""
    root = np.sqrt(mean_square(reference)) / np.sqrt(np.maximum(mean_square(rows), single(least)))
    found: Floats = (rows * root * weight).astype(np.float32)
    return found


def sparse(rows: Floats, cutoff: float) -> Floats:
    """What rows exceed their mean by, beyond so many standard deviations."""
    centred = rows - _sum(rows) / single(rows.shape[1])
    return np.maximum(centred - single(cutoff) * np.sqrt(mean_square(centred)), single(0))


def predicted(states: Floats, coefficients: Floats) -> Floats:
    """AltUp's predictions: states [rows, count, size], coefficients [rows, count, count]."""
    found = states.copy()
    for j in range(states.shape[1]):
        found = fma(coefficients[:, :, j, None], states[:, None, j], found)
    return found


def corrected(states: Floats, computed: Floats, coefficients: Floats) -> Floats:
    """AltUp's corrections of predictions [rows, count, size] by what a layer computed of the first one."""
    change = computed - states[:, 0]
    found: Floats = fma(coefficients[:, :, None] + single(1), change[:, None], states)
    return found


# weights


@dataclass(frozen=True)
class Parts:
    """Rows of quantised weights: factors [rows, blocks], integers as stored [rows, blocks, groups, 32], scales
    [rows, blocks, groups, 32] as each weight has it, minima [rows, blocks, groups], or [..., 2]
    with one per 16 weights, float_scales [rows, blocks, groups, 2]."""

    factors: Floats
    integers: NDArray[np.int64]
    offset: int = 0
    scales: NDArray[np.int64] | None = None
    min_factors: Floats | None = None
    minima: NDArray[np.int64] | None = None
    float_scales: Floats | None = None


def _half(blocks: NDArray[np.uint8], at: int) -> Floats:
    return np.ascontiguousarray(blocks[..., at : at + 2]).view("<f2")[..., 0].astype(np.float32)


def _q1_0(blocks: NDArray[np.uint8]) -> Parts:
    bits = np.unpackbits(blocks[..., 2:], axis=-1, bitorder="little").astype(np.int64)
    return Parts(_half(blocks, 0), 2 * bits.reshape(*blocks.shape[:2], 4, 32), 1)


def _q2_0(blocks: NDArray[np.uint8]) -> Parts:
    bits = (
        np.unpackbits(blocks[..., 2:], axis=-1, bitorder="little").astype(np.int64).reshape(*blocks.shape[:2], 2, 32, 2)
    )
    return Parts(_half(blocks, 0), bits[..., 0] + 2 * bits[..., 1], 1)


def _q4_0(blocks: NDArray[np.uint8]) -> Parts:
    low, high = blocks[..., 2:] & 15, blocks[..., 2:] >> 4
    return Parts(_half(blocks, 0), np.concatenate((low, high), axis=-1)[..., None, :].astype(np.int64), 8)


def _e2m1(codes: NDArray[np.uint8]) -> NDArray[np.int64]:
    """OCP's E2M1 (Microscaling formats 1.0, 5.3.3): sign, two bits of exponent, one of mantissa; twice the number, plus
    12."""
    exponent, mantissa = (codes >> 1 & 3).astype(np.int64), (codes & 1).astype(np.int64)
    double = np.where(exponent == 0, mantissa, (2 + mantissa) << np.maximum(exponent - 1, 0))
    return 12 + np.where(codes & 8, -double, double)


def _mxfp4(blocks: NDArray[np.uint8]) -> Parts:
    """The scale of a block is E8M0, half of it."""
    codes = np.concatenate((blocks[..., 1:] & 15, blocks[..., 1:] >> 4), axis=-1)
    factors = np.exp2(blocks[..., 0].astype(np.float64) - 128).astype(np.float32)
    return Parts(factors, _e2m1(codes)[..., None, :], 12)


def _nvfp4_x(blocks: NDArray[np.uint8]) -> Parts:
    """A factor; scales of 16 weights in E4M3, half of them; their codes."""
    shape = blocks.shape[:2]
    octets, codes = blocks[..., 4:8].astype(np.int64), blocks[..., 8:].reshape(*shape, 4, 8)
    exponent, mantissa = octets >> 3, octets & 7
    scales = np.where(exponent == 0, mantissa * 2.0**-10, (8 + mantissa) * 2.0 ** (exponent - 11)).astype(np.float32)
    integers = _e2m1(np.concatenate((codes & 15, codes >> 4), axis=-1)).reshape(*shape, 2, 32)
    factors = np.ascontiguousarray(blocks[..., :4]).view("<f4")[..., 0]
    return Parts(factors, integers, 12, float_scales=scales.reshape(*shape, 2, 2))


def _q4_1(blocks: NDArray[np.uint8]) -> Parts:
    low, high = blocks[..., 4:] & 15, blocks[..., 4:] >> 4
    integers = np.concatenate((low, high), axis=-1)[..., None, :].astype(np.int64)
    return Parts(
        _half(blocks, 0), integers, min_factors=_half(blocks, 2), minima=np.ones((*blocks.shape[:2], 1), np.int64)
    )


def _fifth_bits(blocks: NDArray[np.uint8]) -> NDArray[np.int64]:
    """Bit j of 4 bytes, for each of 32 weights."""
    return np.unpackbits(blocks, axis=-1, bitorder="little").astype(np.int64)


def _q5_0(blocks: NDArray[np.uint8]) -> Parts:
    low = np.concatenate((blocks[..., 6:] & 15, blocks[..., 6:] >> 4), axis=-1).astype(np.int64)
    return Parts(_half(blocks, 0), (low + 16 * _fifth_bits(blocks[..., 2:6]))[..., None, :], 16)


def _q5_1(blocks: NDArray[np.uint8]) -> Parts:
    low = np.concatenate((blocks[..., 8:] & 15, blocks[..., 8:] >> 4), axis=-1).astype(np.int64)
    integers = (low + 16 * _fifth_bits(blocks[..., 4:8]))[..., None, :]
    return Parts(
        _half(blocks, 0), integers, min_factors=_half(blocks, 2), minima=np.ones((*blocks.shape[:2], 1), np.int64)
    )


def _q2_k(blocks: NDArray[np.uint8]) -> Parts:
    shape = blocks.shape[:2]
    integers = np.empty((*shape, 8, 32), np.int64)
    for group in range(8):
        half, part = divmod(group, 4)
        integers[..., group, :] = blocks[..., 16 + 32 * half : 48 + 32 * half] >> (2 * part) & 3
    both = blocks[..., :16].astype(np.int64)
    scales = np.repeat(both & 15, 16, axis=-1).reshape(*shape, 8, 32)
    return Parts(_half(blocks, 80), integers, 0, scales, -_half(blocks, 82), (both >> 4).reshape(*shape, 8, 2))


def _q3_k(blocks: NDArray[np.uint8]) -> Parts:
    shape = blocks.shape[:2]
    integers = np.empty((*shape, 8, 32), np.int64)
    for group in range(8):
        half, part = divmod(group, 4)
        low = blocks[..., 32 + 32 * half : 64 + 32 * half] >> (2 * part) & 3
        integers[..., group, :] = low + 4 * (blocks[..., :32] >> group & 1)
    packed = blocks[..., 96:108].astype(np.int64)
    scales = np.empty((*shape, 16), np.int64)
    for j in range(16):
        low = packed[..., j % 8] >> (4 * (j // 8)) & 15
        scales[..., j] = (low | (packed[..., 8 + j % 4] >> (2 * (j // 4)) & 3) << 4) - 32
    return Parts(_half(blocks, 108), integers, 4, np.repeat(scales, 16, axis=-1).reshape(*shape, 8, 32))


def _q5_k(blocks: NDArray[np.uint8]) -> Parts:
    lower = _q4_k(np.concatenate((blocks[..., :16], blocks[..., 48:]), axis=-1))
    fifth = np.stack([blocks[..., 16:48] >> group & 1 for group in range(8)], axis=2)
    return replace(lower, integers=lower.integers + 16 * fifth.astype(np.int64))


def _q8_x(blocks: NDArray[np.uint8]) -> Parts:
    factors = np.ascontiguousarray(blocks[..., :4]).view("<f4")[..., 0]
    scales = np.ascontiguousarray(blocks[..., 4:8]).view("<i2").astype(np.int64)
    integers = np.ascontiguousarray(blocks[..., 8:]).view(np.int8)[..., None, :].astype(np.int64)
    return Parts(factors, integers, 0, np.repeat(scales, 16, axis=-1)[..., None, :])


def _q8_0(blocks: NDArray[np.uint8]) -> Parts:
    integers = np.ascontiguousarray(blocks[..., 2:]).view(np.int8)[..., None, :].astype(np.int64)
    return Parts(_half(blocks, 0), integers)


def _q4_k(blocks: NDArray[np.uint8]) -> Parts:
    packed = blocks[..., 4:16].astype(np.int64)
    scales, minima = np.empty((2, *blocks.shape[:2], 8), np.int64)
    for j in range(8):
        if j < 4:
            scales[..., j], minima[..., j] = packed[..., j] & 63, packed[..., j + 4] & 63
        else:
            scales[..., j] = (packed[..., j + 4] & 15) | (packed[..., j - 4] >> 6) << 4
            minima[..., j] = packed[..., j + 4] >> 4 | (packed[..., j] >> 6) << 4
    bytes_of = blocks[..., 16:].reshape(*blocks.shape[:2], 4, 32)
    integers = np.stack((bytes_of & 15, bytes_of >> 4), axis=3).reshape(*blocks.shape[:2], 8, 32).astype(np.int64)
    return Parts(_half(blocks, 0), integers, 0, np.repeat(scales[..., None], 32, axis=3), -_half(blocks, 2), minima)


def _q6_k(blocks: NDArray[np.uint8]) -> Parts:
    shape = blocks.shape[:2]
    integers = np.empty((*shape, 8, 32), np.int64)
    for half in range(2):
        low, high = blocks[..., 64 * half : 64 * half + 64], blocks[..., 128 + 32 * half : 160 + 32 * half]
        for part in range(4):
            nibble = low[..., part % 2 * 32 : part % 2 * 32 + 32] >> (4 * (part // 2)) & 15
            integers[..., 4 * half + part, :] = nibble | (high >> (2 * part) & 3) << 4
    scales = np.ascontiguousarray(blocks[..., 192:208]).view(np.int8).astype(np.int64)
    return Parts(_half(blocks, 208), integers, 32, np.repeat(scales, 16, axis=-1).reshape(*shape, 8, 32))


PARTS: dict[str, Callable[[NDArray[np.uint8]], Parts]] = {
    "Q1_0": _q1_0, "Q2_0": _q2_0, "MXFP4": _mxfp4, "NVFP4_X": _nvfp4_x,
    "Q4_0": _q4_0, "Q4_1": _q4_1, "Q5_0": _q5_0, "Q5_1": _q5_1, "Q8_0": _q8_0,
    "Q8_X": _q8_x, "Q2_K": _q2_k, "Q3_K": _q3_k, "Q4_K": _q4_k, "Q5_K": _q5_k, "Q6_K": _q6_k,
}  # fmt: skip


def integer_product(parts: Parts, x: Floats) -> Floats:
    """[rows of x, rows of weights] with activations in int8."""
    values, scales = int8_blocks(x)
    weights = parts.integers - parts.offset
    if parts.scales is not None:
        weights = weights * parts.scales
    rows, blocks, groups, _ = weights.shape
    values = values.reshape(len(x), blocks, groups, GROUP)
    scales = scales.reshape(len(x), blocks, groups)
    exact = np.einsum("mbgk,nbgk->mnbg", values, weights).astype(np.float32)
    if parts.float_scales is not None:
        by_half = (each.reshape(*each.shape[:-1], 2, 16) for each in (values, weights))
        halves = np.einsum("mbghk,nbghk->mnbgh", *by_half).astype(np.float32) * parts.float_scales
        exact = halves[..., 0] + halves[..., 1]
    sums = values.sum(axis=3)
    result = np.zeros((len(x), rows), np.float32)
    for b in range(blocks):
        total, minima = np.zeros_like(result), np.zeros_like(result)
        for g in range(groups):
            scale = scales[:, None, b, g]
            total = fma(exact[:, :, b, g], scale, total)
            if parts.minima is not None and parts.minima.ndim == 4:
                halves = values[:, b, g].reshape(len(x), 2, 16).sum(axis=2)
                minima = fma((halves @ parts.minima[:, b, g].T).astype(np.float32), scale, minima)
            elif parts.minima is not None:
                scaled = scale * sums[:, None, b, g].astype(np.float32)
                minima = fma(parts.minima[None, :, b, g].astype(np.float32), scaled, minima)
        result = fma(parts.factors[None, :, b], total, result)
        if parts.min_factors is not None:
            result = fma(parts.min_factors[None, :, b], minima, result)
    return result


def float_weights(parts: Parts) -> Floats:
    """[rows, inputs]"""
    factors = np.broadcast_to(parts.factors[..., None, None], parts.integers.shape)
    if parts.scales is not None:
        factors = factors * parts.scales.astype(np.float32)
    if parts.float_scales is not None:
        factors = factors * np.repeat(parts.float_scales, 16, axis=-1)
    integers = parts.integers.astype(np.float32)
    if parts.min_factors is not None and parts.minima is not None:
        minima = parts.minima[..., None] if parts.minima.ndim == 3 else parts.minima
        added = parts.min_factors[..., None, None] * minima.astype(np.float32)
        found = fma(integers, factors, np.repeat(added, GROUP // added.shape[-1], axis=-1))
    elif parts.offset:
        found = fma(integers, factors, factors * single(-parts.offset))
    else:
        found = integers * factors
    return np.asarray(found, np.float32).reshape(len(parts.factors), -1)


def float_product(weights: Floats, x: Floats) -> Floats:
    """[rows of x, rows of weights], inputs ascending."""
    result = np.zeros((len(x), len(weights)), np.float32)
    for k in range(x.shape[1]):
        result = fma(weights[None, :, k], x[:, None, k], result)
    return result


# attention


_EXP2 = (1.3264690e-3, 9.6715060e-3, 5.5507338e-2, 2.4022242e-1, 6.9314698e-1, 1.0)


def exp2(x: Floats) -> Floats:
    """2**x as `maths.exp2` computes it."""
    clamped = np.minimum(np.maximum(x, single(-127)), single(128))
    rounded = clamped + single(1.5 * 2**23)
    fraction = clamped - (rounded - single(1.5 * 2**23))
    total = np.full_like(fraction, _EXP2[0])
    for coefficient in _EXP2[1:]:
        total = fma(total, fraction, single(coefficient))
    power = ((np.asarray(rounded, np.float32).view(np.int32) + np.int32(127)) << np.int32(23)).view(np.float32)
    return np.asarray(total * power, np.float32)


def attention_line(query: Floats, keys: Floats, values: Floats, first: int = 0) -> Floats:
    """One row of one head: query [size], scaled; keys [positions, size] and values, those from `first` on visible."""
    size = values.shape[1]
    maximum, weight, sums = single(-1e30), single(0), np.zeros(size, np.float32)
    for segment in range(0, len(keys), 1024):
        own = (single(-1e30), single(0), np.zeros(size, np.float32))
        for start in range(segment, min(segment + 1024, len(keys)), 64):
            own = _step(own, query, keys[start : start + 64], values[start : start + 64], first - start)
        new = max(maximum, own[0])
        before, within = exp2(np.array([maximum - new, own[0] - new], np.float32))
        maximum = new
        weight = fma(own[1], within, weight * before)[()]
        sums = fma(own[2], np.full(size, within), sums * before)
    return np.asarray(sums * (single(1) / weight) + single(0), np.float32)


def _step(
    state: tuple[Any, Any, Floats], query: Floats, keys: Floats, values: Floats, first: int
) -> tuple[Any, Any, Floats]:
    maximum, weight, sums = state
    scores = np.full(64, -3e38, np.float32)
    total = np.zeros(len(keys), np.float32)
    for d in range(len(query)):
        total = fma(keys[:, d], np.full(len(keys), query[d]), total)
    scores[: len(keys)] = total
    scores[: max(0, first)] = -3e38
    new = max(maximum, scores.max())
    weights = exp2(scores - new)
    factor = exp2(np.array([maximum - new], np.float32))[0]
    lanes = (weights[:16] + weights[16:32]) + (weights[32:48] + weights[48:])
    for count in (8, 4, 2, 1):
        lanes = lanes[:count] + lanes[count : 2 * count]
    sums = sums * factor
    for t in range(len(keys)):
        sums = fma(values[t], np.full(len(sums), weights[t]), sums)
    return new, fma(weight, factor, lanes[0])[()], sums


# short convolutions


def convolved(rows: Floats, weights: Floats, dtype: Any) -> Floats:
    """All positions of a sequence: rows [positions, 3 * width], weights [length, width]; `dtype` is that of the kept
    rows."""
    before, after, x = np.split(rows, 3, axis=1)
    limit = np.finfo(np.float16).max if dtype == np.float16 else np.inf
    kept = np.clip(before * x, -limit, limit).astype(dtype).astype(np.float32)
    sums = np.zeros_like(kept)
    for position in range(len(rows)):
        for tap in range(len(weights)):
            if (earlier := position - len(weights) + 1 + tap) >= 0:
                sums[position] = fma(kept[earlier], weights[tap], sums[position])
    found: Floats = after * sums
    return found


# recurrent states


def scanned(rows: Floats, weights: Floats, bias: Floats | None) -> Floats:
    """Convolutions of all positions of a sequence: rows [positions, width], weights [length, width]."""
    found = np.zeros_like(rows)
    for position in range(len(rows)):
        total = np.zeros(rows.shape[1], np.float32) if bias is None else bias
        for tap in range(len(weights)):
            if (earlier := position - len(weights) + 1 + tap) >= 0:
                total = fma(rows[earlier], weights[tap], total)
        found[position] = total * sigmoid(total)
    return found


def _normalised(x: Floats, scale: float) -> Floats:
    """Rows [heads, size] divided by their lengths, times a scale."""
    sums = np.zeros((len(x), 16), np.float32)
    for begin in range(0, x.shape[1], 16):
        sums = fma(x[:, begin : begin + 16], x[:, begin : begin + 16], sums)
    while sums.shape[1] > 1:
        half = sums.shape[1] // 2
        sums = sums[:, :half] + sums[:, half:]
    found: Floats = x * (single(1) / np.sqrt(sums + single(1e-6)) * single(scale))
    return found


def delta_rule(
    queries: Floats, keys: Floats, values: Floats, alpha: Floats, beta: Floats, decay: Floats, bias: Floats
) -> Floats:
    """All positions of a sequence: queries and keys [positions, heads, key size], values [positions, heads, value
    size], alpha and beta [positions, heads], decay and bias [heads]."""
    size = queries.shape[2]
    state = np.zeros((queries.shape[1], size, values.shape[2]), np.float32)
    found = np.zeros_like(values)
    for t in range(len(queries)):
        q, k = _normalised(queries[t], 1 / math.sqrt(size)), _normalised(keys[t], 1.0)
        state = state * exp(decay * softplus(alpha[t] + bias))[:, None, None]
        recalled, total = np.zeros((2, *values[t].shape), np.float32)
        for i in range(size):
            recalled = fma(state[:, i], k[:, i, None], recalled)
        change = (values[t] - recalled) * sigmoid(beta[t])[:, None]
        for i in range(size):
            state[:, i] = fma(k[:, i, None], change, state[:, i])
            total = fma(state[:, i], q[:, i, None], total)
        found[t] = total
    return found


def state_space(rows: Floats, times: Floats, parameters: Floats, heads: int, size: int, groups: int) -> Floats:
    """All positions of a sequence: rows [positions, x of all heads, B of all groups, C of all groups], times
    [positions, heads], parameters [bias, A, D][heads]; returns what replaces x."""
    count = (rows.shape[1] - heads * size) // (2 * groups)
    found = np.empty((len(rows), heads, size), np.float32)
    for head in range(heads):
        bias, decay, factor = parameters[:, head]
        group = head // (heads // groups)
        inputs, outputs = (rows[:, heads * size + (part * groups + group) * count :][:, :count] for part in (0, 1))
        state = np.zeros((count, size), np.float32)
        for position, row in enumerate(rows):
            time = softplus(times[position, head : head + 1] + bias)
            x = row[head * size : (head + 1) * size]
            state = fma((x * time)[None], inputs[position][:, None], state * exp(time * decay))
            total = np.zeros(size, np.float32)
            for n in range(count):
                total = fma(state[n], outputs[position, n], total)
            found[position, head] = fma(x, factor, total)
    return found.reshape(len(rows), -1)
