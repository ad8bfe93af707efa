"""Compiled loops over blocks of logits: maxima, weights, masses, and the draw inside a mass.

A row is cut into blocks of BLOCK tokens. Block maxima say which blocks a search may skip; block masses (sums
of weights) are what a draw walks. The weight of a token is exp((logit - maximum) / temperature), a float32, and
0 where that is below exp(-87). Weights are added in float32 within a block, in float64 across blocks.

The total order of tokens is: higher logit first, then lower id. "Above (value, token)" means strictly before that
pair in the order.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

import numba
import numpy as np

BLOCK = 512
"""Tokens in a block: 256 to 1024 measure the same at 151,936 logits."""
NOTHING = np.float32(-np.inf)

_ZERO, _ONE = np.float32(0), np.float32(1)
_CUT = np.float32(-87)
_MAGNITUDE, _SIGN_SHIFT, _INFINITY_BITS = np.int32(0x7FFFFFFF), np.int32(31), np.int32(0x7F800000)

Function = TypeVar("Function", bound=Callable[..., Any])


def compiled(*relaxed: str, cache: bool = False) -> Callable[[Function], Function]:
    """numba.njit without the GIL. `relaxed` names the LLVM fast-math flags that this function alone may use."""
    options: dict[str, Any] = {
        "nogil": True,
        "error_model": "numpy",
        "fastmath": set(relaxed),
        "cache": cache,
    }
    return cast("Callable[[Function], Function]", numba.njit(**options))


@compiled("contract")
def exponential(x: Any) -> Any:
    """exp(x) for x ≤ 0, float32, relative error below 2e-7; exactly 1 at 0, exactly 0 below -87.

    Cody and Waite's reduction to |f| ≤ ln(2)/2, a minimax polynomial of degree 5, and 2**n put into the exponent's
    bits; the low bits of `rounded` hold n. No reassociation here: it would undo the reduction.
    """
    clipped = x if x > _CUT else _CUT
    rounded = clipped * np.float32(1.4426950408889634) + np.float32(12582912)
    n = rounded - np.float32(12582912)
    f = (clipped - n * np.float32(0.693359375)) - n * np.float32(-2.12194440e-4)
    tail = np.float32(0.49999225) + f * (
        np.float32(0.16667119) + f * (np.float32(0.041890986) + f * np.float32(0.00831243))
    )
    bits = (np.float32(rounded).view(np.int32) + np.int32(127)) << np.int32(23)
    power = np.int32(bits).view(np.float32)
    return (_ONE + (f + f * f * tail)) * power if x > _CUT else _ZERO


@compiled()
def is_above(logit: Any, i: Any, value: Any, token: Any) -> Any:
    """Whether token i with this logit stands before (value, token) in the total order."""
    return logit > value or (logit == value and i < token)


@compiled("reassoc", "contract", "nsz")
def mass_from(block: Any, value: Any, maximum: Any, scale: Any) -> Any:
    """Weight of the tokens with a logit ≥ value."""
    total = _ZERO
    for i in range(block.size):
        weight = exponential((block[i] - maximum) * scale)
        total += weight if block[i] >= value else _ZERO
    return total


@compiled("reassoc", "contract", "nsz")
def mass_over(block: Any, value: Any, maximum: Any, scale: Any) -> Any:
    """Weight of the tokens with a logit > value. (One function for both would not vectorise as well.)"""
    total = _ZERO
    for i in range(block.size):
        weight = exponential((block[i] - maximum) * scale)
        total += weight if block[i] > value else _ZERO
    return total


@compiled()
def key_of(bits: Any) -> Any:
    """A float32's bits as an integer in the same order: integers have maxima that vectorise, NaN or not."""
    return np.int32(bits ^ ((bits >> _SIGN_SHIFT) & _MAGNITUDE))


@compiled()
def value_of(key: Any) -> Any:
    return np.int32(key_of(key)).view(np.float32)


@compiled()
def block_maximum(bits: Any) -> Any:
    """Largest logit of a block, given by its bits; NaN when any is NaN."""
    highest, magnitude = np.int32(-(2**31)), np.int32(0)
    for i in range(bits.size):
        highest = max(highest, key_of(bits[i]))
        magnitude = max(magnitude, np.int32(bits[i] & _MAGNITUDE))
    return value_of(highest) if magnitude <= _INFINITY_BITS else np.float32(np.nan)


@compiled()
def find_maxima(row: Any, maxima: Any) -> Any:
    """Fill the block maxima; the row's maximum, or NaN."""
    bits = row.view(np.int32)
    highest = NOTHING
    for k in range(maxima.size):
        maxima[k] = block_maximum(bits[k * BLOCK : min((k + 1) * BLOCK, row.size)])
        # written so that a NaN enters and stays
        highest = highest if highest >= maxima[k] or highest != highest else maxima[k]
    return highest


@compiled()
def masses_above(row: Any, maxima: Any, value: Any, token: Any, maximum: Any, scale: Any, masses: Any) -> Any:
    """Fill the block masses of the tokens above (value, token); their sum."""
    total = 0.0
    for k in range(maxima.size):
        masses[k] = 0.0
        if maxima[k] < value or (maxima[k] - maximum) * scale <= _CUT:
            continue
        start, end = k * BLOCK, min((k + 1) * BLOCK, row.size)
        tied = min(max(token, start), end)  # ids below it may equal `value`
        if tied > start:
            masses[k] += mass_from(row[start:tied], value, maximum, scale)
        if tied < end:
            masses[k] += mass_over(row[tied:end], value, maximum, scale)
        total += masses[k]
    return total


@compiled()
def pick(row: Any, value: Any, token: Any, maximum: Any, scale: Any, masses: Any, goal: Any, weights: Any) -> Any:
    """The token at `goal` (0 ≤ goal < sum of masses) of the cumulative weights of the tokens above (value, token).

    Always one with a weight > 0, however sums round. `weights` is scratch for one block.
    """
    passed, block = 0.0, 0
    for k in range(masses.size):
        if masses[k] > 0.0:
            block = k
            if passed + masses[k] > goal:
                break
            passed += masses[k]
    start, end = block * BLOCK, min((block + 1) * BLOCK, row.size)
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
