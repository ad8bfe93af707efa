"""Units of feed-forward layers have the bits of their definition, in every form."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
from numpy.typing import NDArray

from onward.kernels.activations import ACTIVATION_NAMES
from onward.kernels.code import Functions
from onward.kernels.operations import Writers
from onward.kernels.records import UNIT
from onward.kernels.units import UNITS, emit_unit
from tests.examples import slow_but
from tests.kernels.definition import xielu
from tests.kernels.emulated import executable_forms
from tests.kernels.harness import operation, run_operation

Floats = NDArray[np.float32]
ROWS, INPUTS = 5, 2080
"""In three pieces, of which the last one is shorter."""
NUMBERS = np.array([[1.17, 0.8, 0.5, -1e-6], [0.3, 2.5, 0.25, -0.4]], np.float32)


@cache
def code(form: str) -> Functions:
    return operation(lambda module: emit_unit(module, Writers(module, ("float32",))), form)


def run(form: str, activation: str, gate: Floats | None, up: Floats, numbers: Floats | None) -> Floats:
    found = np.full_like(up, np.nan)
    record = UNIT.record(
        0, gate=gate, up=up, source_stride=up.strides[0], inputs=INPUTS, target=found, target_stride=found.strides[0],
        pieces=3, form=ACTIVATION_NAMES.index("float32"), activation=UNITS.index(activation), copies=1,
        parameters=numbers,
    )  # fmt: skip
    run_operation(code(form), record, ROWS, INPUTS)
    return found


def rows(seed: int) -> Floats:
    """Numbers of all magnitudes, and some on each side of what xIELU distinguishes."""
    random = np.random.default_rng(seed)
    found = random.normal(size=(ROWS, INPUTS)) * np.exp(random.uniform(-20, 4, (ROWS, INPUTS)))
    found[:, :8] = [0, -0.0, -1e-6, -1e-7, -0.4, -0.39, -100, 100]
    return found.astype(np.float32)


@pytest.mark.parametrize("form", slow_but(["host"], ["host", *sorted(executable_forms())]))
@pytest.mark.parametrize("numbers", NUMBERS)
def test_xielu_has_the_bits_of_its_definition(form: str, numbers: Floats) -> None:
    x = rows(1)
    assert run(form, "xielu", None, x, numbers).tobytes() == xielu(x, numbers).tobytes()
    factor = rows(2)
    assert run(form, "xielu", x, factor, numbers).tobytes() == (xielu(x, numbers) * factor).tobytes()


@pytest.mark.parametrize("numbers", NUMBERS)
def test_xielu_is_that_of_its_publication(numbers: Floats) -> None:
    """Huang, arXiv 2411.13010: quadratic above 0, below it the integral of an ELU, with a slope at 0."""
    above, below, beta, eps = numbers.astype(np.float64)
    x = rows(3)[:, 8:]
    wide = x.astype(np.float64)
    negative = below * (np.expm1(np.minimum(wide, eps)) - wide) + beta * wide
    expected = np.where(wide > 0, above * wide**2 + beta * wide, negative)
    found = run("host", "xielu", None, rows(3), numbers)[:, 8:]
    assert np.abs(found - expected).max() / np.abs(expected).max() < 1e-6
    assert (np.abs(found - expected) <= 4e-7 * (np.abs(wide) * (beta + below) + np.abs(expected)) + 1e-12).all()
