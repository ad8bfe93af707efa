"""Predictions and corrections of hidden states have the bits of their definition, in every form."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import numpy as np
import pytest
from numpy.typing import NDArray

from onward.kernels.altup import emit_altup
from onward.kernels.altup_tape import AltUpStates, AltUpTape
from onward.kernels.attention_shape import AttentionShape
from onward.kernels.code import Functions
from onward.kernels.interpreter import Kernels
from onward.kernels.memory import Rows
from onward.kernels.products import ProductKind
from onward.kernels.records import ALTUP
from tests.examples import slow_but
from tests.kernels.definition import corrected, predicted
from tests.kernels.emulated import executable_forms
from tests.kernels.harness import operation, run_operation

Floats = NDArray[np.float32]
ROWS = 3
CASES = [(4, 2080, 3), (2, 64, 1), (3, 20, 1)]
"""States, their size, and the pieces of a row: of several vectors, and of less than one block."""


@cache
def code(form: str) -> Functions:
    return operation(emit_altup, form)


def run(form: str, states: Floats, coefficients: Floats, pieces: int, computed: Floats | None = None) -> Floats:
    """States [rows, count, size], whose sizes are multiples of 32."""
    found = np.full_like(states, np.nan)
    record = ALTUP.record(
        0, source=states, target=found, stride=states.strides[0], part=states.strides[1], count=states.shape[1],
        inputs=states.shape[2], coefficients=coefficients, coefficient_stride=coefficients.strides[0],
        computed=computed, computed_stride=0 if computed is None else computed.strides[0], pieces=pieces,
    )  # fmt: skip
    run_operation(code(form), record, ROWS)
    return found


@pytest.mark.parametrize("form", slow_but(["host"], ["host", *sorted(executable_forms())]))
@pytest.mark.parametrize(("count", "size", "pieces"), CASES)
def test_states_are_predicted_and_corrected_as_defined(form: str, count: int, size: int, pieces: int) -> None:
    random = np.random.default_rng(count)
    padded = size + -size % 32
    states, mixing, factors, computed = (
        random.normal(size=shape).astype(np.float32)
        for shape in ((ROWS, count, padded), (ROWS, count, count), (ROWS, count), (ROWS, padded))
    )
    states[:, :, size:] = computed[:, size:] = 0
    found = run(form, states, mixing, pieces)
    assert found.tobytes() == predicted(states, mixing).tobytes()
    wide = states.astype(np.float64)
    assert np.abs(found - (wide + np.einsum("rkj,rjd->rkd", mixing, wide))).max() < 1e-5
    found = run(form, states, factors, pieces, computed)
    assert found.tobytes() == corrected(states, computed, factors).tobytes()
    exact = wide + (1.0 + factors[:, :, None]) * (computed - wide[:, 0])[:, None]
    assert np.abs(found - exact).max() < 1e-5


def test_what_leaves_its_memory_is_refused() -> None:
    product, shape = (ProductKind("F32", "float32"),), (AttentionShape(1, 1, 16, 16),)
    tape = AltUpTape(Kernels(product, ("F32",), shape, has_altup=True, has_sparse_gates=True), 4, 1)
    without = AltUpTape(Kernels(product, ("F32",), shape), 4, 1)
    states, small = AltUpStates(Rows.allocate(4, 3 * 256), 3, 64), Rows.allocate(4, 64)
    tape.altup(states, AltUpStates(Rows.allocate(4, 3 * 256), 3, 64), small)
    tape.altup(states, states, small, Rows.allocate(4, 256))
    tape.sparsify(states.rows, 192, 1.0)
    calls: list[Callable[[], None]] = [
        lambda: tape.altup(AltUpStates(states.rows, 4, 64), AltUpStates(states.rows, 4, 64), small),
        lambda: tape.altup(states, AltUpStates(Rows.allocate(4, 4 * 256), 3, 64), small),
        lambda: tape.altup(states, states, Rows.exactly(4, 32)),
        lambda: tape.altup(states, states, small, small),
        lambda: without.altup(states, states, small),
        lambda: tape.sparsify(states.rows, 193, 1.0),
        lambda: without.sparsify(states.rows, 64, 1.0),
    ]
    for call in calls:
        with pytest.raises(ValueError, match=r"within|other sizes|compiled without"):
            call()
