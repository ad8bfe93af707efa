"""Weights in the forms that kernels take: exact where the file's integers are kept, near elsewhere."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import numpy as np
import pytest
from numpy.typing import NDArray

from onward.checkpoints.gguf import read_gguf
from onward.checkpoints.tensor import Tensor
from onward.runtimes.openvino.graphs.forms import Form, form_of
from onward.runtimes.openvino.graphs.repack import Packed, repack
from tests.checkpoints.making import SCALES, floats, random_blocks, write_gguf

ROWS, INPUTS = 12, 512


def stored(name: str, folder: Path) -> Tensor:
    tensor = (
        random_blocks(name, ROWS, INPUTS)
        if name in SCALES
        else floats(np.random.default_rng(0).normal(size=(ROWS, INPUTS)))
    )
    return read_gguf(write_gguf(folder / "m.gguf", {}, {"w": tensor})).tensors["w"]


def computed(packed: Packed, form: Form) -> NDArray[np.float64]:
    """The weights that a graph computes from the arrays, in float64."""
    values = packed.values
    if packed.scales is None:
        return values.astype(np.float64)
    if form in (Form.UINT4_GROUPS, Form.UINT4_CORRECTED):
        assert values.dtype == np.uint8
        values = np.stack([values & 15, values >> 4], axis=-1).reshape(ROWS, INPUTS)  # type: ignore[operator]
    grouped = values.astype(np.float64).reshape(ROWS, packed.scales.shape[1], -1)
    if form is Form.UINT4_GROUPS:
        grouped -= 8
    if packed.zeros is not None:
        grouped -= packed.zeros.astype(np.float64)[..., None]
    grouped *= packed.scales.astype(np.float64)[..., None]
    if packed.corrections is not None:  # the product with a sum of inputs adds this to every weight of a group
        grouped += packed.corrections.astype(np.float64)[..., None]
    return grouped.reshape(ROWS, INPUTS)


def half(folder: Path) -> Tensor:
    content = np.random.default_rng(0).normal(size=(ROWS, INPUTS)).astype("<f2").tobytes()
    return read_gguf(write_gguf(folder / "h.gguf", {}, {"w": ("F16", (ROWS, INPUTS), content)})).tensors["w"]


def test_half_precision_stays_half_precision(tmp_path: Path) -> None:
    tensor = half(tmp_path)
    for precision, weights in (("exact", "auto"), ("fast", "exact")):
        form = form_of(tensor, precision, weights, is_table=False)  # type: ignore[arg-type]
        packed = repack(tensor, form)
        assert form is Form.FLOAT16 and packed.values.dtype == np.float16
        np.testing.assert_array_equal(packed.values.astype(np.float32), tensor.floats())


@pytest.mark.parametrize("name", [*sorted(SCALES), "F32"])
@pytest.mark.parametrize("is_table", [False, True])
def test_weights_as_in_the_file_differ_by_rounded_scales_only(name: str, is_table: bool, tmp_path: Path) -> None:
    tensor = stored(name, tmp_path)
    form, weights = form_of(tensor, "fast", "exact", is_table=is_table), tensor.floats()
    assert form not in (Form.INT8_ROWS, Form.INT8_ROUNDED)
    error = np.abs(computed(repack(tensor, form), form) - weights)
    assert (error <= np.abs(weights).max(axis=1, keepdims=True) * 2**-10).all()


@pytest.mark.parametrize("name", [*sorted(SCALES), "F32"])
@pytest.mark.parametrize(("weights", "greatest"), [("int8", 0.0045), ("int4", 0.068)])
def test_chosen_integers_are_near(name: str, weights: Literal["int8", "int4"], greatest: float, tmp_path: Path) -> None:
    tensor = stored(name, tmp_path)
    form = form_of(tensor, "fast", weights, is_table=False)
    exact = tensor.floats()
    error = np.abs(computed(repack(tensor, form), form) - exact).max(axis=1) / np.abs(exact).max(axis=1)
    assert error.max() < greatest
    is_small = repack(tensor, form).values.nbytes == ROWS * INPUTS // 2
    assert is_small is (weights == "int4")


def test_int4_needs_whole_groups(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "m.gguf", {}, {"w": floats(np.ones((ROWS, 40)))})
    assert form_of(read_gguf(path).tensors["w"], "fast", "int4", is_table=False) is Form.INT8_ROWS


@pytest.mark.parametrize("name", [*sorted(SCALES), "F32"])
def test_exact_never_changes_a_weight(name: str, tmp_path: Path) -> None:
    tensor = stored(name, tmp_path)
    form = form_of(tensor, "exact", is_table=False)
    np.testing.assert_array_equal(computed(repack(tensor, form), form), tensor.floats())


@pytest.mark.parametrize("name", ["Q4_0", "Q5_0", "Q8_0"])
@pytest.mark.parametrize("is_table", [False, True])
def test_integers_with_half_precision_scales_are_kept_as_they_are(name: str, is_table: bool, tmp_path: Path) -> None:
    tensor = stored(name, tmp_path)
    form = form_of(tensor, "fast", is_table=is_table)
    np.testing.assert_array_equal(computed(repack(tensor, form), form), tensor.floats())


@pytest.mark.parametrize("name", [*sorted(set(SCALES) - {"Q4_0", "Q5_0", "Q8_0"}), "F32"])
def test_other_weights_change_little(name: str, tmp_path: Path) -> None:
    tensor = stored(name, tmp_path)
    form, weights = form_of(tensor, "fast", is_table=False), tensor.floats()
    error = np.abs(computed(repack(tensor, form), form) - weights).max(axis=1) / np.abs(weights).max(axis=1)
    assert error.max() < (0.0045 if form is Form.INT8_ROUNDED else 0.002)  # half of 1/127, and float16 scales


def test_tables_of_embeddings_need_no_correction(tmp_path: Path) -> None:
    assert form_of(stored("Q4_K", tmp_path), "fast", is_table=True) is Form.INT8_ROUNDED


def test_rows_are_reordered(tmp_path: Path) -> None:
    tensor, order = stored("Q4_K", tmp_path), np.arange(ROWS)[::-1].astype(np.int64)
    straight, turned = (repack(each, Form.UINT4_CORRECTED) for each in (tensor, tensor.selected(order)))
    for part in ("values", "scales", "zeros", "corrections"):
        np.testing.assert_array_equal(getattr(turned, part), getattr(straight, part)[::-1])


def test_a_row_of_zeros_stays_zeros(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "m.gguf", {}, {"w": floats(np.zeros((ROWS, INPUTS)))})
    packed = repack(read_gguf(path).tensors["w"], Form.INT8_ROWS)
    assert not computed(packed, Form.INT8_ROWS).any()
