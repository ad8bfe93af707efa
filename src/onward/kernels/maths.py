"""Functions of floats as polynomials in one fixed order: the same bits on every processor, and no C library.

`f` is the function that is being written; arguments are scalars or vectors. Errors are those of the tests in
tests/kernels/test_maths.py, over all arguments there. The functions of float32 use fma; those of float64 (`exp64`,
`log64`) only +, -, *, /, so that plain Python computes the same bits.
"""

from __future__ import annotations

from collections.abc import Sequence

from onward.kernels.function import Function
from onward.kernels.values import I32, I64, Value, like

_ROUNDING_F32 = 1.5 * 2.0**23
"""Added to a small float32, it leaves the nearest whole number in the low bits."""
_ROUNDING_F64 = 1.5 * 2.0**52
LOG2_E, LN2 = 1.4426950408889634, 0.6931471805599453
_LN2_HIGH, _LN2_LOW = 0.693359375, -2.12194440e-4
"""ln(2) in two parts: the first has 9 bits, so that its multiples are exact."""

_EXP2 = (1.3264690e-3, 9.6715060e-3, 5.5507338e-2, 2.4022242e-1, 6.9314698e-1, 1.0)
_EXP = (1.39411241e-3, 8.36318123e-3, 4.16663751e-2, 1.6666577e-1, 0.5)
_LOG = (
    7.33371725e-2,
    -1.16615503e-1,
    1.16349381e-1,
    -1.23964944e-1,
    1.42511116e-1,
    -1.66691586e-1,
    2.00006894e-1,
    -2.49999811e-1,
    3.33333313e-1,
)
_ERF_SCALE = 0.3275911
_ERF = (1.061405429, -1.453152027, 1.421413741, -0.284496736, 0.254829592)
_TANH = (-6.11105862e-3, 2.10086305e-2, -5.38537682e-2, 1.33327926e-1, -3.33333292e-1)


def polynomial(f: Function, x: Value, coefficients: Sequence[float]) -> Value:
    """Return the polynomial with these coefficients, highest power first, by Horner's rule with fma."""
    total = f.const(x.t, coefficients[0])
    for coefficient in coefficients[1:]:
        total = f.fma(total, x, coefficient)
    return total


def power_of_two(rounded: Value) -> Value:
    """Return 2**n as float32 from n + _ROUNDING_F32, -127 ≤ n ≤ 128: 0 and infinity at the ends."""
    bits = rounded.as_(like(rounded.t, I32))
    return ((bits + 127) << 23).as_(rounded.t)


def exp2(f: Function, x: Value) -> Value:
    """Return 2**x for x ≤ 128: relative error below 2e-7, exactly 1 at 0, exactly 0 below -126.5, infinity from 127.5
    on. A softmax needs no larger ones, and nothing is cheaper."""
    clamped = f.select(x < -127.0, f.const(x.t, -127.0), x)
    rounded = clamped + _ROUNDING_F32
    fraction = clamped - (rounded - _ROUNDING_F32)
    return polynomial(f, fraction, _EXP2) * power_of_two(rounded)


def exp(f: Function, x: Value) -> Value:
    """Return e**x: relative error below 1.2e-7, exactly 1 at 0, exactly 0 below -87.7, infinity from 88.4 on."""
    clamped = _clamped(f, x, -88.0, 88.5)
    rounded = f.fma(clamped, LOG2_E, _ROUNDING_F32)
    n = rounded - _ROUNDING_F32
    r = f.fma(n, -_LN2_LOW, f.fma(n, -_LN2_HIGH, clamped))
    return f.fma(polynomial(f, r, _EXP), r * r, r + 1.0) * power_of_two(rounded)


def expm1(f: Function, x: Value) -> Value:
    """Return e**x - 1: relative error below 3e-7, also near 0; exactly -1 below -87.7, and above 88 as at 88."""
    clamped = _clamped(f, x, -88.0, 88.0)
    rounded = f.fma(clamped, LOG2_E, _ROUNDING_F32)
    n = rounded - _ROUNDING_F32
    r = f.fma(n, -_LN2_LOW, f.fma(n, -_LN2_HIGH, clamped))
    power = power_of_two(rounded)
    return f.fma(f.fma(polynomial(f, r, _EXP), r * r, r), power, power - 1.0)


def log(f: Function, x: Value) -> Value:
    """Return the natural logarithm: error below 1 ulp and 1e-7, exactly 0 at 1, -inf at 0, NaN below."""
    integer = like(x.t, I32)
    is_small = x < 2.0**-126
    bits = f.select(is_small, x * 2.0**23, x).as_(integer)
    exponent = (bits - 0x3F3504F3).sar(23)  # of the square root of 1/2: the mantissa is between it and its double
    mantissa = (bits - (exponent << 23)).as_(x.t)
    n = exponent.to_f32() - f.select(is_small, f.const(x.t, 23), f.const(x.t, 0))
    t = mantissa - 1.0
    square = t * t
    tail = f.fma(n, _LN2_LOW, polynomial(f, t, _LOG) * t * square)
    finite = f.fma(n, _LN2_HIGH, t + f.fma(square, -0.5, tail))
    infinite = f.select(x > 0.0, x, f.const(x.t, float("nan")))  # x itself: +inf
    infinite = f.select(x.eq(0.0), f.const(x.t, float("-inf")), infinite)
    return f.select((x > 0.0) & (x < float("inf")), finite, infinite)


def sigmoid(f: Function, x: Value) -> Value:
    """Return 1 / (1 + e**-x): relative error below 3e-7; exactly 0 below -88.4."""
    return 1.0 / (exp(f, -x) + 1.0)


def softplus(f: Function, x: Value) -> Value:
    """Return ln(1 + e**x): relative error below 3e-7; exactly x from 88 on, and 0 below -87.7."""
    small = exp(f, -f.fabs(x))
    total = small + 1.0
    scaled = log(f, total) * (small / (total - 1.0))  # for what the sum has lost of `small`
    return f.max(x, 0.0) + f.select(total.eq(1.0), small, scaled)


def tanh(f: Function, x: Value) -> Value:
    """Return the hyperbolic tangent: relative error below 3e-7."""
    magnitude = f.fabs(x)
    square = x * x
    near = f.fma(polynomial(f, square, _TANH) * square, x, x)
    far = 1.0 - 2.0 / (exp(f, magnitude + magnitude) + 1.0)
    integer = like(x.t, I32)
    signed = (far.as_(integer) | (x.as_(integer) & (1 << 31))).as_(x.t)
    return f.select(magnitude >= 0.625, signed, near)


def erf(f: Function, x: Value) -> Value:
    """Return the error function: error below 6e-7 (Abramowitz, Stegun 7.1.26)."""
    magnitude = f.fabs(x)
    t = f.const(x.t, 1.0) / f.fma(magnitude, _ERF_SCALE, 1.0)
    tail = polynomial(f, t, _ERF) * t * exp(f, -(magnitude * magnitude))
    found = 1.0 - tail
    return f.select(x < 0.0, -found, found)


def rsqrt(f: Function, x: Value) -> Value:
    """Return 1 / sqrt(x): both are rounded as IEEE 754 says, by every processor."""
    return 1.0 / f.sqrt(x)


def exp64(f: Function, x: Value) -> Value:
    """Return e**x of float64: error below 1 ulp, exactly 1 at 0, exactly 0 below -708, infinity above 709.

    fdlibm's reduction and rational function (Sun Microsystems, e_exp.c).
    """
    rounded = _clamped(f, x, -709.0, 710.0) * LOG2_E + _ROUNDING_F64
    n = rounded - _ROUNDING_F64
    high, low = x - n * 6.93147180369123816490e-01, n * 1.90821492927058770002e-10
    r = high - low
    square = r * r
    tail = square * 4.13813679705723846039e-08 - 1.65339022054652515390e-06
    for coefficient in (6.61375632143793436117e-05, -2.77777777770155933842e-03, 1.66666666666666019037e-01):
        tail = square * tail + coefficient
    c = r - square * tail
    fraction = 1.0 - ((low - (r * c) / (2.0 - c)) - high)
    scaled = fraction * ((rounded.as_(like(x.t, I64)) + 1023) << 52).as_(x.t)
    scaled = f.select(x < -708.0, f.const(x.t, 0), scaled)
    return f.select(x > 709.0, f.const(x.t, float("inf")), scaled)


def log64(f: Function, x: Value) -> Value:
    """Return the natural logarithm of float64: error below 1 ulp; for normal numbers above 0, -inf otherwise.

    fdlibm's reduction and polynomial (Sun Microsystems, e_log.c).
    """
    bits = x.as_(like(x.t, I64))
    exponent = (bits - 0x3FE6A09E667F3BCD).sar(52)
    t = (bits - (exponent << 52)).as_(x.t) - 1.0
    n = exponent.to_f64()
    s = t / (t + 2.0)
    z = s * s
    w = z * z
    even = w * (w * (w * 1.531383769920937332e-01 + 2.222219843214978396e-01) + 3.999999999940941908e-01)
    odd = w * (w * (w * 1.479819860511658591e-01 + 1.818357216161805012e-01) + 2.857142874366239149e-01)
    half = t * t * 0.5
    rest = s * (half + (even + z * (odd + 6.666666666666735130e-01))) + n * 1.90821492927058770002e-10
    result = n * 6.93147180369123816490e-01 - ((half - rest) - t)
    return f.select(x > 0.0, result, f.const(x.t, float("-inf")))


def _clamped(f: Function, x: Value, low: float, high: float) -> Value:
    """Return x within the bounds; a NaN stays."""
    at_least = f.select(x < low, f.const(x.t, low), x)
    return f.select(at_least > high, f.const(x.t, high), at_least)
