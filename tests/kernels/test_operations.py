"""Rows that are looked up, and rows that are multiplied before they are written in another form."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from onward.kernels.activations import ACTIVATION_NAMES, ACTIVATIONS, ActivationName
from onward.kernels.memory import Vector, address
from onward.kernels.operations import Writers, emit_cap, emit_embed, emit_quantise
from onward.kernels.records import CAP, EMBED, QUANTISE
from onward.kernels.targets import host
from tests.examples import slow_but
from tests.kernels.emulated import executable_forms
from tests.kernels.harness import operation, run_operation

ROWS, INPUTS = 4, 96


def test_tokens_beyond_a_table_have_its_first_row() -> None:
    table = np.random.default_rng(1).normal(size=(5, INPUTS)).astype(np.float32)
    tokens, found = np.array([3, 5, 4, 700_000]), np.zeros((ROWS, INPUTS), np.float32)
    record = EMBED.record(
        0, table=table, row_bytes=table.strides[0], inputs=INPUTS, target=found, target_stride=found.strides[0],
        scale=2.0, of_positions=0, is_added=0, rows=5,
    )  # fmt: skip
    code = operation(lambda module: emit_embed(module, host().isa, "F32"), "host")
    run_operation(code, record, ROWS, tokens=address(tokens))
    assert (found == 2 * table[[3, 0, 4, 0]]).all()


@pytest.mark.parametrize("form", slow_but(["host"], ["host", *sorted(executable_forms())]))
@pytest.mark.parametrize("is_hard", [False, True])
def test_caps_keep_numbers_within_them_and_a_nan(form: str, is_hard: bool) -> None:
    rows = np.random.default_rng(4).normal(size=(ROWS, INPUTS)).astype(np.float32) * 3
    rows[0, :5] = np.nan, np.inf, -np.inf, 0.75, -0.75
    found, last = rows.copy(), INPUTS - 16
    record = CAP.record(
        0, values=found, stride=found.strides[0], num_vectors=last // 16, pieces=3, is_hard=is_hard, cap=0.75
    )
    run_operation(operation(emit_cap, form), record, ROWS)
    expected = np.clip(rows, -0.75, 0.75) if is_hard else 0.75 * np.tanh(rows.astype(np.float64) / 0.75)
    np.testing.assert_allclose(found[:, :last], expected[:, :last], atol=0 if is_hard else 1e-6)
    assert (found[:, last:] == rows[:, last:]).all()


@pytest.mark.parametrize("form", slow_but(["host"], ["host", *sorted(executable_forms())]))
@pytest.mark.parametrize("name", ACTIVATION_NAMES)
def test_a_weight_multiplies_rows_before_they_are_written(form: str, name: ActivationName) -> None:
    random = np.random.default_rng(2)
    rows = random.normal(size=(ROWS, INPUTS)).astype(np.float32)
    weight = Vector.of(random.normal(size=INPUTS).astype(np.float32))
    code = operation(lambda module: emit_quantise(module, Writers(module, ACTIVATION_NAMES)), form)

    def written(source: NDArray[np.float32], own: Vector | None) -> bytes:
        found = np.zeros((ROWS, ACTIVATIONS[name].row_bytes(INPUTS)), np.uint8)
        record = QUANTISE.record(
            0, source=source, source_stride=source.strides[0], inputs=INPUTS, target=found,
            target_stride=found.strides[0], form=ACTIVATION_NAMES.index(name), weight=own,
        )  # fmt: skip
        run_operation(code, record, ROWS, INPUTS)
        return found.tobytes()

    assert written(rows, weight) == written(rows * weight.values, None) != written(rows, None)
