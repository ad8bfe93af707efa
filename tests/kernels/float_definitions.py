"""The float32 functions of kernels.maths in plain numpy, operation by operation: the same bits.

`fma` is emulated in float64, where the product of two float32 is exact, by rounding the sum to odd.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Singles = NDArray[np.float32]

ROUNDING = np.float32(12582912)
LN2_HIGH, LN2_LOW = np.float32(0.693359375), np.float32(-2.12194440e-4)
EXP2 = (1.3264690e-3, 9.6715060e-3, 5.5507338e-2, 2.4022242e-1, 6.9314698e-1, 1.0)
EXP = (1.39411241e-3, 8.36318123e-3, 4.16663751e-2, 1.6666577e-1, 0.5)
LOG = (
    7.33371725e-2, -1.16615503e-1, 1.16349381e-1, -1.23964944e-1, 1.42511116e-1, -1.66691586e-1, 2.00006894e-1,
    -2.49999811e-1, 3.33333313e-1,
)  # fmt: skip


def fma(a: Singles | np.float32, b: Singles | np.float32, c: Singles | np.float32) -> Singles:
    """Return a * b + c, rounded once."""
    product = np.asarray(a, np.float64) * np.asarray(b, np.float64)
    addend = np.asarray(c, np.float64)
    total = product + addend
    rest = total - product
    error = (product - (total - rest)) + (addend - rest)
    bits = total.view(np.int64)
    is_inexact = (error != 0) & (bits & 1 == 0)
    odd = np.where((error > 0) ^ (total < 0), bits + 1, bits - 1)
    return np.where(is_inexact, odd, bits).view(np.float64).astype(np.float32)


def polynomial(x: Singles, coefficients: Sequence[float]) -> Singles:
    total = np.full_like(x, coefficients[0])
    for coefficient in coefficients[1:]:
        total = fma(total, x, np.float32(coefficient))
    return total


def power_of_two(rounded: Singles) -> Singles:
    return ((rounded.view(np.int32) + np.int32(127)) << np.int32(23)).view(np.float32)


def exp2(x: Singles) -> Singles:
    """2**x, x ≤ 128."""
    clamped = np.maximum(x, np.float32(-127))
    rounded = clamped + ROUNDING
    return polynomial(clamped - (rounded - ROUNDING), EXP2) * power_of_two(rounded)


def exp(x: Singles) -> Singles:
    """e**x."""
    clamped = np.clip(x, np.float32(-88), np.float32(88.5))
    rounded = fma(clamped, np.float32(1.4426950408889634), ROUNDING)
    n = rounded - ROUNDING
    r = fma(n, -LN2_LOW, fma(n, -LN2_HIGH, clamped))
    return fma(polynomial(r, EXP), r * r, r + np.float32(1)) * power_of_two(rounded)


def expm1(x: Singles) -> Singles:
    """e**x - 1."""
    clamped = np.clip(x, np.float32(-88), np.float32(88))
    rounded = fma(clamped, np.float32(1.4426950408889634), ROUNDING)
    n = rounded - ROUNDING
    r = fma(n, -LN2_LOW, fma(n, -LN2_HIGH, clamped))
    power = power_of_two(rounded)
    return fma(fma(polynomial(r, EXP), r * r, r), power, power - np.float32(1))


def log(x: Singles) -> Singles:
    """The natural logarithm of normal numbers above 0."""
    bits = x.view(np.int32)
    exponent = (bits - np.int32(0x3F3504F3)) >> np.int32(23)
    t = (bits - (exponent << np.int32(23))).view(np.float32) - np.float32(1)
    n, square = exponent.astype(np.float32), t * t
    tail = fma(n, LN2_LOW, polynomial(t, LOG) * t * square)
    return fma(n, LN2_HIGH, t + fma(square, np.float32(-0.5), tail))


def sigmoid(x: Singles) -> Singles:
    """1 / (1 + e**-x)."""
    return np.float32(1) / (exp(-x) + np.float32(1))


def softplus(x: Singles) -> Singles:
    """ln(1 + e**x)."""
    small = exp(-np.abs(x))
    total = small + np.float32(1)
    with np.errstate(divide="ignore", invalid="ignore"):
        scaled = log(total) * (small / (total - np.float32(1)))
    return np.maximum(x, np.float32(0)) + np.where(total == 1, small, scaled)
