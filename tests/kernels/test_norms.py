"""Norms that are as large as other rows, and sparse gates, have the bits of their definition, in every form."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from onward.kernels.activations import ACTIVATION_NAMES
from onward.kernels.code import Functions
from onward.kernels.function import Module
from onward.kernels.memory import Vector
from onward.kernels.norms import emit_norm, emit_sparsify
from onward.kernels.operations import Writers
from onward.kernels.records import NORM, SPARSIFY
from tests.examples import slow_but
from tests.kernels.definition import as_large, sparse
from tests.kernels.emulated import executable_forms
from tests.kernels.harness import operation, run_operation

Floats = NDArray[np.float32]
ROWS = 5
FORMS = ["host", *sorted(executable_forms())]


def _emit_norm(module: Module) -> Any:
    return emit_norm(module, Writers(module, ("float32",)))


@cache
def code(form: str, name: str) -> Functions:
    return operation({"norm": _emit_norm, "sparsify": emit_sparsify}[name], form)


def rows(seed: int, inputs: int) -> Floats:
    """Rows of various sizes, with zeros up to a multiple of 32."""
    found = np.random.default_rng(seed).normal(size=(ROWS, inputs)) * 10.0 ** np.arange(-4, ROWS - 4)[:, None]
    return np.pad((found + seed).astype(np.float32), ((0, 0), (0, -inputs % 32)))


@pytest.mark.parametrize("form", slow_but(["host"], FORMS))
@pytest.mark.parametrize("inputs", [64, 2048, 75])
def test_rows_become_as_large_as_others(form: str, inputs: int) -> None:
    source, reference = rows(0, inputs), rows(1, inputs)
    source[1] = 0.0
    weight = Vector.of(np.linspace(0.5, 1.5, inputs, dtype=np.float32))
    found = np.full_like(source, np.nan)
    record = NORM.record(
        0, source=source, source_stride=source.strides[0], weight=weight, bias=0, inputs=inputs, target=found,
        target_stride=found.strides[0], is_centred=0, is_added=0, epsilon=1e-5, form=ACTIVATION_NAMES.index("float32"),
        scale=0.0, total_scale=1.0, reference=reference,
    )  # fmt: skip
    run_operation(code(form, "norm"), record, ROWS, len(source[0]))
    expected = as_large(source[:, :inputs], reference[:, :inputs], weight.values[:inputs], 1e-5)
    assert found[:, :inputs].tobytes() == expected.tobytes()
    assert (found[:, inputs:] == 0).all() and (found[1] == 0).all()


@pytest.mark.parametrize("form", slow_but(["host"], FORMS))
@pytest.mark.parametrize("inputs", [64, 2048, 75])
@pytest.mark.parametrize("cutoff", [1.6448536, 0.0, -0.5])
def test_gates_keep_what_stands_out_of_their_row(form: str, inputs: int, cutoff: float) -> None:
    gates = rows(2, inputs)
    expected = sparse(gates[:, :inputs], cutoff)
    wide = gates[:, :inputs].astype(np.float64)
    exact = np.maximum(wide - wide.mean(axis=1, keepdims=True) - cutoff * wide.std(axis=1, keepdims=True), 0)
    record = SPARSIFY.record(0, values=gates, stride=gates.strides[0], inputs=inputs, cutoff=cutoff)
    run_operation(code(form, "sparsify"), record, ROWS)
    assert gates[:, :inputs].tobytes() == expected.tobytes()
    assert (gates[:, inputs:] == 0).all()
    assert np.abs(expected - exact).max() < 1e-4 and (expected > 0).any()


def test_a_gate_that_is_not_a_number_stays_one() -> None:
    gates = rows(2, 64)
    gates[3, 5] = np.nan
    record = SPARSIFY.record(0, values=gates, stride=gates.strides[0], inputs=64, cutoff=1.0)
    run_operation(code("host", "sparsify"), record, ROWS)
    assert np.isnan(gates[3]).all() and np.isfinite(np.delete(gates, 3, 0)).all()
