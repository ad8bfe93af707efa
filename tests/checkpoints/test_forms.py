"""Weights in the forms that kernels take: exact where the file's integers are kept, near elsewhere."""

from __future__ import annotations

from pathlib import Path

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
    assert error.max() < (0.0045 if form is Form.INT8_ROWS else 0.002)  # half of 1/127, and float16 scales


def test_tables_of_embeddings_need_no_correction(tmp_path: Path) -> None:
    assert form_of(stored("Q4_K", tmp_path), "fast", is_table=True) is Form.INT8_ROWS


def test_rows_are_reordered(tmp_path: Path) -> None:
    tensor, order = stored("Q4_K", tmp_path), np.arange(ROWS)[::-1].astype(np.int64)
    straight, turned = (repack(each, Form.UINT4_CORRECTED) for each in (tensor, tensor.selected(order)))
    for part in ("values", "scales", "zeros", "corrections"):
        np.testing.assert_array_equal(getattr(turned, part), getattr(straight, part)[::-1])


def test_a_row_of_zeros_stays_zeros(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "m.gguf", {}, {"w": floats(np.zeros((ROWS, INPUTS)))})
    packed = repack(read_gguf(path).tensors["w"], Form.INT8_ROWS)
    assert not computed(packed, Form.INT8_ROWS).any()
