"""Quantised blocks, bit for bit as ggml computes them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from gguf import GGMLQuantizationType, quants
from numpy.typing import NDArray

from onward.checkpoints.gguf import read_gguf
from onward.checkpoints.tensor import Tensor
from onward.checkpoints.types import CODEBOOK_TYPES, TENSOR_TYPES
from tests.checkpoints.making import CODEBOOK_SCALES, NUMBERS, SCALES, random_blocks, write_gguf


@pytest.mark.parametrize("name", sorted(SCALES))
def test_weights_are_those_of_ggml(name: str, tmp_path: Path) -> None:
    stored = random_blocks(name, rows=6, inputs=768, seed=NUMBERS[name])
    tensor = read_gguf(write_gguf(tmp_path / "m.gguf", {}, {"w": stored})).tensors["w"]
    found = tensor.floats()
    if name == "Q8_K":  # the package does not read it: one float32 per block of 256 int8 (ggml-common.h)
        blocks = np.frombuffer(stored[2], np.uint8).reshape(-1, 292)
        expected = blocks[:, :4].copy().view("<f4") * blocks[:, 4:260].copy().view(np.int8).astype(np.float32)
    elif name == "Q1_0":  # nor this one: the sign of each weight (ggml-quants.c's dequantize_row_q1_0)
        blocks = np.frombuffer(stored[2], np.uint8).reshape(-1, 18)
        signs = np.unpackbits(blocks[:, 2:], axis=1, bitorder="little").astype(np.float32) * 2 - 1
        expected = blocks[:, :2].copy().view("<f2").astype(np.float32) * signs
    elif name == "Q2_0":  # nor this one: four weights per byte, the first one lowest (dequantize_row_q2_0)
        blocks = np.frombuffer(stored[2], np.uint8).reshape(-1, 18)
        codes = np.array(
            [[code >> shift & 3 for code in row for shift in (0, 2, 4, 6)] for row in blocks[:, 2:].tolist()]
        )
        expected = blocks[:, :2].copy().view("<f2").astype(np.float32) * (codes - 1).astype(np.float32)
    elif name == "NVFP4":  # nor do older versions of it read this one
        expected = nvfp4(np.frombuffer(stored[2], np.uint8).reshape(-1, 36))
    else:
        kind = GGMLQuantizationType(NUMBERS[name])
        expected = quants.dequantize(np.frombuffer(stored[2], np.uint8).reshape(6, -1), kind)
    assert found.dtype == np.float32
    np.testing.assert_array_equal(found, expected.reshape(6, 768))


def nvfp4(blocks: NDArray[np.uint8]) -> NDArray[np.float32]:
    """Weight by weight as ggml-quants.c's dequantize_row_nvfp4 and ggml-impl.h's ggml_ue4m3_to_fp32 compute them."""
    found = np.empty((len(blocks), 64), np.float32)
    for block, weights in zip(blocks.tolist(), found, strict=True):
        for part in range(4):
            exponent, mantissa = block[part] >> 3 & 15, block[part] & 7
            scale = mantissa * 2.0**-9 if exponent == 0 else (1 + mantissa / 8) * 2.0 ** (exponent - 7)
            scale = 0.0 if block[part] in (0, 0x7F) else scale / 2
            for index, octet in enumerate(block[4 + 8 * part : 12 + 8 * part]):
                weights[16 * part + index] = DOUBLED[octet & 15] * scale
                weights[16 * part + 8 + index] = DOUBLED[octet >> 4] * scale
    return found


DOUBLED = (0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12)


def test_every_scale_of_nvfp4_is_that_of_ggml() -> None:
    blocks = np.random.default_rng(5).integers(0, 256, (64, 36)).astype(np.uint8)
    blocks[:, :4] = np.arange(256).reshape(64, 4)
    tensor = Tensor("w", (64, 64), TENSOR_TYPES[NUMBERS["NVFP4"]], blocks.reshape(-1))
    np.testing.assert_array_equal(tensor.floats(), nvfp4(blocks))


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("factor", [np.inf, np.nan, 3e38])
def test_a_factor_of_a_tensor_may_be_any_number(factor: float) -> None:
    blocks = np.full((1, 36), 0x77, np.uint8)
    blocks[:, 4:8] = 0
    tensor = Tensor("w", (1, 64), TENSOR_TYPES[NUMBERS["NVFP4"]], blocks.reshape(-1), factors=np.array([factor], "<f4"))
    assert not np.isfinite(tensor.floats()).all()


@pytest.mark.parametrize("name", sorted(CODEBOOK_SCALES))
def test_weights_of_tables_are_read_a_few_rows_at_a_time(name: str, tmp_path: Path) -> None:
    stored = random_blocks(name, rows=6, inputs=768, seed=NUMBERS[name])
    tensor = read_gguf(write_gguf(tmp_path / "m.gguf", {}, {"w": stored})).tensors["w"]
    whole = quants.dequantize(np.frombuffer(stored[2], np.uint8).reshape(6, -1), GGMLQuantizationType(NUMBERS[name]))
    np.testing.assert_array_equal(tensor.floats(), whole)
    np.testing.assert_array_equal(tensor.selected(np.array([4, 1])).floats(0, 2), whole[[4, 1]])


def test_ternary_weights_are_those_of_their_formula(tmp_path: Path) -> None:
    values = np.random.default_rng(2).integers(-1, 2, (2, 256))
    packed = (values + 1).reshape(2, 2, 4, 32)  # 2 bits each: of 128 weights, 32 bytes have every 32nd (ggml-common.h)
    bits = (packed << np.array([0, 2, 4, 6]).reshape(1, 1, 4, 1)).sum(axis=2).astype(np.uint8).reshape(2, 64)
    scales = np.array([[0.5], [2.0]], "<f2").view(np.uint8)
    content = np.concatenate([bits, scales], axis=1).tobytes()
    path = write_gguf(tmp_path / "m.gguf", {}, {"w": ("TQ2_0", (2, 256), content)})
    np.testing.assert_array_equal(read_gguf(path).tensors["w"].floats(), values * [[0.5], [2.0]])


def test_every_type_that_is_read_is_compared() -> None:
    assert set(CODEBOOK_SCALES) == CODEBOOK_TYPES
    assert {*SCALES, *CODEBOOK_SCALES} == {kind.name for kind in TENSOR_TYPES.values() if kind.block_weights > 1}


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
