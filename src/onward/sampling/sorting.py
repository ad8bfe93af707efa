"""A compiled radix sort: the logits of a row from the highest to the lowest, in about a millisecond for 150,000."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from onward.sampling.compilation import cached, source_digest
from onward.sampling.top_k import top_k_bound
from onward.sampling.vocab_blocks import BLOCK_TOKENS, compiled, compute_block_maxima, from_order_key, order_key

COMPILED_FILES = ("vocab_blocks.py", "top_k.py", "sorting.py")
"""The files of this folder that hold compiled code of the sort."""

DIGIT_BITS = 11
NUM_DIGITS = 3
NUM_BUCKETS = 1 << DIGIT_BITS

_DIGIT_MASK = np.uint32(NUM_BUCKETS - 1)
_SIGN = np.uint32(0x80000000)
_ONE = np.uint32(1)


@compiled()
def descending_key(bits: Any) -> Any:
    """Return the uint32 that sorts in reverse order of the float32 with these int32 bits."""
    return np.uint32(~(np.uint32(order_key(bits)) ^ _SIGN))  # numba computes with 64 bits


@compiled()
def collect_keys(row: Any, maxima: Any, floor: Any, keys: Any, counts: Any) -> Any:
    """Write the keys of all logits of `row` (float32 [vocab_size]) that are ≥ floor and > -inf to `keys` (uint32
    [vocab_size]) and how many have each digit to `counts` (uint32 [NUM_DIGITS, NUM_BUCKETS]); return how many."""
    found = np.uint64(0)  # without a sign, so that no index is checked for being negative
    counts[:] = 0
    for k in range(maxima.size):
        if maxima[k] < floor:
            continue
        block = row[k * BLOCK_TOKENS : min((k + 1) * BLOCK_TOKENS, row.size)]
        bits = block.view(np.int32)
        for i in range(block.size):
            if block[i] >= floor and block[i] > -np.inf:
                key = descending_key(bits[i])
                keys[found] = key
                found += np.uint64(1)
                for digit in range(NUM_DIGITS):
                    counts[digit, (key >> np.uint32(digit * DIGIT_BITS)) & _DIGIT_MASK] += _ONE
    return np.int64(found)


@compiled()
def scatter(source: Any, target: Any, shift: Any, ends: Any) -> None:
    """Write `source` (uint32 [n]) to `target` (uint32 [≥ n]), sorted by the digit at `shift` and otherwise in order.

    `ends` (uint32 [NUM_BUCKETS]) holds how many keys have each digit, and is overwritten.
    """
    start = np.uint32(0)
    for bucket in range(ends.size):
        count = ends[bucket]
        ends[bucket] = start
        start += count
    for i in range(source.size):
        bucket = (source[i] >> np.uint32(shift)) & _DIGIT_MASK
        place = ends[bucket]
        target[place] = source[i]
        ends[bucket] = place + _ONE


@compiled()
def sort_row(row: Any, floor: Any, count: Any, values: Any, spare: Any, counts: Any, maxima: Any) -> Any:
    """Write the logits of `row` that are ≥ floor and > -inf to `values`, highest first; return how many there are.

    With a `count` below the size of the row, only its `count` highest and those that equal the last of them.

    `row` is float32 [vocab_size]; `values` float32 [vocab_size] and `spare` uint32 [vocab_size] are overwritten, and so
    are `counts`, uint32 [NUM_DIGITS, NUM_BUCKETS], and `maxima`, float32 [num_blocks].
    """
    maximum = compute_block_maxima(row, maxima)
    if count < row.size:
        value, _ = top_k_bound(row, maxima, maximum, count)
        floor = max(floor, value)
    keys = values.view(np.uint32)
    size = collect_keys(row, maxima, floor, spare, counts)
    scatter(spare[:size], keys, 0, counts[0])
    scatter(keys[:size], spare, DIGIT_BITS, counts[1])
    scatter(spare[:size], keys, 2 * DIGIT_BITS, counts[2])
    for i in range(size):
        values[i] = from_order_key(np.int32(np.uint32(~keys[i] ^ _SIGN)))
    return size


def entry_point() -> Any:
    """Return `sort_row`, compiled once per machine and kept in numba's cache."""
    digest = source_digest(COMPILED_FILES)

    def sorting(*arguments: Any) -> Any:
        return sort_row(*arguments) if digest >= 0 else 0

    return cached(sorting)


_sort = entry_point()


class SortBuffers:
    """What a sort overwrites, for one thread at a time."""

    def __init__(self, vocab_size: int) -> None:
        self.values: NDArray[np.float32] = np.empty(vocab_size, np.float32)
        self.spare: NDArray[np.uint32] = np.empty(vocab_size, np.uint32)
        self.counts: NDArray[np.uint32] = np.empty((NUM_DIGITS, NUM_BUCKETS), np.uint32)
        self.maxima: NDArray[np.float32] = np.empty(-(-vocab_size // BLOCK_TOKENS), np.float32)


def sort_descending(row: NDArray[np.float32], floor: float, count: int, buffers: SortBuffers) -> NDArray[np.float32]:
    """Return the logits of `row` (float32 [vocab_size], contiguous) that are ≥ floor and > -inf, highest first: float32
    [n], a view of `buffers`, which are overwritten. Of these, at least the `count` highest (1 ≤ count), and no others
    than those that equal the last of them. Releases the GIL."""
    size = _sort(row, np.float32(floor), count, buffers.values, buffers.spare, buffers.counts, buffers.maxima)
    return buffers.values[:size]
