"""Compiled searches for the highest logits of a row. Block maxima show which blocks to skip (see vocab_blocks.py).

Shapes, dtypes, ranking and threads are as in vocab_blocks.py: `row` is float32 [vocab_size], `maxima` float32
[num_blocks]. Nothing is written unless the docstring says so.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from onward.sampling.vocab_blocks import BLOCK_TOKENS, NEGATIVE_INFINITY, compiled, from_order_key, order_key


@compiled()
def first_token_with(row: Any, maxima: Any, value: Any) -> Any:
    """Return the lowest id (int64) whose logit is `value`, which must be the maximum of the row."""
    k = 0
    while maxima[k] != value:
        k += 1
    token = k * BLOCK_TOKENS
    while row[token] != value:
        token += 1
    return token


@compiled()
def count_from(block: Any, value: Any) -> Any:
    """Return how many logits of a block are ≥ value (int32). Loops over slices vectorise, over indices they do not."""
    found: Any = np.int32(0)
    for i in range(block.size):
        found += np.int32(block[i] >= value)
    return found


@compiled()
def count_above(block: Any, value: Any) -> Any:
    """Return how many logits of a block are > value (int32)."""
    found: Any = np.int32(0)
    for i in range(block.size):
        found += np.int32(block[i] > value)
    return found


@compiled()
def count_at_or_above(row: Any, maxima: Any, value: Any, limit: Any) -> Any:
    """Return how many logits are ≥ value (int64). Counting stops after the block that reaches `limit`."""
    total = 0
    for k in range(maxima.size):
        if maxima[k] >= value:
            total += count_from(row[k * BLOCK_TOKENS : min((k + 1) * BLOCK_TOKENS, row.size)], value)
            if total >= limit:
                break
    return total


@compiled()
def rank_of(row: Any, maxima: Any, token: Any) -> Any:
    """Return the place of `token` in the ranking of the row, from 1 (int64)."""
    value, rank = row[token], 1
    for k in range(maxima.size):
        if not maxima[k] >= value:
            continue
        start, end = k * BLOCK_TOKENS, min((k + 1) * BLOCK_TOKENS, row.size)
        ties_end = min(max(token, start), end)  # lower ids may equal `value`
        rank += count_from(row[start:ties_end], value) + count_above(row[ties_end:end], value)
    return rank


@compiled()
def top_k_bound(row: Any, maxima: Any, maximum: Any, count: Any) -> Any:
    """Return (value, token), float32 and int64, such that exactly `count` tokens rank above; 0 < count < row.size.

    Bisects the float32 values until exactly `count` logits are at or above one of them, or, where logits tie, until
    the tied value is isolated.
    """
    low = np.int64(order_key(np.float32(-np.inf).view(np.int32)))
    high = np.int64(order_key(np.float32(maximum).view(np.int32))) + 1
    while high - low > 1:
        middle = (low + high) >> 1
        found = count_at_or_above(row, maxima, from_order_key(np.int32(middle)), count + 1)
        if found == count:
            return from_order_key(np.int32(middle)), row.size
        if found > count:
            low = middle
        else:
            high = middle
    value = from_order_key(np.int32(low))
    missing = count - count_at_or_above(row, maxima, from_order_key(np.int32(high)), count)
    token = 0
    while missing > 0:
        missing -= row[token] == value
        token += 1
    return value, token


@compiled()
def insert(ids: Any, values: Any, filled: Any, token: Any, value: Any) -> Any:
    """Insert (token, value) into two parallel arrays sorted by value, behind equal values; return the new length.

    `ids` is int64 [k], `values` float32 [k], both written; the first `filled` entries are in use. When the arrays are
    full, the last entry is dropped; `value` must then be greater than it.
    """
    j = min(filled, ids.size - 1)
    while j > 0 and values[j - 1] < value:
        values[j], ids[j] = values[j - 1], ids[j - 1]
        j -= 1
    values[j], ids[j] = value, token
    return min(filled + 1, ids.size)


@compiled()
def find_top_k(row: Any, maxima: Any, ids: Any, values: Any) -> None:
    """Write the k highest-ranked tokens to `ids` (int64 [k]) and their logits to `values` (float32 [k]), k ≤ row.size.

    They are in blocks whose maximum is at least the k-th largest block maximum; the others are skipped.
    """
    filled = 0
    for k in range(maxima.size):
        if filled < ids.size or maxima[k] > values[ids.size - 1]:
            filled = insert(ids, values, filled, k, maxima[k])
    bound = values[ids.size - 1] if filled == ids.size else NEGATIVE_INFINITY
    filled = 0
    for k in range(maxima.size):
        if maxima[k] < bound or (filled == ids.size and maxima[k] <= values[ids.size - 1]):
            continue
        for i in range(k * BLOCK_TOKENS, min((k + 1) * BLOCK_TOKENS, row.size)):
            if filled < ids.size or row[i] > values[ids.size - 1]:
                filled = insert(ids, values, filled, i, row[i])
