"""Compiled loops over blocks of the vocabulary: maxima, softmax weights, probability mass, the sampled token.

A row of logits is cut into blocks of BLOCK_TOKENS tokens. Block maxima show which blocks a search may skip; block
masses (sums of weights) are what sampling walks through. The weight of a token is
exp((logit - maximum) / temperature), a float32, and 0 where that is below exp(-87). Weights are added in float32
within a block and in float64 across blocks.

Tokens are ranked by logit, highest first, then by id, lowest first. "Above (value, token)" means ranked strictly
before that pair.

All functions here are compiled by numba, release the GIL and hold no state: any thread may call them with arrays
that no other thread writes. `row` is float32 [vocab_size], `block` float32 [at most BLOCK_TOKENS], `maxima` float32
and `masses` float64 [num_blocks]; a `value`, a `maximum` and a `scale` (1 / temperature) are float32 scalars, a
`token` is an int64. Arrays are read unless the docstring says that they are written.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

import numba
import numpy as np

BLOCK_TOKENS = 512
"""Tokens per block: 256 to 1024 measure the same at 151,936 logits."""
NEGATIVE_INFINITY = np.float32(-np.inf)

_ZERO, _ONE = np.float32(0), np.float32(1)
_MIN_EXPONENT = np.float32(-87)
_MAGNITUDE_MASK, _SIGN_SHIFT, _INFINITY_BITS = np.int32(0x7FFFFFFF), np.int32(31), np.int32(0x7F800000)

Function = TypeVar("Function", bound=Callable[..., Any])


def compiled(*fast_math: str, cache: bool = False) -> Callable[[Function], Function]:
    """Return a decorator: numba.njit without the GIL. `fast_math` names the LLVM flags that this function may use.

    The flags apply to the decorated function alone. With `cache`, raises RuntimeError where numba finds no folder to
    write its cache to.
    """
    options: dict[str, Any] = {
        "nogil": True,
        "error_model": "numpy",
        "fastmath": set(fast_math),
        "cache": cache,
    }
    return cast("Callable[[Function], Function]", numba.njit(**options))


@compiled("contract")
def exponential(x: Any) -> Any:
    """Return exp(x) for float32 x ≤ 0 as float32: relative error below 2e-7, exactly 1 at 0, exactly 0 below -87.

    Cody and Waite's reduction to |f| ≤ ln(2)/2, a minimax polynomial of degree 5, and 2**n written into the exponent's
    bits; the low bits of `rounded` hold n. No reassociation here: it would undo the reduction.
    """
    clipped = x if x > _MIN_EXPONENT else _MIN_EXPONENT
    rounded = clipped * np.float32(1.4426950408889634) + np.float32(12582912)
    n = rounded - np.float32(12582912)
    f = (clipped - n * np.float32(0.693359375)) - n * np.float32(-2.12194440e-4)
    tail = np.float32(0.49999225) + f * (
        np.float32(0.16667119) + f * (np.float32(0.041890986) + f * np.float32(0.00831243))
    )
    bits = (np.float32(rounded).view(np.int32) + np.int32(127)) << np.int32(23)
    power = np.int32(bits).view(np.float32)
    return (_ONE + (f + f * f * tail)) * power if x > _MIN_EXPONENT else _ZERO


@compiled()
def is_above(logit: Any, i: Any, value: Any, token: Any) -> Any:
    """Return whether token i with this logit ranks above (value, token)."""
    return logit > value or (logit == value and i < token)


@compiled("reassoc", "contract", "nsz")
def mass_at_or_above(block: Any, value: Any, maximum: Any, scale: Any) -> Any:
    """Return the weight (float32) of the tokens of a block whose logit is ≥ value."""
    total = _ZERO
    for i in range(block.size):
        weight = exponential((block[i] - maximum) * scale)
        total += weight if block[i] >= value else _ZERO
    return total


@compiled("reassoc", "contract", "nsz")
def mass_above(block: Any, value: Any, maximum: Any, scale: Any) -> Any:
    """Return the weight (float32) of the tokens whose logit is > value. One function for both vectorises worse."""
    total = _ZERO
    for i in range(block.size):
        weight = exponential((block[i] - maximum) * scale)
        total += weight if block[i] > value else _ZERO
    return total


@compiled()
def order_key(bits: Any) -> Any:
    """Return an int32 that sorts as the float32 with these int32 bits: maxima of integers vectorise, NaN or not."""
    return np.int32(bits ^ ((bits >> _SIGN_SHIFT) & _MAGNITUDE_MASK))


@compiled()
def from_order_key(key: Any) -> Any:
    """Return the float32 whose `order_key` is `key` (int32)."""
    return np.int32(order_key(key)).view(np.float32)


@compiled()
def block_maximum(bits: Any) -> Any:
    """Return the largest logit (float32) of a block, passed as int32 bits; NaN if the block contains a NaN."""
    highest, magnitude = np.int32(-(2**31)), np.int32(0)
    for i in range(bits.size):
        highest = max(highest, order_key(bits[i]))
        magnitude = max(magnitude, np.int32(bits[i] & _MAGNITUDE_MASK))
    return from_order_key(highest) if magnitude <= _INFINITY_BITS else np.float32(np.nan)


@compiled()
def compute_block_maxima(row: Any, maxima: Any) -> Any:
    """Write the block maxima to `maxima`; return the maximum of the row (float32), or NaN if it contains a NaN."""
    bits = row.view(np.int32)
    highest = NEGATIVE_INFINITY
    for k in range(maxima.size):
        maxima[k] = block_maximum(bits[k * BLOCK_TOKENS : min((k + 1) * BLOCK_TOKENS, row.size)])
        # the comparison keeps a NaN once it has seen one
        highest = highest if highest >= maxima[k] or highest != highest else maxima[k]
    return highest


@compiled()
def block_masses_above(row: Any, maxima: Any, value: Any, token: Any, maximum: Any, scale: Any, masses: Any) -> Any:
    """Write to `masses` the weight, per block, of the tokens above (value, token); return the sum (float64)."""
    total = 0.0
    for k in range(maxima.size):
        masses[k] = 0.0
        if maxima[k] < value or (maxima[k] - maximum) * scale <= _MIN_EXPONENT:
            continue
        start, end = k * BLOCK_TOKENS, min((k + 1) * BLOCK_TOKENS, row.size)
        ties_end = min(max(token, start), end)  # lower ids may equal `value`
        if ties_end > start:
            masses[k] += mass_at_or_above(row[start:ties_end], value, maximum, scale)
        if ties_end < end:
            masses[k] += mass_above(row[ties_end:end], value, maximum, scale)
        total += masses[k]
    return total


@compiled()
def pick_token(row: Any, value: Any, token: Any, maximum: Any, scale: Any, masses: Any, goal: Any, weights: Any) -> Any:
    """Return the token (int64) at which the cumulative weight of the tokens above (value, token) passes `goal`.

    `goal` is a float64, 0 ≤ goal < sum of `masses`. The token has a weight > 0, however the sums are rounded.
    Overwrites `weights`, float32 [BLOCK_TOKENS].
    """
    passed, block = 0.0, 0
    for k in range(masses.size):
        if masses[k] > 0.0:
            block = k
            if passed + masses[k] > goal:
                break
            passed += masses[k]
    start, end = block * BLOCK_TOKENS, min((block + 1) * BLOCK_TOKENS, row.size)
    exact = 0.0
    for i in range(start, end):
        above = is_above(row[i], i, value, token)
        weights[i - start] = exponential((row[i] - maximum) * scale) if above else _ZERO
    for i in range(end - start):
        exact += weights[i]
    rest, chosen = (goal - passed) / masses[block] * exact, start
    for i in range(end - start):
        if weights[i] > _ZERO:
            chosen = start + i
            rest -= weights[i]
            if rest < 0.0:
                break
    return chosen
