"""Kernels that search for the highest logits of a row. Block maxima show which blocks to skip (vocab_blocks.py).

Types, ranking and pointers are as in vocab_blocks.py.
"""

from __future__ import annotations

from collections.abc import Callable

from onward.kernels.define import kernel
from onward.kernels.function import Function
from onward.kernels.structures import Structure, View
from onward.kernels.values import F32, F32X16, I32, I64, PTR, Value, vec
from onward.sampling.layouts import BLOCK_LOGITS
from onward.sampling.rows import BLOCK_BYTES, BLOCK_SHIFT, block_at, block_maximum_at, lanes_of, logit_at, row_at
from onward.sampling.vocab_blocks import NEGATIVE_INFINITY, is_above, places

BOUND = Structure.of_words(value=F32, token=I64)
"""What tokens are compared with: those above it are kept."""
_COUNTS = vec(I32, 16)


def order_key(bits: Value) -> Value:
    """Return an int32 that sorts as the float32 with these int32 bits; its own inverse."""
    return bits ^ (bits.sar(31) & 0x7FFFFFFF)


@kernel([PTR], I64)
def first_token_with_maximum(f: Function, pointer: Value) -> Value:
    """Return the lowest id whose logit is the maximum of the row."""
    row, k = row_at(f, pointer), f.var(I64, 0)
    with f.forever() as loop:
        loop.break_if(block_maximum_at(f, row, k.value).eq(row.maximum))
        k.value += 1
    token = f.var(I64, k.value << BLOCK_SHIFT)
    with f.forever() as loop:
        loop.break_if(logit_at(f, row, token.value).eq(row.maximum))
        token.value += 1
    return token.value


def _count(f: Function, block: Value, is_counted: Callable[[Value, Value], Value]) -> Value:
    """Return for how many logits of a block `is_counted` (logits, byte) is true: int64."""
    counts = f.var(_COUNTS, 0)
    with f.loop(0, BLOCK_BYTES, 64) as i:
        counts.value -= is_counted(lanes_of(f, block, i), i).sext(I32)
    return f.hsum(counts.value).sext(I64)


@kernel([PTR, F32], I64)
def count_from(f: Function, block: Value, value: Value) -> Value:
    """Return how many logits of a block are ≥ value."""
    return _count(f, block, lambda logits, _: logits >= value)


@kernel([PTR, F32, I64], I64)
def count_above(f: Function, block: Value, value: Value, place: Value) -> Value:
    """Return how many tokens of a block rank above (value, the token at `place` of the block, which may be outside)."""
    inside = f.max(f.min(place, BLOCK_LOGITS), 0)
    return _count(f, block, lambda logits, at: is_above(f, logits, places(f, at), value, inside))


@kernel([PTR, F32, I64], I64)
def count_at_or_above(f: Function, pointer: Value, value: Value, limit: Value) -> Value:
    """Return how many logits of a row are ≥ value, which is above -inf. Stops after the block that reaches `limit`."""
    row, total, k = row_at(f, pointer), f.var(I64, 0), f.var(I64, 0)
    with f.forever() as loop:
        loop.break_if(k.value >= row.num_blocks)
        with f.when(block_maximum_at(f, row, k.value) >= value):
            total.value += count_from(f, block_at(f, row, k.value), value)
        loop.break_if(total.value >= limit)
        k.value += 1
    return total.value


@kernel([PTR, I64], I64)
def rank_of(f: Function, pointer: Value, token: Value) -> Value:
    """Return the place of a token in the ranking of the row, from 1."""
    row, rank = row_at(f, pointer), f.var(I64, 1)
    value = logit_at(f, row, token)
    with f.loop(0, row.num_blocks) as k, f.when(block_maximum_at(f, row, k) >= value):
        rank.value += count_above(f, block_at(f, row, k), value, token - (k << BLOCK_SHIFT))
    return rank.value


@kernel([PTR, I64], I64)
def key_below_most(f: Function, pointer: Value, count: Value) -> Value:
    """Return the key (int64) of a value that at least `count` block maxima reach, hence at least as many logits; the
    highest such, or that of -inf where there are fewer blocks."""
    row = row_at(f, pointer)
    low = f.var(I64, order_key(f.const(F32, NEGATIVE_INFINITY).as_(I32)).sext(I64))
    with f.when(row.num_blocks >= count):
        high = f.var(I64, order_key(row.maximum.as_(I32)).sext(I64) + 1)
        with f.forever() as loop:
            loop.break_if(high.value - low.value <= 1)
            middle = (low.value + high.value).sar(1)
            value, counts = order_key(middle.trunc(I32)).as_(F32), f.var(_COUNTS, 0)
            with f.loop(0, row.num_blocks * 4, 64) as i:
                counts.value -= (f.load(row.maxima, F32X16, i) >= value).sext(I32)
            with f.otherwise(f.hsum(counts.value).sext(I64) >= count) as (enough, too_few):
                with enough:
                    low.value = middle
                with too_few:
                    high.value = middle
    return low.value


@kernel([PTR, I64, PTR])
def find_top_k_bound(f: Function, pointer: Value, count: Value, result: Value) -> None:
    """Write the BOUND above which exactly `count` tokens rank, 0 < count < row.size.

    Bisects the float32 values until exactly `count` logits are at or above one of them, or, where logits tie, until
    the tied value is isolated.
    """
    row, bound = row_at(f, pointer), View(f, result, BOUND)
    low = f.var(I64, key_below_most(f, pointer, count))
    high = f.var(I64, order_key(row.maximum.as_(I32)).sext(I64) + 1)
    is_exact = f.var(I64, 0)
    with f.forever() as loop:
        loop.break_if(high.value - low.value <= 1)
        middle = (low.value + high.value).sar(1)
        value = order_key(middle.trunc(I32)).as_(F32)
        found = count_at_or_above(f, pointer, value, count + 1)
        with f.when(found.eq(count)):
            bound.set(value=value, token=row.size)
            is_exact.value = 1
        loop.break_if(found.eq(count))
        with f.otherwise(found > count) as (many, few):
            with many:
                low.value = middle
            with few:
                high.value = middle
    with f.when(is_exact.value.eq(0)):
        value = order_key(low.value.trunc(I32)).as_(F32)
        over = order_key(high.value.trunc(I32)).as_(F32)
        missing = count - count_at_or_above(f, pointer, over, count)
        bound.set(value=value, token=nth_token_with(f, pointer, value, missing - 1) + 1)


@kernel([PTR, F32, I64], I64)
def nth_token_with(f: Function, pointer: Value, value: Value, n: Value) -> Value:
    """Return the token with this logit before which `n` others have it. There must be one."""
    row, left, k = row_at(f, pointer), f.var(I64, n), f.var(I64, 0)
    with f.forever() as loop:
        found = f.var(I64, 0)
        with f.when(block_maximum_at(f, row, k.value) >= value):
            found.value = _count(f, block_at(f, row, k.value), lambda logits, _: logits.eq(value))
        loop.break_if(found.value > left.value)
        left.value -= found.value
        k.value += 1
    token = f.var(I64, k.value << BLOCK_SHIFT)
    with f.forever() as loop:
        is_equal = logit_at(f, row, token.value).eq(value)
        loop.break_if(is_equal & left.value.eq(0))
        left.value -= is_equal.zext(I64)
        token.value += 1
    return token.value


@kernel([PTR, PTR, I64, I64, I64, F32], I64)
def insert(f: Function, ids: Value, values: Value, size: Value, filled: Value, token: Value, value: Value) -> Value:
    """Insert (token, value) into two parallel arrays sorted by value, after equal values; return the new length.

    `ids` is int64 [size], `values` float32 [size], both written; the first `filled` entries are in use. When the arrays
    are full, the last entry is dropped; `value` must then be greater than it.
    """
    j = f.var(I64, f.min(filled, size - 1))
    with f.forever() as loop:
        loop.break_if(j.value <= 0)
        previous = j.value - 1
        loop.break_if(f.load(values, F32, previous * 4) >= value)
        f.store(f.load(values, F32, previous * 4), values, j.value * 4)
        f.store(f.load(ids, I64, previous * 8), ids, j.value * 8)
        j.value = previous
    f.store(value, values, j.value * 4)
    f.store(token, ids, j.value * 8)
    return f.min(filled + 1, size)


@kernel([PTR, I64, PTR, PTR])
def find_top_k(f: Function, pointer: Value, count: Value, ids: Value, values: Value) -> None:
    """Write the `count` highest-ranked tokens to `ids` (int64 [count]) and their logits to `values` (float32 [count]),
    0 < count ≤ row.size.

    They are in blocks whose maximum is at least the count-th largest block maximum; the others are skipped.
    """
    row, filled = row_at(f, pointer), f.var(I64, 0)
    last = (count - 1) * 4
    with f.loop(0, row.num_blocks) as k:
        highest = block_maximum_at(f, row, k)
        with f.when((filled.value < count) | (highest > f.load(values, F32, last))):
            filled.value = insert(f, ids, values, count, filled.value, k, highest)
    bound = f.select(filled.value.eq(count), f.load(values, F32, last), f.const(F32, NEGATIVE_INFINITY))
    filled.value = 0
    with f.loop(0, row.num_blocks) as k:
        highest, is_full = block_maximum_at(f, row, k), filled.value.eq(count)
        with f.when((highest >= bound) & ~(is_full & (highest <= f.load(values, F32, last)))):
            start = k << BLOCK_SHIFT
            end = f.min(start + BLOCK_LOGITS, row.size)
            with f.loop(start, end) as token:
                logit = logit_at(f, row, token)
                with f.when((filled.value < count) | (logit > f.load(values, F32, last))):
                    filled.value = insert(f, ids, values, count, filled.value, token, logit)
