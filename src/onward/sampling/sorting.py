"""A radix sort as a kernel: the logits of a row from the highest to the lowest, in about a millisecond for 150,000."""

from __future__ import annotations

from onward.kernels.define import kernel
from onward.kernels.function import Function
from onward.kernels.structures import View
from onward.kernels.values import F32, F32X16, I32, I64, PTR, Value
from onward.sampling.layouts import BLOCK_LOGITS, PADDING
from onward.sampling.rows import BLOCK_SHIFT, STEP, block_maximum_at, logit_at, row_at
from onward.sampling.top_k import BOUND, find_top_k_bound, order_key
from onward.sampling.vocab_blocks import NEGATIVE_INFINITY

DIGIT_BITS = 11
NUM_DIGITS = 3
NUM_BUCKETS = 1 << DIGIT_BITS
_DIGIT_MASK = NUM_BUCKETS - 1
_SIGN = 1 << 31


@kernel([PTR, F32, PTR], I64)
def collect_keys(f: Function, pointer: Value, floor: Value, keys: Value) -> Value:
    """Write the keys of all logits of a row that are ≥ floor and > -inf to `keys` (uint32); return how many. A key
    sorts in reverse order of its logit."""
    row, found = row_at(f, pointer), f.var(I64, 0)
    with f.loop(0, row.num_blocks) as k, f.when(block_maximum_at(f, row, k) >= floor):
        start = k << BLOCK_SHIFT
        with f.loop(start, f.min(start + BLOCK_LOGITS, row.size)) as token:
            logit = logit_at(f, row, token)
            f.store(order_key(logit.as_(I32)) ^ (_SIGN - 1), keys, found.value * 4)  # kept only if counted
            found.value += ((logit >= floor) & (logit > NEGATIVE_INFINITY)).zext(I64)
    return found.value


@kernel([PTR, I64, PTR])
def count_digits(f: Function, keys: Value, size: Value, counts: Value) -> None:
    """Write how many keys have each digit to `counts`: uint32 [NUM_DIGITS, NUM_BUCKETS]."""
    with f.loop(0, NUM_DIGITS * NUM_BUCKETS * 4, 64) as i:
        f.store(f.const(F32X16, 0), counts, i)
    with f.loop(0, size) as i:
        key = f.load(keys, I32, i * 4)
        for digit in range(NUM_DIGITS):
            place = f.at(counts, (digit * NUM_BUCKETS * 4 + (_bucket(key, digit * DIGIT_BITS) << 2)))
            f.store(f.load(place, I32) + 1, place)


def _bucket(key: Value, shift: int) -> Value:
    return ((key >> shift) & _DIGIT_MASK).zext(I64)


def _scatter(f: Function, source: Value, target: Value, size: Value, digit: int, counts: Value) -> None:
    """Write keys to `target`, sorted by one digit and otherwise in order. Overwrites its counts."""
    ends, start = f.at(counts, digit * NUM_BUCKETS * 4), f.var(I32, 0)
    with f.loop(0, NUM_BUCKETS * 4, 4) as bucket:
        count = f.load(ends, I32, bucket)
        f.store(start.value, ends, bucket)
        start.value += count
    with f.loop(0, size) as i:
        key = f.load(source, I32, i * 4)
        end = f.at(ends, _bucket(key, digit * DIGIT_BITS) << 2)
        place = f.load(end, I32)
        f.store(key, target, place.zext(I64) << 2)
        f.store(place + 1, end)


@kernel([PTR, PTR, F32, I64], I64)
def sort_row(f: Function, pointer: Value, step_pointer: Value, floor: Value, count: Value) -> Value:
    """Write the logits of a row that are ≥ floor and > -inf to the step's `sorted`, highest first; return how many.
    With a `count` below the size of the row, only its `count` highest and those that equal the last of them.

    Overwrites the step's scratch of chains. Behind the last, PADDING logits of -inf follow.
    """
    row, step = row_at(f, pointer), View(f, step_pointer, STEP)
    lowest = f.var(F32, floor)
    with f.when(count < row.size):
        bound = View.on_stack(f, BOUND)
        find_top_k_bound(f, pointer, count, bound.pointer)
        lowest.value = f.max(floor, bound.value)
    keys, spare, counts = step.sorted, step.spare, step.counts
    size = collect_keys(f, pointer, lowest.value, spare)
    count_digits(f, spare, size, counts)
    for digit, (source, target) in enumerate(((spare, keys), (keys, spare), (spare, keys))):
        _scatter(f, source, target, size, digit, counts)
    with f.loop(0, size) as i:
        f.store(order_key(f.load(keys, I32, i * 4) ^ (_SIGN - 1)).as_(F32), keys, i * 4)
    with f.loop(size, size + PADDING) as i:
        f.store(f.const(F32, NEGATIVE_INFINITY), keys, i * 4)
    return size
