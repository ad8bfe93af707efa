"""Quantised blocks, bit for bit as ggml computes them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from onward.checkpoints.gguf import read_gguf
from onward.checkpoints.types import TENSOR_TYPES
from tests.checkpoints.making import NUMBERS, SCALES, random_blocks, write_gguf


@pytest.mark.parametrize("name", sorted(SCALES))
def test_weights_are_those_of_ggml(name: str, tmp_path: Path) -> None:
    quants = pytest.importorskip("gguf.quants")
    stored = random_blocks(name, rows=6, inputs=768, seed=NUMBERS[name])
    tensor = read_gguf(write_gguf(tmp_path / "m.gguf", {}, {"w": stored})).tensors["w"]
    found = tensor.floats()
    kind = quants.GGMLQuantizationType(NUMBERS[name])
    if name == "Q8_K":  # the package does not read it: one float32 per block of 256 int8 (ggml-common.h)
        blocks = np.frombuffer(stored[2], np.uint8).reshape(-1, 292)
        expected = blocks[:, :4].copy().view("<f4") * blocks[:, 4:260].copy().view(np.int8).astype(np.float32)
    else:
        expected = quants.dequantize(np.frombuffer(stored[2], np.uint8).reshape(6, -1), kind)
    assert found.dtype == np.float32
    np.testing.assert_array_equal(found, expected.reshape(6, 768))


def test_every_type_that_is_read_is_compared() -> None:
    assert set(SCALES) == {kind.name for kind in TENSOR_TYPES.values() if kind.block_weights > 1}


@pytest.mark.parametrize(("name", "dtype"), [("F32", "<f4"), ("F16", "<f2")])
def test_floats_are_read_as_they_are(name: str, dtype: str, tmp_path: Path) -> None:
    numbers = np.random.default_rng(1).normal(size=(3, 5)).astype(dtype)
    path = write_gguf(tmp_path / "m.gguf", {}, {"w": (name, (3, 5), numbers.tobytes())})
    np.testing.assert_array_equal(read_gguf(path).tensors["w"].floats(), numbers.astype(np.float32))


def test_bfloat16_is_the_upper_half_of_float32(tmp_path: Path) -> None:
    numbers = np.array([[1.0, -2.5, 3.140625]], np.float32)
    upper = (numbers.view(np.uint32) >> 16).astype("<u2")
    path = write_gguf(tmp_path / "m.gguf", {}, {"w": ("BF16", (1, 3), upper.tobytes())})
    np.testing.assert_array_equal(read_gguf(path).tensors["w"].floats(), numbers)
