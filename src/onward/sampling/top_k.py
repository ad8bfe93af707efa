"""Compiled searches of a row by the total order of tokens, helped by its block maxima (see vocab_blocks.py)."""

from __future__ import annotations

from typing import Any

import numpy as np

from onward.sampling.vocab_blocks import BLOCK, NOTHING, compiled, key_of, value_of


@compiled()
def first_of(row: Any, maxima: Any, value: Any) -> Any:
    """Lowest id whose logit is `value`, the row's maximum."""
    k = 0
    while maxima[k] != value:
        k += 1
    token = k * BLOCK
    while row[token] != value:
        token += 1
    return token


@compiled()
def count_from(row: Any, maxima: Any, value: Any, limit: Any) -> Any:
    """How many logits are ≥ value; stops counting once there are `limit`."""
    total = 0
    for k in range(maxima.size):
        if maxima[k] >= value:
            block = row[k * BLOCK : min((k + 1) * BLOCK, row.size)]
            found: Any = np.int32(0)
            for i in range(block.size):
                found += np.int32(block[i] >= value)
            total += found
            if total >= limit:
                break
    return total


@compiled()
def bound_of_best(row: Any, maxima: Any, maximum: Any, count: Any) -> Any:
    """(value, token) such that exactly `count` tokens are above it. Bisects the float32 values until one has
    exactly `count` logits from it up; or else, at a tie, until it is isolated."""
    low = np.int64(key_of(np.float32(-np.inf).view(np.int32)))
    high = np.int64(key_of(np.float32(maximum).view(np.int32))) + 1
    while high - low > 1:
        middle = (low + high) >> 1
        found = count_from(row, maxima, value_of(np.int32(middle)), count + 1)
        if found == count:
            return value_of(np.int32(middle)), row.size
        if found > count:
            low = middle
        else:
            high = middle
    value = value_of(np.int32(low))
    missing = count - count_from(row, maxima, value_of(np.int32(high)), count)
    token = 0
    while missing > 0:
        missing -= row[token] == value
        token += 1
    return value, token


@compiled()
def insert(ids: Any, values: Any, filled: Any, token: Any, value: Any) -> Any:
    """Put (token, value) behind all that are as good, dropping the last when the arrays are full."""
    j = min(filled, ids.size - 1)
    while j > 0 and values[j - 1] < value:
        values[j], ids[j] = values[j - 1], ids[j - 1]
        j -= 1
    values[j], ids[j] = value, token
    return min(filled + 1, ids.size)


@compiled()
def find_best(row: Any, maxima: Any, ids: Any, values: Any) -> None:
    """Fill `ids` and `values` (at most row.size long) with the most likely tokens and their logits.

    They lie in blocks whose maximum reaches the ids.size-th largest block maximum.
    """
    filled = 0
    for k in range(maxima.size):
        if filled < ids.size or maxima[k] > values[ids.size - 1]:
            filled = insert(ids, values, filled, k, maxima[k])
    bound = values[ids.size - 1] if filled == ids.size else NOTHING
    filled = 0
    for k in range(maxima.size):
        if maxima[k] < bound or (filled == ids.size and maxima[k] <= values[ids.size - 1]):
            continue
        for i in range(k * BLOCK, min((k + 1) * BLOCK, row.size)):
            if filled < ids.size or row[i] > values[ids.size - 1]:
                filled = insert(ids, values, filled, i, row[i])
