"""Instructions that old processors lack are emulated with the same bits, checked against arithmetic with fractions
too."""

from __future__ import annotations

from fractions import Fraction
from functools import cache
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from onward.kernels.code import Functions
from onward.kernels.function import Function, Module
from onward.kernels.isa import Isa
from onward.kernels.targets import Target, host
from onward.kernels.values import F16, F32, F64, Value, vec
from tests.kernels.harness import apply, compiled, elementwise

SINGLES, HALVES, DOUBLES = vec(F32, 8), vec(F16, 8), vec(F64, 4)


def write_all(module: Module, isa: Isa) -> None:
    def multiply_add(f: Function, a: Value, b: Value, c: Value) -> Value:
        return f.fma(a, b, c)

    elementwise(module, "fma", [SINGLES] * 3, SINGLES, multiply_add)
    elementwise(module, "widen", [HALVES], SINGLES, lambda f, x: x.fpext())
    elementwise(module, "narrow", [SINGLES], HALVES, lambda f, x: x.fptrunc())
    elementwise(module, "rint", [SINGLES], SINGLES, lambda f, x: f.rint(x))
    elementwise(module, "rint64", [DOUBLES], DOUBLES, lambda f, x: f.rint(x))


@cache
def soft() -> Functions:
    """This processor, as if it had none of these instructions."""
    real = host()
    return compiled(write_all, Target(real.triple, real.cpu, real.features, Isa(("f16", "fma", "rint"))))


def bits_of_singles(count: int) -> NDArray[np.float32]:
    """Return float32 of any bits: all magnitudes, denormals, infinities, NaN."""
    return np.random.default_rng(2).integers(0, 1 << 32, count, dtype=np.uint32).view(np.float32)


def same(found: NDArray[Any], expected: NDArray[Any]) -> None:
    """Compare bits; a NaN is a NaN."""
    assert np.array_equal(np.isnan(found), np.isnan(expected))
    numbers = ~np.isnan(expected)
    assert found[numbers].tobytes() == expected[numbers].tobytes()


def test_float16_is_widened_exactly() -> None:
    halves = np.arange(1 << 16, dtype=np.uint16).view(np.float16)
    same(apply(soft(), "widen", np.empty(halves.size, np.float32), halves), halves.astype(np.float32))


@pytest.mark.filterwarnings("ignore:overflow")
def test_float32_is_rounded_to_the_nearest_float16_ties_to_even() -> None:
    halves = np.arange(0x7C00, dtype=np.uint16).view(np.float16).astype(np.float32)
    ties = (halves[:-1] + halves[1:]) / 2
    singles = np.concatenate((halves, ties, np.nextafter(ties, np.float32(0)), -ties, bits_of_singles(1 << 16)))
    singles = singles[: singles.size // 8 * 8]
    same(apply(soft(), "narrow", np.empty(singles.size, np.float16), singles), singles.astype(np.float16))


@pytest.mark.parametrize(("name", "dtype"), [("rint", np.float32), ("rint64", np.float64)])
def test_whole_numbers_are_the_nearest_ones_ties_to_even(name: str, dtype: Any) -> None:
    values = np.concatenate(
        (np.arange(-40, 40) / 4, [2.0**22 + 0.5, 2.0**30, 0.0, -0.0, -0.3, np.inf, -np.inf, np.nan])
    )
    x = values.astype(dtype)
    same(apply(soft(), name, np.empty_like(x), x), np.rint(x))


def nearest_single(exact: Fraction) -> np.float32:
    """Return the nearest float32, of two the one with an even last bit."""
    with np.errstate(over="ignore"):
        middle = np.float32(float(exact))
    around = [np.nextafter(middle, np.float32(-np.inf)), middle, np.nextafter(middle, np.float32(np.inf))]
    return min(around, key=lambda x: (abs(Fraction(float(x)) - exact), int(x.view(np.uint32)) & 1))


def fma_arguments() -> tuple[NDArray[np.float32], NDArray[np.float32], NDArray[np.float32]]:
    """Return arguments whose sums cancel, tie, underflow and differ much in magnitude."""
    rng = np.random.default_rng(3)
    a, b = (
        (rng.integers(1 << 23, 1 << 24, 2048) * 2.0 ** rng.integers(-80, -10, 2048)).astype(np.float32) for _ in "ab"
    )
    near = (-a.astype(np.float64) * b).astype(np.float32)
    c = np.where(rng.random(2048) < 0.5, near, near * 2.0 ** rng.integers(-30, 30, 2048).astype(np.float32))
    return a, b, c.astype(np.float32)


def test_a_multiplication_and_addition_are_rounded_once() -> None:
    a, b, c = fma_arguments()
    expected = [
        nearest_single(Fraction(float(x)) * Fraction(float(y)) + Fraction(float(z)))
        for x, y, z in zip(a, b, c, strict=True)
    ]
    found = apply(soft(), "fma", np.empty_like(a), a, b, c)
    assert np.array_equal(found, np.array(expected, np.float32))


def test_fma_of_any_bits_is_what_the_instruction_computes() -> None:
    """On a processor without the instruction both are emulated; the test above shows that they are right."""
    a, b, c = bits_of_singles(3 << 15).reshape(3, -1)
    same(apply(soft(), "fma", np.empty_like(a), a, b, c), apply(compiled(write_all), "fma", np.empty_like(a), a, b, c))
