"""Kernels over blocks of the vocabulary: maxima, softmax weights, probability mass, the sampled token.

Block maxima show which blocks a search may skip; block masses (sums of weights) are what sampling walks through. The
weight of a token is exp((logit - maximum) / temperature), a float32, exactly 0 where that is below 2**-127. Weights are
added in float32 within a block and in float64 across blocks, in one order on every processor.

Tokens are ranked by logit, highest first, then by id, lowest first. "Above (value, token)" means ranked strictly
before that pair.

Pointers: `row` to a layouts.ROW, `block` to BLOCK_LOGITS logits, `masses` to float64 [num_blocks], `weights` to float32
[BLOCK_LOGITS]. `value`, `maximum` and `scale` (1 / temperature) are float32, a `token` is an int64.
"""

from __future__ import annotations

from collections.abc import Callable

from onward.kernels.define import kernel
from onward.kernels.function import Function
from onward.kernels.maths import LOG2_E, exp2
from onward.kernels.structures import View
from onward.kernels.values import F32, F32X16, F64, I1, I32, I64, PTR, Value, vec
from onward.sampling.layouts import BLOCK_LOGITS
from onward.sampling.rows import BLOCK_BYTES, BLOCK_SHIFT, block_at, block_maximum_at, lanes_of, row_at

NEGATIVE_INFINITY = float("-inf")
_ZERO_EXPONENT = -88.1
"""Weights are exactly 0 from here on: 127 / LOG2_E and a little."""
_MASKS = vec(I1, 16)


def weights_of(f: Function, logits: Value, maximum: Value, scale: Value) -> Value:
    """Return the weights of 16 logits."""
    return exp2(f, (logits - maximum) * (scale * LOG2_E))


def places(f: Function, i: Value) -> Value:
    """Return the places within the block of the 16 logits at byte `i`: int32."""
    return f.vconst(vec(I32, 16), range(16)) + (i >> 2).trunc(I32)


@kernel([PTR], F32)
def block_maximum(f: Function, block: Value) -> Value:
    """Return the largest logit of a block, NaN if the block contains a NaN."""
    highest = [f.var(F32X16, NEGATIVE_INFINITY) for _ in range(2)]
    is_nan = f.var(_MASKS, 0)
    with f.loop(0, BLOCK_BYTES, 128) as i:
        for half in range(2):
            logits = lanes_of(f, block, i + 64 * half)
            highest[half].value = f.max(logits, highest[half].value)
            is_nan.value |= logits.is_nan()
    largest = f.hmax(f.max(highest[0].value, highest[1].value))
    return f.select(f.any(is_nan.value), f.const(F32, float("nan")), largest)


@kernel([PTR, PTR])
def copy_logits(f: Function, source: Value, target: Value) -> None:
    """Copy a block."""
    with f.loop(0, BLOCK_BYTES, 64) as i:
        f.store(lanes_of(f, source, i), target, i)


@kernel([PTR])
def prepare_row(f: Function, pointer: Value) -> None:
    """Write the tail of a row, its block maxima and its maximum, which is NaN if the row contains a NaN."""
    row = row_at(f, pointer)
    whole = row.size >> BLOCK_SHIFT
    rest = row.size & (BLOCK_LOGITS - 1)
    with f.when(rest > 0):
        source = f.at(row.logits, whole << (BLOCK_SHIFT + 2))
        with f.loop(0, BLOCK_BYTES, 64) as i:
            f.store(f.const(F32X16, NEGATIVE_INFINITY), row.tail, i)
        with f.loop(0, rest) as i:
            f.store(f.load(source, F32, i * 4), row.tail, i * 4)
    with f.loop(0, row.num_blocks) as k:
        f.store(block_maximum(f, block_at(f, row, k)), row.maxima, k * 4)
    row.set(maximum=largest_of_blocks(f, row))


def largest_of_blocks(f: Function, row: View) -> Value:
    """Return the largest block maximum, NaN if one is NaN; fill the maxima up with -inf."""
    f.store(f.const(F32X16, NEGATIVE_INFINITY), row.maxima, row.num_blocks * 4)
    highest, is_nan = f.var(F32X16, NEGATIVE_INFINITY), f.var(_MASKS, 0)
    with f.loop(0, row.num_blocks * 4, 64) as i:
        maxima = f.load(row.maxima, F32X16, i)
        highest.value = f.max(maxima, highest.value)
        is_nan.value |= maxima.is_nan()
    largest = f.hmax(highest.value) + 0.0  # not -0, which is below 0 where bits are compared
    return f.select(f.any(is_nan.value), f.const(F32, float("nan")), largest)


def _mass(f: Function, block: Value, maximum: Value, scale: Value, is_kept: Callable[[Value, Value], Value]) -> Value:
    """Return the weight of the logits of a block for which `is_kept` (logits, byte) is true."""
    totals = [f.var(F32X16, 0) for _ in range(2)]
    with f.loop(0, BLOCK_BYTES, 128) as i:
        for half in range(2):
            at = i + 64 * half
            logits = lanes_of(f, block, at)
            weights = weights_of(f, logits, maximum, scale)
            totals[half].value += f.select(is_kept(logits, at), weights, f.const(F32X16, 0))
    return f.hsum(totals[0].value + totals[1].value)


@kernel([PTR, F32, F32, F32], F32)
def mass_from(f: Function, block: Value, value: Value, maximum: Value, scale: Value) -> Value:
    """Return the weight of the tokens of a block whose logit is ≥ value."""
    return _mass(f, block, maximum, scale, lambda logits, _: logits >= value)


@kernel([PTR, F32, F32, F32], F32)
def mass_over(f: Function, block: Value, value: Value, maximum: Value, scale: Value) -> Value:
    """Return the weight of the tokens of a block whose logit is > value."""
    return _mass(f, block, maximum, scale, lambda logits, _: logits > value)


@kernel([PTR, F32, I64, F32, F32], F32)
def mass_above(f: Function, block: Value, value: Value, place: Value, maximum: Value, scale: Value) -> Value:
    """Return the weight of the tokens of a block above (value, the token at `place` of the block)."""
    return _mass(f, block, maximum, scale, lambda logits, at: is_above(f, logits, places(f, at), value, place))


def is_above(f: Function, logits: Value, tokens: Value, value: Value, token: Value) -> Value:
    """Return which tokens (int32 [16]) with these logits rank above (value, token)."""
    return (logits > value) | (logits.eq(value) & (tokens < token.trunc(I32)))


@kernel([PTR, F32, I64, F32, PTR], F64)
def masses_above(f: Function, pointer: Value, value: Value, token: Value, scale: Value, masses: Value) -> Value:
    """Write to `masses` the weight, per block, of the tokens above (value, token); return the sum."""
    row, total = row_at(f, pointer), f.var(F64, 0)
    maximum = row.maximum
    with f.loop(0, row.num_blocks) as k:
        highest, mass = block_maximum_at(f, row, k), f.var(F32, 0)
        with f.when((highest >= value) & ((highest - maximum) * scale > _ZERO_EXPONENT)):
            block, place = block_at(f, row, k), token - (k << BLOCK_SHIFT)
            with f.otherwise(place >= BLOCK_LOGITS) as (lower_ids, others):
                with lower_ids:
                    mass.value = mass_from(f, block, value, maximum, scale)
                with others, f.otherwise(place <= 0) as (higher_ids, both):
                    with higher_ids:
                        mass.value = mass_over(f, block, value, maximum, scale)
                    with both:
                        mass.value = mass_above(f, block, value, place, maximum, scale)
        f.store(mass.value.to_f64(), masses, k * 8)
        total.value += mass.value.to_f64()
    return total.value


@kernel([PTR, F32, I64, F32, PTR, F64, PTR], I64)
def pick_token(
    f: Function, pointer: Value, value: Value, token: Value, scale: Value, masses: Value, goal: Value, weights: Value
) -> Value:
    """Return the token at which the cumulative weight of the tokens above (value, token) passes `goal`.

    `goal` is a float64, 0 ≤ goal < sum of `masses`. The token has a weight > 0, however the sums are rounded.
    Overwrites `weights`.
    """
    row, passed, chosen_block = row_at(f, pointer), f.var(F64, 0), f.var(I64, 0)
    k = f.var(I64, 0)
    with f.forever() as loop:
        loop.break_if(k.value >= row.num_blocks)
        mass = f.load(masses, F64, k.value * 8)
        with f.when(mass > 0.0):
            chosen_block.value = k.value
        loop.break_if((mass > 0.0) & (passed.value + mass > goal))
        passed.value += mass
        k.value += 1
    start = chosen_block.value << BLOCK_SHIFT
    block = block_at(f, row, chosen_block.value)
    place = f.max(f.min(token - start, BLOCK_LOGITS), 0)
    with f.loop(0, BLOCK_BYTES, 64) as i:
        logits = lanes_of(f, block, i)
        kept = is_above(f, logits, places(f, i), value, place)
        f.store(f.select(kept, weights_of(f, logits, row.maximum, scale), f.const(F32X16, 0)), weights, i)
    exact = f.var(F64, 0)
    with f.loop(0, BLOCK_BYTES, 4) as i:
        exact.value += f.load(weights, F32, i).to_f64()
    rest = (goal - passed.value) / f.load(masses, F64, chosen_block.value * 8) * exact.value
    return start + place_where_passed(f, weights, rest)


@kernel([PTR, F64], I64)
def place_where_passed(f: Function, weights: Value, goal: Value) -> Value:
    """Return the place at which the sum of `weights` is above `goal`, of those with a weight; the last such if none."""
    rest, chosen, i = f.var(F64, goal), f.var(I64, 0), f.var(I64, 0)
    with f.forever() as loop:
        loop.break_if(i.value >= BLOCK_LOGITS)
        weight = f.load(weights, F32, i.value * 4)
        with f.when(weight > 0.0):
            chosen.value = i.value
            rest.value -= weight.to_f64()
        loop.break_if(rest.value < 0.0)
        i.value += 1
    return chosen.value
