"""Folders with weights in FP8: what each number stands for, in every layout that is published, and a sentence for what
is not read."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from onward.checkpoints import blocks
from onward.checkpoints import tensor as tensors_module
from onward.checkpoints.folder import read_folder
from onward.checkpoints.quantised import quantised_of
from onward.checkpoints.read import read_checkpoint
from onward.checkpoints.tensor import Scales, Tensor
from onward.checkpoints.types import FLOAT8, FLOAT32
from onward.engine.model import Row
from onward.errors import CheckpointError
from onward.model_files.safetensors import SafetensorsFiles
from onward.runtimes.base import RuntimeOptions
from onward.runtimes.native import panel_cache
from onward.runtimes.native.types import stored_rows
from onward.runtimes.table import load_model
from onward.values import Precision, WeightForm
from tests.checkpoints import nvfp4
from tests.checkpoints.float8 import (
    LAYOUTS,
    VALUES,
    Stored,
    codes_of,
    convert,
    file_bytes,
    state,
    stored_in,
    write_plain,
)
from tests.checkpoints.hugging_face import safetensors_bytes, write_folder
from tests.checkpoints.test_architectures import check_logits
from tests.checkpoints.test_config import OTHER_TYPES
from tests.examples import slow_but
from tests.models.doors import command, refusal, scores, shown

NAMES = [
    "llama, untied", "qwen3", "qwen3moe", "mistral3", "deepseek2, groups of sigmoids, joined", "glm4moe", "phi3",
    "glm4", "llama, experts", "olmo2", "internlm2", "qwen35", "qwen35moe", "qwen3next", "gemma2", "minimax-m2",
]  # fmt: skip
"""With queries, keys and values apart and in one, gates and experts one by one and in one, rows in other orders."""


def logits(folder: Path, cache: Path, precision: Precision, weights: WeightForm = "auto") -> bytes:
    options = RuntimeOptions(threads=1, kv_memory=4_000_000, cache_dir=cache, precision=precision, weights=weights)
    model = load_model(SafetensorsFiles(folder), options, lambda line: None).model
    try:
        tokens = [(7 * index + index * index) % model.vocab_size for index in range(40)]
        found = model.evaluate([Row(0, tokens, 0, range(model.shape.blocks_for(40)), 40)])
        assert found.std() > 0.01
        return found.tobytes()
    finally:
        model.close()


def random_matrix(rows: int, inputs: int, block: tuple[int, int]) -> tuple[Tensor, np.ndarray[Any, Any]]:
    """A matrix of all codes in any order, and its weights."""
    random = np.random.default_rng(rows)
    codes = random.integers(0, 256, (rows, inputs), np.uint8)
    counts = -(-rows // block[0]), -(-inputs // block[1])
    scales = random.normal(size=counts).astype("<f4")
    spread = scales.astype(np.float64).repeat(block[0], 0)[:rows].repeat(block[1], 1)[:, :inputs]
    stored = Tensor("w_scale_inv", counts, FLOAT32, scales.reshape(-1).view(np.uint8))
    found = Tensor("w", (rows, inputs), FLOAT8, codes, scales=Scales(stored, *block))
    return found, (VALUES[codes] * spread).astype(np.float32)


@pytest.mark.parametrize(
    ("rows", "inputs", "block"),
    [(300, 320, (128, 128)), (256, 256, (128, 128)), (40, 72, (1, 72)), (17, 33, (17, 33)), (5, 64, (3, 32))],
)
def test_a_weight_is_its_code_times_the_scale_of_its_block(rows: int, inputs: int, block: tuple[int, int]) -> None:
    """Any rows, in any order; signs of zeros too. Blocks at the end may be cut off."""
    matrix, expected = random_matrix(rows, inputs, block)
    order = np.random.default_rng(1).permutation(rows)[: rows // 2 + 1]
    picked = matrix.selected(order)
    for found, weights in (
        (matrix.floats(), expected),
        (matrix.floats(2, 5), expected[2:5]),
        (picked.floats(), expected[order]),
        (picked.selected(np.array([2, 0])).floats(), expected[order[[2, 0]]]),
    ):
        numbers = ~np.isnan(weights)
        assert np.array_equal(np.isnan(found), ~numbers)
        assert found[numbers].tobytes() == weights[numbers].tobytes()


def test_only_the_scales_of_the_rows_that_are_read_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """Panels are made a few rows at a time: of a large matrix, each turn would read all scales again."""
    matrix, expected = random_matrix(300, 64, (16, 32))
    real, read = Tensor.floats, list[tuple[int, int | None]]()

    def counted(tensor: Tensor, start: int = 0, stop: int | None = None) -> Any:
        read.extend([(start, stop)] if tensor.name == "w_scale_inv" else [])
        return real(tensor, start, stop)

    monkeypatch.setattr(Tensor, "floats", counted)
    np.testing.assert_array_equal(matrix.floats(40, 72), expected[40:72])
    matrix.selected(np.array([60, 33, 47])).rows(0, 3)
    assert read == [(2, 5), (2, 4)]


def test_a_block_for_kernels_has_256_times_its_scale_and_is_nan_with_one(tmp_path: Path) -> None:
    matrix, _ = random_matrix(9, 70, (4, 32))
    blocks = matrix.rows(0, 9).reshape(9, 3, 36)
    codes = np.pad(matrix.data, ((0, 0), (0, 26))).reshape(9, 3, 32)
    assert np.array_equal(blocks[..., 4:], codes)
    factors = np.ascontiguousarray(blocks[..., :4]).view("<f4")[..., 0]
    assert matrix.scales is not None
    scales = matrix.scales.stored.floats()[np.arange(9) // 4]
    has_nan = np.isnan(VALUES[codes]).any(axis=2)
    assert has_nan.any() and not has_nan.all()
    assert np.array_equal(factors, np.where(has_nan, np.nan, scales * 256), equal_nan=True)


@pytest.mark.parametrize("form", ["F8_E4M3", "Q8_0", "Q4_0"])
@pytest.mark.filterwarnings("error")
def test_a_block_with_a_nan_has_a_scale_that_is_nan_in_every_form(form: str) -> None:
    codes = np.full((1, 96), 0x38, np.uint8)
    codes[0, 40] = 0xFF
    scale = Tensor("w_scale", (1, 1), FLOAT32, np.ones(1, "<f4").view(np.uint8))
    matrix = Tensor("w", (1, 96), FLOAT8, codes, scales=Scales(scale, 1, 96))
    blocks = stored_rows(matrix, form, 0, 1).reshape(3, -1)
    kind = "<f4" if form == "F8_E4M3" else "<f2"
    numbers = np.ascontiguousarray(blocks[:, : np.dtype(kind).itemsize]).view(kind)[:, 0]
    assert np.isnan(numbers).tolist() == [False, True, False]


@pytest.mark.parametrize("name", slow_but(["mistral3", "deepseek2, groups of sigmoids, joined"], NAMES))
def test_log_probabilities_are_those_of_the_reference(name: str, tmp_path: Path) -> None:
    folder = tmp_path / "m"
    metadata, tensors = write_folder(folder, name, dtype="F8")
    layout = {"mistral3": "Mistral", "minimax-m2": "MiniMax"}.get(name, "DeepSeek")
    convert(folder, LAYOUTS[layout], is_lossless=True)
    assert any(kind == "F8_E4M3" for kind, _, _ in stored_in(folder / "model.safetensors").values())
    check_logits(SafetensorsFiles(folder), metadata, tensors, cache=tmp_path)


@pytest.mark.parametrize("layout", slow_but(["Qwen, 2507", "compressed, rows"], LAYOUTS))
def test_logits_have_the_bits_of_the_same_weights_in_float32(layout: str, tmp_path: Path) -> None:
    """However they are held."""
    write_folder(tmp_path / "m", "qwen3moe")
    plain = write_plain(tmp_path / "plain", tmp_path / "m", convert(tmp_path / "m", LAYOUTS[layout], seed=5))
    forms: list[tuple[Precision, WeightForm]] = [
        ("exact", "auto"), ("fast", "auto"), ("fast", "exact"), ("fast", "int4"),
    ]  # fmt: skip
    for precision, weights in forms:
        found = logits(tmp_path / "m", tmp_path, precision, weights)
        assert found == logits(plain, tmp_path, precision, weights), (precision, weights)


def test_the_order_of_rows_of_gates_is_in_memory_once_for_all_experts(tmp_path: Path) -> None:
    """Of 512 experts in 60 layers, each with its own, it would take half a gigabyte."""
    write_folder(tmp_path / "m", "qwen35moe")
    convert(tmp_path / "m", LAYOUTS["DeepSeek"])
    tensors = read_checkpoint(tmp_path / "m").tensors
    for part in ("gate", "up"):
        orders = [each.order for each in tensors[f"blk.0.ffn_{part}_exps.weight"].parts]
        assert len(orders) > 1 and orders[0] is not None and len(set(map(id, orders))) == 1


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_matrices_of_every_architecture_have_their_own_scales(name: str, tmp_path: Path) -> None:
    write_folder(tmp_path / "m", name)
    plain = write_plain(tmp_path / "plain", tmp_path / "m", convert(tmp_path / "m", LAYOUTS["DeepSeek"], seed=7))
    assert logits(tmp_path / "m", tmp_path, "exact") == logits(plain, tmp_path, "exact")


def test_the_text_model_of_one_that_reads_images_has_its_scales(tmp_path: Path) -> None:
    """As Ministral 3 is published; what reads images is not converted, or is left out with its scales."""
    folder = tmp_path / "m"
    write_folder(folder, "mistral3")
    plain = write_plain(tmp_path / "plain", folder, convert(folder, LAYOUTS["Mistral"]))
    stored = {
        name.replace("model.", "model.language_model.", 1): each
        for name, each in stored_in(folder / "model.safetensors").items()
    }
    stored["model.vision_tower.linear.weight"] = "F8_E4M3", (3, 4), bytes(12)
    stored["model.vision_tower.linear.weight_scale_inv"] = "BF16", (), bytes(2)
    (folder / "model.safetensors").write_bytes(file_bytes(stored))
    own = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    quantised = own.pop("quantization_config")
    whole = {"model_type": "mistral3", "text_config": own, "vision_config": {}, "quantization_config": quantised}
    whole["tie_word_embeddings"] = own.pop("tie_word_embeddings")
    (folder / "config.json").write_text(json.dumps(whole), encoding="utf-8")
    assert logits(folder, tmp_path, "exact") == logits(plain, tmp_path, "exact")


def test_an_adapter_changes_a_model_in_fp8_as_it_changes_the_same_weights_in_float32(tmp_path: Path) -> None:
    write_folder(tmp_path / "m", "llama, untied")
    plain = write_plain(tmp_path / "plain", tmp_path / "m", convert(tmp_path / "m", LAYOUTS["compressed, rows"]))
    (adapter := tmp_path / "adapter").mkdir()
    stated = {"peft_type": "LORA", "r": 2, "lora_alpha": 4, "target_modules": ["up_proj"], "bias": "none"}
    (adapter / "adapter_config.json").write_text(json.dumps(stated), encoding="utf-8")
    random, prefix = np.random.default_rng(3), f"base_model.model.{UP.removesuffix('weight')}"
    low, high = (random.normal(size=shape).astype(np.float32) for shape in ((2, 64), (96, 2)))
    changes = {f"{prefix}lora_A.weight": low, f"{prefix}lora_B.weight": high}
    (adapter / "adapter_model.safetensors").write_bytes(safetensors_bytes(changes))
    prompt = [token * 7 % 25 for token in range(30)]
    found = scores(f"{tmp_path / 'm'}+{adapter}", prompt, tmp_path)
    assert found == scores(f"{plain}+{adapter}", prompt, tmp_path) != scores(plain, prompt, tmp_path)


def test_panels_are_made_a_few_rows_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No matrix is expanded as a whole."""
    write_folder(tmp_path / "m", "llama, untied")
    convert(tmp_path / "m", LAYOUTS["DeepSeek"])
    monkeypatch.setattr(panel_cache, "_CHUNK_BYTES", 1)
    made: list[int] = []
    real = blocks.float8_floats

    def counted(codes: Any, scales: Any) -> Any:
        made.append(len(codes))
        return real(codes, scales)

    monkeypatch.setattr(tensors_module, "float8_floats", counted)
    logits(tmp_path / "m", tmp_path, "fast")
    assert set(made) == {16}


def test_show_says_that_a_folder_is_in_fp8_and_what_memory_it_takes(tmp_path: Path) -> None:
    write_folder(tmp_path / "m", "llama, untied")
    weights = convert(tmp_path / "m", LAYOUTS["DeepSeek"])
    found = shown(tmp_path / "m")
    count = sum(array.size for array in weights.values())
    assert found["memory_bytes"] == count * 34 // 32
    assert "weights in FP8: --precision fast holds them as 8-bit integers" in found["notes"][0]


# what is not read

BLOCKS: tuple[Any, ...] = ([128], [128, 48], [0, 32], [16, -32], [1.5, 32], "x", {}, [[16, 32]], "16x48", True)
NOT_READ: dict[str, tuple[dict[str, Any], str]] = {
    "awq": ({"quant_method": "awq"}, "quantised by 'awq', which Onward does not read. Use the model as a GGUF file"),
    "bitsandbytes": ({"quant_method": "bitsandbytes", "load_in_4bit": True}, "'bitsandbytes'"),
    "fbgemm": ({"quant_method": "fbgemm_fp8"}, "'fbgemm_fp8'"),
    "no method": ({"bits": 4}, "'unknown'"),
    "a list": ({"quant_method": ["fp8"]}, r"\['fp8'\]"),
    "another format": ({"quant_method": "fp8", "fmt": "e5m2"}, r"'fp8' \(e5m2\)"),
    "experts in 4 bits": ({"quant_method": "fp8", "moe_quant_algo": "NVFP4"}, r"'fp8' \(NVFP4\)"),
    "scaled activations": ({"quant_method": "modelopt", "quant_algo": "NVFP4_AWQ"}, r"'modelopt' \(NVFP4_AWQ\)"),
    "mixed without layers": (
        {"quant_method": "modelopt", "quant_algo": "MIXED_PRECISION"}, r"'modelopt' \(MIXED_PRECISION\)"
    ),
    "mixed with another": (
        {
            "quant_method": "modelopt", "quant_algo": "MIXED_PRECISION",
            "quantized_layers": {"a": {"quant_algo": "FP8"}, "b": {"quant_algo": "W4A8_AWQ", "group_size": 128}},
        },
        r"'modelopt' \(W4A8_AWQ\)",
    ),
    "compressed NVFP4 of 8 bits": (
        {**LAYOUTS["compressed, rows"].config, "format": "nvfp4-pack-quantized"}, r"\(nvfp4-pack-quantized\)"
    ),
    "no groups": ({"quant_method": "compressed-tensors", "format": "pack-quantized"}, r"\(pack-quantized\)"),
    "transforms": (
        {**LAYOUTS["compressed, rows"].config, "transform_config": {"config_groups": {"R1": {}}}}, "transform_config"
    ),
    "sparse": (
        {**LAYOUTS["compressed, rows"].config, "sparsity_config": {"format": "sparse-24-bitmask"}}, "sparsity_config"
    ),
    **{
        f"a block of {block}": ({"quant_method": "fp8", "weight_block_size": block}, "as the block of weights that has")
        for block in BLOCKS
    },
}  # fmt: skip
WEIGHTS: dict[str, dict[str, Any]] = {
    "integers": {"type": "int"}, "four bits": {"num_bits": 4}, "offsets": {"symmetric": False},
    "groups of sixteen": {"strategy": "tensor_group"}, "dynamic": {"dynamic": True},
}  # fmt: skip


@pytest.mark.parametrize("case", NOT_READ)
def test_weights_that_are_quantised_otherwise_are_refused_by_name(case: str, tmp_path: Path) -> None:
    write_folder(tmp_path / "m", "llama, untied")
    convert(tmp_path / "m", replace(LAYOUTS["DeepSeek"], config=NOT_READ[case][0]))
    with pytest.raises(CheckpointError, match=NOT_READ[case][1]):
        read_folder(tmp_path / "m")


@pytest.mark.parametrize("case", WEIGHTS)
def test_groups_of_compressed_tensors_that_are_not_in_fp8_are_refused(case: str, tmp_path: Path) -> None:
    write_folder(tmp_path / "m", "llama, untied")
    config = json.loads(json.dumps(LAYOUTS["compressed, rows"].config))
    config["config_groups"]["group_0"]["weights"] |= WEIGHTS[case]
    convert(tmp_path / "m", replace(LAYOUTS["compressed, rows"], config=config))
    with pytest.raises(CheckpointError, match="quantised by 'compressed-tensors'"):
        read_folder(tmp_path / "m")


def test_a_file_of_modelopt_counts_where_config_json_states_nothing(tmp_path: Path) -> None:
    folder, matrix = tmp_path / "m", "blk.0.attn_q.weight"
    own = folder / "hf_quant_config.json"
    write_folder(folder, "llama, untied")
    convert(folder, LAYOUTS["ModelOpt, older"])
    found = read_folder(folder)
    assert found.tensors[matrix].scales is not None
    assert own in found.paths and own in SafetensorsFiles(folder).paths()
    state(folder, {"quant_algo": "W4A8_AWQ"}, has_own_file=True)
    with pytest.raises(CheckpointError, match=r"hf_quant_config.json: the weights .* by 'modelopt' \(W4A8_AWQ\)"):
        read_folder(folder)
    assert "W4A8_AWQ" in str(SafetensorsFiles(folder).configuration_problem())
    state(folder, LAYOUTS["ModelOpt"].config)
    assert read_folder(folder).tensors[matrix].scales is not None
    state(folder, None)
    own.write_text('{"quantization": "FP8"}', encoding="utf-8")
    with pytest.raises(CheckpointError, match=r"hf_quant_config\.json does not state how weights are quantised"):
        read_folder(folder)


def test_a_folder_of_which_only_keys_and_values_were_to_be_rounded_is_read(tmp_path: Path) -> None:
    write_folder(tmp_path / "m", "llama, untied")
    expected = read_folder(tmp_path / "m").tensors.keys()
    stored = stored_in(path := tmp_path / "m/model.safetensors")
    stored |= {f"model.layers.0.self_attn.{part}_proj.{part}_scale": ("F32", (), bytes(4)) for part in "kv"}
    path.write_bytes(file_bytes(stored))
    state(tmp_path / "m", {"quant_algo": None, "kv_cache_quant_algo": "FP8"}, has_own_file=True)
    assert read_folder(tmp_path / "m").tensors.keys() == expected


def test_blocks_of_modelopt_have_axes_of_their_own(tmp_path: Path) -> None:
    """Scales of 128 x 128 weights, [blocks of rows, 1, blocks of inputs, 1]."""
    write_folder(tmp_path / "m", "llama, untied")
    weights = convert(tmp_path / "m", LAYOUTS["ModelOpt, blocks"])
    found = read_folder(tmp_path / "m").tensors["blk.0.ffn_up.weight"]
    assert found.scales is not None and (found.scales.rows, found.scales.inputs) == (128, 128)
    np.testing.assert_array_equal(found.floats(), weights[UP])
    stored = stored_in(path := tmp_path / "m/model.safetensors")
    stored[f"{UP}_scale"] = "F32", (1, 1, 2, 1), bytes(8)
    path.write_bytes(file_bytes(stored))
    with pytest.raises(CheckpointError, match=r"is F32 \[1, 1, 2, 1\], which are not the scales of"):
        read_folder(tmp_path / "m")


def test_groups_of_which_one_has_only_activations_are_read_and_two_sizes_of_blocks_are_not(tmp_path: Path) -> None:
    write_folder(tmp_path / "m", "llama, untied")
    config = json.loads(json.dumps(LAYOUTS["compressed, blocks"].config))
    groups = config["config_groups"]
    groups["activations"] = {"targets": ["Linear"], "weights": None}
    groups["rows"] = {"weights": groups["group_0"]["weights"] | {"strategy": "channel"}, "format": "float-quantized"}
    convert(tmp_path / "m", replace(LAYOUTS["compressed, blocks"], config=config | {"format": "mixed-precision"}))
    with pytest.raises(CheckpointError, match=r"'compressed-tensors' \(mixed-precision\)"):
        read_folder(tmp_path / "m")
    state(tmp_path / "m", config)
    assert read_folder(tmp_path / "m").tensors["blk.0.attn_q.weight"].scales is not None
    groups["rows"]["weights"] |= {"strategy": "block", "block_structure": [32, 32]}
    state(tmp_path / "m", config)
    with pytest.raises(CheckpointError, match="blocks of several sizes"):
        read_folder(tmp_path / "m")


def places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Every place in nested objects and lists: what it is in, and its key."""
    for key in value if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ():
        yield value, key
        yield from places(value[key])


STATEMENTS: dict[str, Mapping[str, Any]] = {name: layout.config for name, layout in LAYOUTS.items()}
STATEMENTS |= {f"NVFP4: {name}": layout.config for name, layout in nvfp4.LAYOUTS.items()}


@pytest.mark.parametrize("config", STATEMENTS.values(), ids=STATEMENTS)
def test_any_value_anywhere_in_the_statement_is_read_or_refused_in_a_sentence(config: Mapping[str, Any]) -> None:
    whole = {"quantization_config": json.loads(json.dumps(config))}
    for inner, key in list(places(whole)):
        before = inner[key]
        for other in OTHER_TYPES:
            inner[key] = other
            try:
                quantised_of(whole, "config.json")
            except CheckpointError as refused:
                assert str(refused).startswith("config.json") and len(str(refused)) < 500
        inner[key] = before
    assert quantised_of(whole, "config.json") is not None


UP, DOWN = "model.layers.0.mlp.up_proj.weight", "model.layers.1.mlp.down_proj.weight"
Changes = Callable[[dict[str, Stored]], Any]
BROKEN: dict[str, tuple[Changes, str]] = {
    "no scales": (lambda stored: stored.pop(f"{UP}_scale_inv"), "is in FP8, but has no scales"),
    "scales alone": (lambda stored: stored.pop(UP), "but not what they belong to"),
    "scales twice": (lambda stored: stored.update({f"{UP}_scale": stored[f"{UP}_scale_inv"]}), "scales of .* twice"),
    "scales of floats": (
        lambda stored: stored.update({UP: ("F32", stored[UP][1], 4 * stored[UP][2])}), "has scales, but is not in FP8"
    ),
    "scales of a norm": (
        lambda stored: stored.update({"model.norm.weight_scale_inv": ("F32", (), bytes(4))}), "is not in FP8"
    ),
    "other blocks": (
        lambda stored: stored.update({f"{UP}_scale_inv": stored[f"{DOWN}_scale_inv"]}), "which are not the scales of"
    ),
    "integers": (
        lambda stored: stored.update({f"{UP}_scale_inv": ("F8_E4M3", (6, 2), bytes(12))}), "which are not the scales of"
    ),
    "exponents": (
        lambda stored: stored.update({f"{UP}_scale_inv": ("F8_E8M0", (6, 2), bytes(12))}), "has the type 'F8_E8M0'"
    ),
    "a vector": (
        lambda stored: stored.update({UP: ("F8_E4M3", (96 * 64,), stored[UP][2])}), "but only matrices are read"
    ),
    "three axes": (
        lambda stored: stored.update({UP: ("F8_E4M3", (1, 96, 64), stored[UP][2])}), "but only matrices are read"
    ),
    "another format": (
        lambda stored: stored.update({UP: ("F8_E5M2", (96, 64), stored[UP][2])}), "has the type 'F8_E5M2'"
    ),
    "another shape": (
        lambda stored: stored.update({UP: ("F8_E4M3", (48, 128), stored[UP][2])}), "which are not the scales of"
    ),
    "a norm in FP8": (
        lambda stored: stored.update({"model.norm.weight": ("F8_E4M3", (64,), bytes(64))}), "has no scales"
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", BROKEN)
def test_matrices_and_scales_that_do_not_fit_are_refused_in_a_sentence(case: str, tmp_path: Path) -> None:
    write_folder(tmp_path / "m", "llama, untied")
    convert(tmp_path / "m", LAYOUTS["DeepSeek"])
    stored = stored_in(path := tmp_path / "m/model.safetensors")
    BROKEN[case][0](stored)
    path.write_bytes(file_bytes(stored))
    with pytest.raises(CheckpointError, match=BROKEN[case][1]) as refused:
        read_folder(tmp_path / "m")
    assert str(tmp_path / "m") in str(refused.value)


@pytest.mark.parametrize(
    ("name", "part", "axes"), [("lfm2", ".conv.conv.weight", 3), ("llama, untied", ".up_proj.weight", 2)]
)
def test_what_has_three_axes_and_is_not_of_experts_is_refused(name: str, part: str, axes: int, tmp_path: Path) -> None:
    """A convolution, and a matrix with an axis of length one before its own, each with scales of as many axes."""
    write_folder(tmp_path / "m", name)
    convert(tmp_path / "m", LAYOUTS["compressed, rows"])
    stored = stored_in(path := tmp_path / "m/model.safetensors")
    changed = next(each for each in stored if each.endswith(part))
    shape = stored[changed][1]
    assert len(shape) == axes
    shape = shape if axes == 3 else (1, *shape)
    count = shape[0] * shape[1]
    stored[changed] = "F8_E4M3", shape, bytes(count * shape[2])
    stored.pop(f"{changed}_scale", None)
    stored[f"{changed}_scale_inv"] = "F32", (*shape[:2], 1), bytes(4 * count)
    path.write_bytes(file_bytes(stored))
    assert "is in FP8 and has the shape" in refusal(tmp_path / "m")


def test_an_output_layer_that_differs_from_the_embeddings_in_its_scales_is_another_one(tmp_path: Path) -> None:
    write_folder(tmp_path / "m", "llama, untied")
    convert(tmp_path / "m", LAYOUTS["compressed, rows"])
    stored = stored_in(path := tmp_path / "m/model.safetensors")
    _, shape, _ = stored["lm_head.weight"]
    ones = np.ones(shape[0], "<f4")
    for name, scales in (("model.embed_tokens.weight", ones), ("lm_head.weight", ones * 2)):
        stored[name] = "F8_E4M3", shape, bytes([0x38]) * (shape[0] * shape[1])
        stored[f"{name}_scale"] = "F32", (shape[0], 1), scales.astype("<f4").tobytes()
    path.write_bytes(file_bytes(stored))
    config = json.loads((tmp_path / "m/config.json").read_text(encoding="utf-8"))
    (tmp_path / "m/config.json").write_text(json.dumps(config | {"tie_word_embeddings": True}), encoding="utf-8")
    assert any("another output layer, which is used" in note for note in shown(tmp_path / "m")["notes"])
    stored["lm_head.weight_scale"] = stored["model.embed_tokens.weight_scale"]
    path.write_bytes(file_bytes(stored))
    assert not any("another output layer" in note for note in shown(tmp_path / "m")["notes"])


def test_codes_without_a_statement_are_refused(tmp_path: Path) -> None:
    write_folder(tmp_path / "m", "llama, untied")
    convert(tmp_path / "m", LAYOUTS["DeepSeek"])
    state(tmp_path / "m", None)
    assert "does not state how weights are quantised" in refusal(tmp_path / "m")


@pytest.mark.parametrize("number", [float("nan"), float("inf"), -float("inf"), 3e38])
@pytest.mark.parametrize("name", ["llama, untied", "qwen35moe"])
def test_a_scale_that_is_no_number_is_refused_at_the_start(name: str, number: float, tmp_path: Path) -> None:
    write_folder(tmp_path / "m", name)
    convert(tmp_path / "m", LAYOUTS["DeepSeek"])
    stored = stored_in(path := tmp_path / "m/model.safetensors")
    last = [each for each in stored if each.endswith("_scale_inv")][-1]
    kind, shape, data = stored[last]
    stored[last] = kind, shape, data[:-4] + np.array(number, "<f4").tobytes()
    path.write_bytes(file_bytes(stored))
    with pytest.raises(CheckpointError, match="are not all numbers, or larger than any model's"):
        logits(tmp_path / "m", tmp_path, "exact")


@pytest.mark.parametrize("number", slow_but([-0.25], [0.0, -0.25]))
def test_a_scale_of_zero_or_below_is_a_number_like_any_other(number: float, tmp_path: Path) -> None:
    write_folder(tmp_path / "m", "llama, untied")
    weights = convert(tmp_path / "m", LAYOUTS["Mistral"])
    stored = stored_in(path := tmp_path / "m/model.safetensors")
    _, shape, codes = stored[UP]
    stored[f"{UP}_scale_inv"] = "F32", (), np.array(number, "<f4").tobytes()
    path.write_bytes(file_bytes(stored))
    weights[UP] = (VALUES[np.frombuffer(codes, np.uint8)].reshape(shape) * number).astype(np.float32)
    plain = write_plain(tmp_path / "plain", tmp_path / "m", weights)
    assert logits(tmp_path / "m", tmp_path, "exact") == logits(plain, tmp_path, "exact")


def test_a_model_whose_matrices_have_their_inputs_first_is_refused_in_fp8(tmp_path: Path) -> None:
    write_folder(tmp_path / "m", "gpt2")
    convert(tmp_path / "m", LAYOUTS["AutoFP8"])
    assert "is quantised, with its inputs first: use a GGUF file" in refusal(tmp_path / "m")


def test_codes_are_the_nearest_ones() -> None:
    """The helper of these tests: with it, a wrong table would still be its own inverse."""
    numbers = np.array([0.0, -0.0, 1.0, -448.0, 500.0, 2.0**-9, 0.3])
    assert codes_of(numbers).tolist() == [0, 0x80, 0x38, 0xFE, 0x7E, 1, 0x2A]
    assert VALUES[[0x38, 0x7E, 1, 0x2A]].tolist() == [1.0, 448.0, 2.0**-9, 0.3125]


def test_doctor_says_what_memory_to_expect(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_folder(tmp_path / "m", "llama, untied")
    convert(tmp_path / "m", LAYOUTS["DeepSeek"])
    monkeypatch.setenv("ONWARD_MODEL", str(tmp_path / "m"))
    monkeypatch.setenv("ONWARD_CACHE_DIR", str(tmp_path / "cache"))
    words = [each["words"] for each in json.loads(command("doctor", "--format", "json")[1])["findings"]]
    assert any("of files in FP8, " in each and "of memory" in each for each in words)
