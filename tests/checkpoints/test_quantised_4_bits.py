"""Folders with weights in NVFP4: what each number stands for, in every layout that is published, and a sentence for
what is not read."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from onward.checkpoints.folder import MAX_TENSORS, folder_paths, read_folder
from onward.checkpoints.quantised import quantised_of
from onward.checkpoints.tensor import Tensor
from onward.checkpoints.types import NVFP4
from onward.errors import CheckpointError
from onward.runtimes.native.types import stored_rows
from tests.checkpoints.float8 import VALUES as OCTETS
from tests.checkpoints.float8 import Stored, file_bytes, stored_in, write_plain
from tests.checkpoints.hugging_face import write_folder
from tests.checkpoints.nvfp4 import LAYOUTS, VALUES, convert, pack
from tests.checkpoints.test_quantised import logits
from tests.examples import slow_but
from tests.models.doors import refusal, shown

NAMES = [
    "llama, untied", "qwen3moe", "ernie4_5-moe", "phi3", "granitemoe, shared", "deepseek2, queries joined", "internlm2",
    "qwen35moe", "minimax-m2",
]  # fmt: skip
"""With queries, keys and values apart and in one, gates in one, experts one by one, rows in other orders."""


def random_matrix(rows: int, inputs: int) -> tuple[Tensor, np.ndarray[Any, Any]]:
    """A matrix with all codes and scales in any order, and its weights; rows with a NaN are NaN."""
    random = np.random.default_rng(rows)
    codes = random.integers(0, 16, (rows, inputs), np.uint8)
    octets = random.integers(0, 256, (rows, inputs // 16), np.uint8)
    factor = np.array([0.37], np.float32)
    weights = VALUES[codes] * OCTETS[octets].repeat(16, axis=1) * factor.astype(np.float64)
    weights[np.isnan(weights).any(axis=1)] = np.nan
    return Tensor("w", (rows, inputs), NVFP4, pack(codes), block_scales=octets, factors=factor), weights


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(("rows", "inputs"), [(300, 64), (40, 192)])
def test_a_weight_is_its_code_times_the_scales_of_its_group_and_of_its_matrix(rows: int, inputs: int) -> None:
    """Any rows, in any order."""
    matrix, expected = random_matrix(rows, inputs)
    assert np.isnan(expected).any() and not np.isnan(expected).all()
    order = np.random.default_rng(1).permutation(rows)[: rows // 2 + 1]
    picked = matrix.selected(order)
    for found, weights in (
        (matrix.floats(), expected),
        (matrix.floats(2, 5), expected[2:5]),
        (picked.floats(), expected[order]),
        (picked.floats(1, 4), expected[order[1:4]]),
        (picked.selected(np.array([2, 0])).floats(), expected[order[[2, 0]]]),
    ):
        np.testing.assert_allclose(found, weights, rtol=2.0**-22, atol=0)


def test_blocks_for_kernels_are_those_of_a_gguf_file_with_the_same_weights() -> None:
    """Weight by weight: four scales of a block, then of each 16 weights those at the same place in both halves."""
    matrix, expected = random_matrix(40, 128)
    blocks = np.zeros((40, 2, 36), np.uint8)
    assert matrix.block_scales is not None
    signs = np.where(matrix.block_scales & 0x80, 8, 0).repeat(16, axis=1)
    codes = np.stack((matrix.data & 15, matrix.data >> 4), axis=-1).reshape(40, 128) ^ signs
    for at in range(128):
        block, part, place = at // 64, at // 16 % 4, at % 16
        blocks[:, block, 4 + 8 * part + place % 8] |= (codes[:, at] << (place // 8 * 4)).astype(np.uint8)
        blocks[:, block, part] = matrix.block_scales[:, at // 16] & 0x7F
    of_file = Tensor("w", (40, 128), NVFP4, blocks.reshape(-1), factors=matrix.factors)
    are_numbers = ~np.isnan(expected).any(axis=1)
    assert np.array_equal(matrix.rows(0, 40), blocks.reshape(40, -1))
    found, same = (stored_rows(each, "NVFP4_X", 0, 40) for each in (matrix, of_file))
    assert np.array_equal(found[are_numbers], same[are_numbers])
    heads = np.ascontiguousarray(found.reshape(40, 2, 40)[..., :4]).view("<f4")
    assert np.array_equal(np.isnan(heads[..., 0]).all(axis=1), ~are_numbers)


@pytest.mark.parametrize("layout", slow_but(["compressed, mixed", "ModelOpt, older"], LAYOUTS))
def test_logits_are_those_of_the_same_weights_in_float32(layout: str, tmp_path: Path) -> None:
    check(tmp_path, "qwen3moe", layout)


@pytest.mark.parametrize("name", slow_but(["granitemoe, shared"], NAMES))
def test_matrices_of_every_architecture_have_their_own_scales(name: str, tmp_path: Path) -> None:
    check(tmp_path, name, "ModelOpt")


def check(folder: Path, name: str, layout: str) -> None:
    write_folder(folder / "m", name)
    plain = write_plain(folder / "plain", folder / "m", convert(folder / "m", LAYOUTS[layout], seed=7))
    found, expected = (np.frombuffer(logits(each, folder, "exact"), np.float32) for each in (folder / "m", plain))
    assert sum(tensor.type == NVFP4 for tensor in flat(read_folder(folder / "m").tensors)) > 3
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-4)


def flat(tensors: dict[str, Tensor]) -> list[Tensor]:
    return [part for tensor in tensors.values() for part in tensor.parts or (tensor,)]


WEIGHTS: dict[str, dict[str, Any]] = {
    "integers": {"type": "int"}, "eight bits": {"num_bits": 8}, "offsets": {"symmetric": False},
    "groups of 32": {"group_size": 32}, "groups without a matrix": {"strategy": "group"}, "dynamic": {"dynamic": True},
}  # fmt: skip


@pytest.mark.parametrize("case", WEIGHTS)
def test_groups_of_compressed_tensors_that_are_not_in_nvfp4_are_refused(case: str) -> None:
    config = json.loads(json.dumps(LAYOUTS["compressed"].config))
    config["config_groups"]["group_0"]["weights"] |= WEIGHTS[case]
    with pytest.raises(CheckpointError, match=r"'compressed-tensors' \(nvfp4-pack-quantized\)"):
        quantised_of({"quantization_config": config}, "config.json")


UP = "model.layers.0.mlp.up_proj.weight"
Changes = Callable[[dict[str, Stored]], Any]
BROKEN: dict[str, tuple[str, Changes, str]] = {
    "no scales": ("ModelOpt", lambda stored: stored.pop(f"{UP}_scale"), "is in NVFP4, but has no scales"),
    "no scale of the matrix": ("ModelOpt", lambda stored: stored.pop(f"{UP}_scale_2"), "NVFP4, but has no scales"),
    "scales alone": ("compressed", lambda stored: stored.pop(f"{UP}_packed"), "but not what they belong to"),
    "codes twice": (
        "compressed", lambda stored: stored.update({UP: stored[f"{UP}_packed"]}), "a tensor .*up_proj.weight' twice"
    ),
    "scales of the matrix twice": (
        "ModelOpt", lambda stored: stored.update({f"{UP}_global_scale": stored[f"{UP}_scale_2"]}), "scales of .* twice"
    ),
    "a scale of another matrix": (
        "ModelOpt", lambda stored: stored.update({"model.norm.weight_scale_2": ("F32", (), bytes(4))}), "belong to"
    ),
    "fewer scales": (
        "ModelOpt", lambda stored: stored.update({f"{UP}_scale": ("F8_E4M3", (96, 2), bytes(192))}),
        r"is F8_E4M3 \[96, 2\] instead of F8_E4M3 \[96, 4\]",
    ),
    "scales of floats": (
        "ModelOpt", lambda stored: stored.update({f"{UP}_scale": ("F32", (96, 4), bytes(4 * 96 * 4))}),
        r"is F32 \[96, 4\] instead of",
    ),
    "scales of matrices": (
        "ModelOpt", lambda stored: stored.update({f"{UP}_scale_2": ("F32", (2,), bytes(8))}), r"is F32 \[2\] instead of"
    ),
    "few inputs": (
        "ModelOpt", lambda stored: stored.update(
            {UP: ("U8", (96, 8), bytes(96 * 8)), f"{UP}_scale": ("F8_E4M3", (96, 1), bytes(96))}
        ),
        "has 16 inputs, but only multiples of 64",
    ),
    "three axes": (
        "ModelOpt", lambda stored: stored.update({UP: ("U8", (1, 96, 32), stored[UP][2])}), "but only matrices are read"
    ),
    "bytes elsewhere": (
        "ModelOpt", lambda stored: stored.update({"model.layers.0.mlp.up_proj.codes": ("U8", (2,), bytes(2))}),
        "has the type 'U8'",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", BROKEN)
def test_matrices_and_scales_that_do_not_fit_are_refused_in_a_sentence(case: str, tmp_path: Path) -> None:
    layout, change, words = BROKEN[case]
    write_folder(tmp_path / "m", "llama, untied")
    convert(tmp_path / "m", LAYOUTS[layout])
    stored = stored_in(path := tmp_path / "m/model.safetensors")
    change(stored)
    path.write_bytes(file_bytes(stored))
    with pytest.raises(CheckpointError, match=words) as refused:
        read_folder(tmp_path / "m")
    assert str(tmp_path / "m") in str(refused.value)


def test_codes_without_a_statement_are_refused(tmp_path: Path) -> None:
    write_folder(tmp_path / "m", "llama, untied")
    convert(tmp_path / "m", LAYOUTS["ModelOpt, older"])
    (tmp_path / "m/hf_quant_config.json").unlink()
    assert "in NVFP4, but its config.json does not state how weights are quantised" in refusal(tmp_path / "m")


@pytest.mark.parametrize(("layout", "number"), [("ModelOpt", np.inf), ("ModelOpt", np.nan), ("compressed", 0.0)])
@pytest.mark.parametrize("name", ["llama, untied", "qwen3moe"])
@pytest.mark.filterwarnings("error")
def test_a_scale_that_is_no_number_is_refused_at_the_start(
    name: str, layout: str, number: float, tmp_path: Path
) -> None:
    write_folder(tmp_path / "m", name)
    convert(tmp_path / "m", LAYOUTS[layout])
    stored = stored_in(path := tmp_path / "m/model.safetensors")
    last = [each for each in stored if each.endswith(LAYOUTS[layout].factor)][-1]
    stored[last] = "F32", stored[last][1], np.array(number, "<f4").tobytes()
    path.write_bytes(file_bytes(stored))
    with pytest.raises(CheckpointError, match="are not all numbers, or larger than any model's"):
        logits(tmp_path / "m", tmp_path, "exact")


def test_a_model_whose_matrices_have_their_inputs_first_is_refused(tmp_path: Path) -> None:
    write_folder(tmp_path / "m", "gpt2")
    convert(tmp_path / "m", LAYOUTS["ModelOpt"])
    assert "is quantised, with its inputs first: use a GGUF file" in refusal(tmp_path / "m")


def test_show_counts_the_memory_of_both_types(tmp_path: Path) -> None:
    write_folder(tmp_path / "m", "llama, untied")
    convert(tmp_path / "m", LAYOUTS["ModelOpt, mixed"])
    expected = sum(
        int(np.prod(tensor.shape)) * (40 if tensor.type == NVFP4 else 68) // 64
        for tensor in read_folder(tmp_path / "m").tensors.values()
    )
    assert shown(tmp_path / "m")["memory_bytes"] == expected


def test_an_output_layer_that_differs_from_the_embeddings_in_its_scales_is_another_one(tmp_path: Path) -> None:
    write_folder(tmp_path / "m", "llama, untied")
    convert(tmp_path / "m", LAYOUTS["ModelOpt"])
    stored = stored_in(path := tmp_path / "m/model.safetensors")
    rows, inputs = stored["lm_head.weight"][1]
    names = "model.embed_tokens.weight", "lm_head.weight"

    def notes(octet: int, factor: float) -> list[str]:
        """With an output layer whose scales are others than 0x38 and 1."""
        for name, own in zip(names, ((0x38, 1.0), (octet, factor)), strict=True):
            stored[name] = "U8", (rows, inputs // 2), bytes(rows * inputs // 2)
            stored[f"{name}_scale"] = "F8_E4M3", (rows, inputs // 16), bytes([own[0]]) * (rows * inputs // 16)
            stored[f"{name}_scale_2"] = "F32", (), np.array(own[1], "<f4").tobytes()
        path.write_bytes(file_bytes(stored))
        return [note for note in shown(tmp_path / "m")["notes"] if "another output layer, which is used" in note]

    config = json.loads((tmp_path / "m/config.json").read_text(encoding="utf-8"))
    (tmp_path / "m/config.json").write_text(json.dumps(config | {"tie_word_embeddings": True}), encoding="utf-8")
    assert notes(0x39, 1.0) and notes(0x38, 2.0) and not notes(0x38, 1.0)


@pytest.mark.slow
def test_a_list_of_the_tensors_of_the_largest_mixture_in_nvfp4_is_read(tmp_path: Path) -> None:
    """Qwen 3.5 397B-A17B: three matrices of 512 experts in 60 layers, each with two scales and one of activations."""
    kinds, file = ("weight", "weight_scale", "weight_scale_2", "input_scale"), "model-00001-of-00001.safetensors"
    names = [
        f"model.language_model.layers.{layer}.mlp.experts.{expert}.{part}_proj.{kind}"
        for layer in range(60) for expert in range(512) for part in ("gate", "up", "down") for kind in kinds
    ]  # fmt: skip
    listed = {"weight_map": dict.fromkeys(names, file)}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(listed, indent=2), encoding="utf-8")
    assert [path.name for path in folder_paths(tmp_path)] == [file]
    assert len(names) < MAX_TENSORS - 5000
