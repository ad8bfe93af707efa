"""Types without kernels of their own, as 8-bit integers: exactly the weights that ggml computes."""

from __future__ import annotations

import numpy as np
import pytest

from onward.checkpoints.blocks import codebook_floats, unpack
from onward.checkpoints.expansion import EXPANDED_TYPES, expanded
from onward.checkpoints.tensor import Tensor
from onward.checkpoints.types import TENSOR_TYPES
from onward.runtimes.native.types import stored_rows

from .making import NUMBERS, random_blocks


@pytest.mark.parametrize("name", sorted({*EXPANDED_TYPES} - {"NVFP4"}))
def test_an_expanded_weight_is_the_weight(name: str) -> None:
    """Compared bit for bit with llama.cpp's own package, and with the formula for Q8_K, which that package does not
    read."""
    kind, inputs = TENSOR_TYPES[NUMBERS[name]], 1024
    rows = np.frombuffer(random_blocks(name, 40, inputs, seed=3)[2], np.uint8).reshape(40, -1)
    blocks = expanded(kind, rows, inputs).reshape(-1, 40)
    factors = np.ascontiguousarray(blocks[:, :4]).view("<f4")
    scales = np.ascontiguousarray(blocks[:, 4:8]).view("<i2").astype(np.int64)
    integers = np.ascontiguousarray(blocks[:, 8:]).view(np.int8).astype(np.int64)
    products = integers * np.repeat(scales, 16, axis=1)
    assert np.abs(products).max() <= 4096, "products with 16-bit activations would not fit into 32 bits"
    with np.errstate(all="ignore"):
        wanted = unpack(kind, rows, inputs).floats() if name == "Q8_K" else codebook_floats(kind, rows, inputs)
    known = np.isfinite(factors[:, 0])
    assert known.mean() > 0.9
    weights = (products[known] * factors[known].astype(np.float64)).astype(np.float32)
    np.testing.assert_array_equal(weights, wanted.reshape(-1, 32)[known])


def test_blocks_of_nvfp4_get_the_factor_of_their_tensor() -> None:
    kind, inputs = TENSOR_TYPES[NUMBERS["NVFP4"]], 128
    rows = np.frombuffer(random_blocks("NVFP4", 3, inputs)[2], np.uint8).copy().reshape(3, -1)
    rows[0, :4] = 0x7F, 0x80, 0xFF, 0x8F
    blocks = expanded(kind, rows, inputs, 0.3).reshape(-1, 40)
    assert (np.ascontiguousarray(blocks[:, :4]).view("<f4") == np.float32(0.3)).all()
    assert blocks[0, 4:8].tolist() == [0, 0, 0x7F, 0x0F], "the bits of a NaN are 0, and a sign is left out, as in ggml"
    np.testing.assert_array_equal(blocks[1:, 4:], rows.reshape(-1, 36)[1:])
    np.testing.assert_array_equal(blocks[:, 8:], rows.reshape(-1, 36)[:, 4:])


def test_heads_in_one_matrix_keep_their_own_factors_of_nvfp4() -> None:
    """Values of latent attention, whose heads a file has on an axis of their own."""
    kind, factors = TENSOR_TYPES[NUMBERS["NVFP4"]], np.array([0.5, 2.0, 3.0], np.float32)
    data = np.frombuffer(random_blocks("NVFP4", 6, 64)[2], np.uint8)
    whole = Tensor("w", (6, 64), kind, data, factors=factors)
    blocks = stored_rows(whole, "NVFP4_X", 1, 6).reshape(-1, 40)
    assert np.ascontiguousarray(blocks[:, :4]).view("<f4")[:, 0].tolist() == [0.5, 2.0, 2.0, 3.0, 3.0]
    plain = Tensor("w", (6, 64), kind, data).floats()
    np.testing.assert_array_equal(whole.floats(1, 6), plain[1:] * factors[[0, 1, 1, 2, 2], None])


def test_a_block_whose_factor_is_nan_stays_nan() -> None:
    kind = TENSOR_TYPES[NUMBERS["IQ2_XS"]]
    rows = np.frombuffer(random_blocks("IQ2_XS", 1, 256)[2], np.uint8).copy().reshape(1, -1)
    rows[0, :2] = np.frombuffer(np.float16("nan").tobytes(), np.uint8)
    assert np.isnan(np.ascontiguousarray(expanded(kind, rows, 256)[0, :4]).view("<f4"))[0]
