"""What processors without F16C, FMA or SSE4.1 lack, spelt out in operations that every processor has: the same bits.

Without these, LLVM would call a C library's functions, which are not there at run time and whose rounding is unknown.
`f` is the function that is being written.
"""

from __future__ import annotations

from typing import Any

from onward.kernels.values import F16, F32, I16, I32, I64, Value, element, like


def soft_widen(f: Any, half: Value) -> Value:
    """Return float16 as float32; exact. A NaN is quietened and keeps its payload, as vcvtph2ps and fcvtl do."""
    t = half.t
    bits = half.as_(like(t, I16)).zext(I32)
    magnitude = bits & 0x7FFF
    normal = (magnitude << 13) + (112 << 23)
    special = (magnitude << 13) | 0x7F800000
    special = f.select(magnitude > 0x7C00, special | 0x00400000, special)
    small = (magnitude.to_f32() * 2.0**-24).as_(like(t, I32))
    widened: Value = f.select(magnitude < 0x400, small, f.select(magnitude >= 0x7C00, special, normal))
    return (widened | ((bits & 0x8000) << 16)).as_(like(t, F32))


def soft_narrow(f: Any, value: Value) -> Value:
    """Return float32 as float16, rounded to nearest, ties to even."""
    t = value.t
    bits = value.as_(like(t, I32))
    magnitude = bits & 0x7FFFFFFF
    normal = (magnitude + 0xFFF + ((magnitude >> 13) & 1) - (112 << 23)) >> 13
    small = (magnitude.as_(t) + 0.5).as_(like(t, I32)) - 0x3F000000  # an ulp of 0.5 is the smallest float16
    nan = ((magnitude >> 13) & 0x3FF) | 0x7E00
    infinite = f.select(magnitude > 0x7F800000, nan, f.const(magnitude.t, 0x7C00))
    rounded: Value = f.select(magnitude < 0x38800000, small, f.select(magnitude < 0x477FF000, normal, infinite))
    return (rounded | ((bits >> 16) & 0x8000)).trunc(I16).as_(like(t, F16))


def soft_fma(f: Any, a: Value, b: Value, c: Value) -> Value:
    """Return a * b + c of float32, rounded once.

    In float64 the product is exact; the sum is rounded to odd, so that the rounding to float32 is the only one that
    counts (Boldo, Melquiond: "Emulation of FMA and correctly rounded sums: proved algorithms using rounding to odd").
    """
    bits_type = like(c.t, I64)
    a, b, c = a.to_f64(), b.to_f64(), c.to_f64()
    product = a * b
    total = product + c
    rest = total - product
    error = (product - (total - rest)) + (c - rest)
    bits = total.as_(bits_type)
    is_inexact = ((error > 0.0) | (error < 0.0)) & (bits & 1).eq(0)
    is_away = (error > 0.0) ^ (total < 0.0)
    odd = bits + f.select(is_away, f.const(bits_type, 1), f.const(bits_type, -1))
    to_odd: Value = f.select(is_inexact, odd, bits)
    return to_odd.as_(total.t).to_f32()


def soft_rint(f: Any, x: Value) -> Value:
    """Return the nearest whole number, ties to even, with the sign of `x`."""
    is_single = element(x.t) is F32
    bits_type = like(x.t, I32 if is_single else I64)
    big = 2.0**23 if is_single else 2.0**52
    magnitude = f.fabs(x)
    rounded: Value = f.select(magnitude < big, (magnitude + big) - big, magnitude)
    return (rounded.as_(bits_type) | (x.as_(bits_type) & (1 << 31 if is_single else 1 << 63))).as_(x.t)
