"""The polynomials: their error against float64, exact where they promise it, and the same bits in every form."""

from __future__ import annotations

import math
from functools import cache
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from onward.kernels import maths
from onward.kernels.code import Functions
from onward.kernels.function import Module
from onward.kernels.isa import Isa
from onward.kernels.values import F32, F64, vec
from tests.examples import slow_but
from tests.kernels import float_definitions as definitions
from tests.kernels.emulated import executable_forms
from tests.kernels.harness import apply, compiled, elementwise

SINGLE = ("exp2", "exp", "expm1", "erf", "log", "sigmoid", "softplus", "tanh", "rsqrt")
DOUBLE = ("exp64", "log64")


def write_all(module: Module, isa: Isa) -> None:
    for name in SINGLE:
        elementwise(module, name, [vec(F32, 8)], vec(F32, 8), getattr(maths, name))
    for name in DOUBLE:
        elementwise(module, name, [vec(F64, 4)], vec(F64, 4), getattr(maths, name))


@cache
def host_code() -> Functions:
    return compiled(write_all)


def arguments(name: str) -> NDArray[Any]:
    """Return arguments of a function, from its whole domain and around 0."""
    rng = np.random.default_rng(5)
    spread = rng.uniform(*SPREADS[name], 1 << 16)
    if name in ("log", "rsqrt", "log64"):
        spread = np.exp(spread)
    near = rng.uniform(-1, 1, 1 << 14) if name not in ("log", "rsqrt", "log64") else rng.uniform(0.5, 2, 1 << 14)
    return np.concatenate((spread, near)).astype(np.float64 if name in DOUBLE else np.float32)


SPREADS = {
    "exp2": (-126, 127),
    "exp": (-87, 88),
    "expm1": (-90, 87.9),
    "log": (-87, 88),
    "sigmoid": (-87, 88),
    "softplus": (-87, 120),
    "tanh": (-12, 12),
    "erf": (-6, 6),
    "rsqrt": (-80, 80),
    "exp64": (-708, 709),
    "log64": (-700, 700),
}
EXACT: dict[str, Any] = {
    "exp2": np.exp2,
    "exp": np.exp,
    "expm1": np.expm1,
    "log": np.log,
    "sigmoid": lambda x: 1 / (1 + np.exp(-x)),
    "softplus": lambda x: np.log1p(np.exp(x)),
    "tanh": np.tanh,
    "erf": np.vectorize(math.erf),
    "rsqrt": lambda x: 1 / np.sqrt(x),
    "exp64": np.exp,
    "log64": np.log,
}
RELATIVE = {
    "exp2": 2e-7,
    "exp": 1.2e-7,
    "expm1": 3e-7,
    "sigmoid": 3e-7,
    "softplus": 3e-7,
    "tanh": 3e-7,
    "rsqrt": 1.2e-7,
    "exp64": 4.5e-16,
}


def evaluated(code: Functions, name: str, x: NDArray[Any]) -> NDArray[Any]:
    return apply(code, name, np.empty_like(x), x)


@pytest.mark.parametrize("name", RELATIVE)
def test_the_relative_error_is_as_stated(name: str) -> None:
    x = arguments(name)
    exact = EXACT[name](x.astype(np.float64))
    error = np.abs(evaluated(host_code(), name, x) - exact) / np.abs(exact)
    assert error.max() < RELATIVE[name]


def test_the_absolute_error_of_erf_is_as_stated() -> None:
    x = arguments("erf")
    assert np.abs(evaluated(host_code(), "erf", x) - EXACT["erf"](x.astype(np.float64))).max() < 6e-7


@pytest.mark.parametrize("name", ["log", "log64"])
def test_a_logarithm_is_within_one_unit_in_the_last_place(name: str) -> None:
    x = arguments(name)
    found = evaluated(host_code(), name, x)
    assert (np.abs(found - EXACT[name](x.astype(np.float64))) / np.spacing(np.abs(found))).max() < 1.1


INF, NAN = math.inf, math.nan
ENDS = {
    "exp2": [(0, 1), (1, 2), (-3, 0.125), (-127, 0), (-INF, 0), (128, INF), (NAN, NAN)],
    "exp": [(0, 1), (-88, 0), (-INF, 0), (89, INF), (INF, INF), (NAN, NAN)],
    "expm1": [(0, 0), (-88, -1), (-INF, -1), (89, float(np.expm1(88))), (INF, float(np.expm1(88))), (NAN, NAN)],
    "log": [(1, 0), (0, -INF), (INF, INF), (-1, NAN), (-INF, NAN), (NAN, NAN), (1e-40, float(np.log(1e-40)))],
    "sigmoid": [(0, 0.5), (100, 1), (-100, 0), (INF, 1), (-INF, 0), (NAN, NAN)],
    "softplus": [(100, 100), (-100, 0), (INF, INF), (-INF, 0), (NAN, NAN)],
    "tanh": [(0, 0), (20, 1), (-20, -1), (INF, 1), (-INF, -1), (NAN, NAN)],
    "erf": [(20, 1), (-20, -1), (INF, 1), (-INF, -1), (NAN, NAN)],
    "rsqrt": [(4, 0.5), (0, INF), (INF, 0), (-1, NAN), (NAN, NAN)],
    "exp64": [(0, 1), (-709, 0), (-INF, 0), (710, INF), (INF, INF)],
    "log64": [(1, 0), (0, -INF)],
}


@pytest.mark.parametrize("name", ENDS)
def test_exact_cases_are_exact(name: str) -> None:
    given, expected = np.array(ENDS[name]).T
    x = np.resize(given, 16).astype(np.float64 if name in DOUBLE else np.float32)
    np.testing.assert_allclose(
        evaluated(host_code(), name, x)[: given.size].astype(np.float64), expected, rtol=1e-4, atol=0
    )


FORMS = [name for name in ("sse2", "avx2", "avx512-vnni", "neon") if name in executable_forms()]


@pytest.mark.parametrize("form", slow_but([name for name in FORMS if name in ("avx2", "neon")], FORMS))
def test_every_form_computes_the_same_bits(form: str) -> None:
    code = compiled(write_all, executable_forms()[form])
    for name in (*SINGLE, *DOUBLE):
        x = arguments(name)
        assert evaluated(code, name, x).tobytes() == evaluated(host_code(), name, x).tobytes(), name


@pytest.mark.parametrize("name", ["exp2", "exp", "expm1", "log", "sigmoid", "softplus"])
def test_plain_numpy_computes_the_same_bits(name: str) -> None:
    x = arguments(name)
    assert evaluated(host_code(), name, x).tobytes() == getattr(definitions, name)(x).tobytes()


def test_plain_python_computes_the_bits_of_exp64_and_log64() -> None:
    x = arguments("exp64")[:2000]
    assert [python_exp64(value) for value in x.tolist()] == evaluated(host_code(), "exp64", x).tolist()
    x = arguments("log64")[:2000]
    assert [python_log64(value) for value in x.tolist()] == evaluated(host_code(), "log64", x).tolist()


def python_exp64(x: float) -> float:
    """fdlibm's e_exp.c, with a nearest instead of a truncated multiple of ln(2)."""
    n = (x * 1.4426950408889634 + 6755399441055744.0) - 6755399441055744.0
    high, low = x - n * 6.93147180369123816490e-01, n * 1.90821492927058770002e-10
    r = high - low
    t = r * r
    tail = 6.61375632143793436117e-05 + t * (-1.65339022054652515390e-06 + t * 4.13813679705723846039e-08)
    c = r - t * (1.66666666666666019037e-01 + t * (-2.77777777770155933842e-03 + t * tail))
    fraction = 1 - ((low - (r * c) / (2 - c)) - high)
    return math.ldexp(fraction, int(n))


def python_log64(x: float) -> float:
    """fdlibm's e_log.c."""
    mantissa, exponent = math.frexp(x)
    mantissa, exponent = (mantissa * 2, exponent - 1) if mantissa < 0.7071067811865476 else (mantissa, exponent)
    f = mantissa - 1
    s = f / (2 + f)
    z = s * s
    w = z * z
    t1 = w * (3.999999999940941908e-01 + w * (2.222219843214978396e-01 + w * 1.531383769920937332e-01))
    inner = 2.857142874366239149e-01 + w * (1.818357216161805012e-01 + w * 1.479819860511658591e-01)
    t2 = z * (6.666666666666735130e-01 + w * inner)
    half = 0.5 * f * f
    low = exponent * 1.90821492927058770002e-10
    return exponent * 6.93147180369123816490e-01 - ((half - (s * (half + (t1 + t2)) + low)) - f)
