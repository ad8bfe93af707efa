"""Latent attention: two forms of files are alike, and matrices that are stored with inputs and rows exchanged."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from onward.checkpoints.architectures import architecture_of
from onward.checkpoints.families import deepseek
from onward.checkpoints.read import read_checkpoint
from onward.checkpoints.tensor import Tensor, transposed_heads
from onward.checkpoints.types import TENSOR_TYPES
from onward.model_files.gguf import GGUFFiles
from tests.checkpoints.hugging_face import write_folder
from tests.checkpoints.making import NUMBERS, write_gguf
from tests.checkpoints.test_architectures import check_logits
from tests.checkpoints.tiny import tiny
from tests.models.doors import refusal, scores


def test_both_forms_of_files_have_the_same_bits(tmp_path: Path) -> None:
    """With `exact`, which keeps the weights as they are."""
    metadata, tensors = tiny("deepseek2, joined")
    parts = {}
    for name, array in tensors.items():
        if not name.endswith("attn_kv_b.weight"):
            continue
        keys, values = np.split(array.reshape(4, -1, array.shape[1]), [24], axis=1)
        parts[name.replace("kv_b", "k_b")] = np.ascontiguousarray(keys.swapaxes(1, 2))
        parts[name.replace("kv_b", "v_b")] = np.ascontiguousarray(values)
    kept = {name: array for name, array in tensors.items() if "attn_kv_b" not in name}
    stated = {key: value for key, value in tiny("deepseek2")[0].items() if "attention." in key or "general" in key}
    prompt = [token * 7 % 25 for token in range(50)]
    older = scores(write_gguf(tmp_path / "older.gguf", metadata, tensors), prompt, tmp_path, precision="exact")
    newer = scores(
        write_gguf(tmp_path / "newer.gguf", metadata | stated, kept | parts), prompt, tmp_path, precision="exact"
    )
    assert older == newer


@pytest.mark.parametrize(("kind", "columns"), [("F32", 24), ("BF16", 24), ("Q8_0", 64), ("Q5_0", 32)])
def test_any_rows_of_a_matrix_that_is_turned_are_the_columns_of_what_is_stored(
    kind: str, columns: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """[heads, inputs, rows] as [heads * rows, inputs], a few inputs at a time."""
    monkeypatch.setattr("onward.checkpoints.tensor._MAX_TRANSPOSED", 7 * columns)
    heads, inputs, stored_as = 3, 40, TENSOR_TYPES[NUMBERS[kind]]
    size = heads * inputs * columns // stored_as.block_weights * stored_as.block_bytes
    data = np.random.default_rng(1).integers(0, 60, size, np.uint8)
    stored = Tensor("k", (heads, inputs, columns), stored_as, data)
    expected = stored.floats().reshape(heads, inputs, columns).swapaxes(1, 2).reshape(-1, inputs)
    found = transposed_heads(stored)
    assert (found.shape, found.type.name) == ((heads * columns, inputs), "F32")
    for start, stop in (
        (0, heads * columns),
        (0, 1),
        (5, columns + 7),
        (columns, 2 * columns),
        (columns - 1, columns + 1),
    ):
        assert np.array_equal(found.floats(start, stop), expected[start:stop], equal_nan=True)


def test_yarn_raises_the_scale_of_attention_and_no_magnitude(tmp_path: Path) -> None:
    found = architecture_of(read_checkpoint(write_gguf(tmp_path / "m.gguf", *tiny("deepseek2"))))
    assert found.rope is not None and found.rope.magnitude == 1.0 and found.rope.size == 16
    assert found.attention_scale == pytest.approx(40**-0.5 * (0.0707 * np.log(8) + 1) ** 2)
    assert (found.heads_of(0).head_size, found.heads_of(0).value_size) == (40, 20)


def test_a_magnitude_of_positions_raises_the_scale_without_yarn_too(tmp_path: Path) -> None:
    """As in llama.cpp (src/models/deepseek2.cpp, kq_scale)."""
    metadata, tensors = tiny("deepseek2, dense")
    found = architecture_of(
        read_checkpoint(
            write_gguf(tmp_path / "m.gguf", metadata | {"deepseek2.rope.scaling.attn_factor": 0.5}, tensors)
        )
    )
    assert found.rope is not None and found.rope.magnitude == 0.5
    assert found.attention_scale == pytest.approx(40**-0.5 * 0.25)


def test_a_scale_of_attention_of_zero_is_not_the_usual_one(tmp_path: Path) -> None:
    """Every position then counts as much as any other."""
    metadata, tensors = tiny("deepseek2, dense")
    prompt = [token * 7 % 25 for token in range(20)]
    path = write_gguf(tmp_path / "m.gguf", metadata | {"deepseek2.rope.scaling.attn_factor": 0.0}, tensors)
    for name in tensors:
        if name.endswith("attn_q.weight"):
            tensors[name] = np.zeros_like(tensors[name])
    without = write_gguf(tmp_path / "n.gguf", metadata, tensors)
    assert scores(path, prompt, tmp_path) == scores(without, prompt, tmp_path)


def test_a_folder_that_scales_positions_by_another_rule_is_refused(tmp_path: Path) -> None:
    write_folder(tmp_path / "m", "deepseek2, joined")
    config = tmp_path / "m" / "config.json"
    rule = {
        "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 64,
    }  # fmt: skip
    config.write_text(
        json.dumps(json.loads(config.read_text(encoding="utf-8")) | {"head_dim": 16, "rope_scaling": rule}),
        encoding="utf-8",
    )
    assert "divides frequencies of positions by factors" in refusal(tmp_path / "m")


@pytest.mark.parametrize(
    ("stated", "words"),
    [
        ({"topk_group": 0}, "'0' as 'expert_group_used_count'"),
        ({"topk_group": False}, "'False' as 'expert_group_used_count'"),
        ({"n_group": {}}, "'{}' as 'expert_group_count'"),
        ({"n_group": 5}, "of 5 groups"),
    ],
)
def test_groups_that_a_folder_cannot_mean_are_refused(stated: dict[str, Any], words: str, tmp_path: Path) -> None:
    write_folder(tmp_path / "m", "deepseek2, groups of sigmoids, joined")
    config = tmp_path / "m" / "config.json"
    config.write_text(json.dumps(json.loads(config.read_text(encoding="utf-8")) | stated), encoding="utf-8")
    assert words in refusal(tmp_path / "m")


def test_groups_of_which_a_folder_does_not_say_how_many_are_used_are_refused(tmp_path: Path) -> None:
    """DeepSeek-V2 has no number that is used where none is stated."""
    stated = {"n_group": 2, "topk_method": "group_limited_greedy"}
    write_folder(tmp_path / "m", "deepseek2, joined")
    config = tmp_path / "m" / "config.json"
    found = {key: value for key, value in json.loads(config.read_text(encoding="utf-8")).items() if key != "topk_group"}
    config.write_text(json.dumps(found | stated), encoding="utf-8")
    assert "does not state 'expert_group_used_count'" in refusal(tmp_path / "m")


def test_a_file_of_glm_that_does_not_say_how_experts_are_chosen_has_sigmoids(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    metadata, tensors = tiny("deepseek2, latent queries")
    path = write_gguf(
        tmp_path / "m.gguf", {k: v for k, v in metadata.items() if not k.endswith("gating_func")}, tensors
    )
    monkeypatch.setattr(deepseek, "_GLM_TOKENS", len(metadata["tokenizer.ggml.tokens"]))
    monkeypatch.setattr(deepseek, "_GLM_LAYERS", (3,))
    check_logits(GGUFFiles(path), metadata, tensors, cache=tmp_path)
