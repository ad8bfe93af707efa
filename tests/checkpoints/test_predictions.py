"""Layers that predict several tokens: read from both formats, left out unless they are asked for, and refused by name
where their tensors are not complete."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from onward.checkpoints.architectures import architecture_of
from onward.checkpoints.checkpoint import Checkpoint
from onward.checkpoints.predictions import with_prediction
from onward.checkpoints.read import read_checkpoint
from onward.checkpoints.safetensors import read_safetensors
from onward.errors import CheckpointError
from tests.checkpoints.hugging_face import safetensors_bytes, write_folder
from tests.checkpoints.mtp import Arrays, predicting_layer, write_predicting_folder, write_predicting_gguf
from tests.checkpoints.tiny import HIDDEN

FOLDERS = (
    "qwen2, mimo", "qwen35", "qwen35moe", "qwen3next", "qwen3next, joined", "deepseek2, glm",
    "deepseek2, groups of sigmoids, joined", "glm4moe, head norms", "bailingmoe2, groups",
    "cohere2moe, rms",
)  # fmt: skip
FILES = (
    "qwen35", "qwen35moe", "qwen3next", "deepseek2, groups of sigmoids", "deepseek2, glm", "glm4moe", "bailingmoe2",
    "cohere2moe",
)  # fmt: skip


def written(path: Path, name: str, layer: Arrays, *, is_folder: bool) -> Checkpoint:
    write = write_predicting_folder if is_folder else write_predicting_gguf
    return read_checkpoint(write(path / "m" if is_folder else path / "m.gguf", name, layer))


def add_file(folder: Path, tensors: Arrays) -> None:
    """Add tensors to a folder of several files, in one of their own."""
    (folder / "more.safetensors").write_bytes(safetensors_bytes(tensors))
    index = json.loads((folder / "model.safetensors.index.json").read_text(encoding="utf-8"))
    index["weight_map"] |= dict.fromkeys(tensors, "more.safetensors")
    (folder / "model.safetensors.index.json").write_text(json.dumps(index), encoding="utf-8")


@pytest.mark.parametrize(
    ("name", "is_folder"), [*((name, True) for name in FOLDERS), *((name, False) for name in FILES)]
)
def test_a_layer_that_predicts_is_apart_from_those_of_the_model(name: str, is_folder: bool, tmp_path: Path) -> None:
    checkpoint = written(tmp_path, name, predicting_layer(name), is_folder=is_folder)
    found = architecture_of(checkpoint)
    count = found.num_layers
    assert f"{count}" == next(iter(predicting_layer(name))).split(".")[1]
    assert not any(key.startswith(f"blk.{count}.") for key in checkpoint.tensors)
    assert all(key.startswith(f"blk.{count}.") for key in checkpoint.predictions)
    [note] = [note for note in checkpoint.notes if "predict" in note]
    assert note.endswith("has layers that predict several tokens at once (MTP): only --draft mtp uses them.")
    extended, whole = with_prediction(found, checkpoint)
    assert extended.num_layers == count + 1 and extended.has_attention(count)
    own = whole.tensors.keys() - checkpoint.tensors.keys()
    assert checkpoint.tensors.keys() < whole.tensors.keys() and all(key.startswith(f"blk.{count}.") for key in own)
    num_apart = int(found.has_gated_attention)  # whose matrix is one with the queries'
    num_apart += 2 * any(".attn_qkv." in key for key in predicting_layer(name))
    if found.latent is not None:
        num_apart = 1 + any("attn_kv_b" in key for key in predicting_layer(name))
    assert len(own) == len(predicting_layer(name)) + num_apart
    if extended.mixture is not None:
        assert count in extended.mixture.layers


@pytest.mark.parametrize("is_folder", [True, False])
def test_numbers_are_those_that_files_of_both_formats_state(is_folder: bool, tmp_path: Path) -> None:
    layer = predicting_layer("qwen35")
    checkpoint = written(tmp_path, "qwen35", layer, is_folder=is_folder)
    for part in ("nextn.enorm", "nextn.eh_proj", "attn_norm", "attn_k_norm", "ffn_down"):
        found = checkpoint.predictions[f"blk.5.{part}.weight"].floats()
        np.testing.assert_allclose(
            found.reshape(layer[f"blk.5.{part}.weight"].shape), layer[f"blk.5.{part}.weight"], 1e-6
        )


def test_the_first_of_several_predicting_layers_is_used(tmp_path: Path) -> None:
    checkpoint = written(tmp_path, "qwen2, mimo", predicting_layer("qwen2, mimo"), is_folder=True)
    renamed = {
        name.replace("blk.2.", "blk.3."): replace(tensor, name=name) for name, tensor in checkpoint.predictions.items()
    }
    both = replace(checkpoint, predictions={**checkpoint.predictions, **renamed})
    extended, whole = with_prediction(architecture_of(both), both)
    assert extended.num_layers == 3 and not any(name.startswith("blk.3.") for name in whole.tensors)


def _without(part: str) -> Callable[[Arrays], None]:
    def change(layer: Arrays) -> None:
        del layer[f"blk.2.{part}.weight"]

    return change


def _wrong(part: str, *shape: int) -> Callable[[Arrays], None]:
    def change(layer: Arrays) -> None:
        layer[f"blk.2.{part}.weight"] = np.ones(shape, np.float32)

    return change


BROKEN: dict[str, tuple[Callable[[Arrays], None], str]] = {
    "no projection": (_without("nextn.eh_proj"), "has no tensor 'blk.2.nextn.eh_proj.weight'"),
    "no norm": (_without("nextn.hnorm"), "has no tensor 'blk.2.nextn.hnorm.weight'"),
    "no keys": (_without("attn_k"), "has no tensor 'blk.2.attn_k.weight'"),
    "a projection of one half": (
        _wrong("nextn.eh_proj", HIDDEN, HIDDEN), r"'blk.2.nextn.eh_proj.weight' has the shape \[64, 64\] instead of",
    ),
    "a longer norm": (_wrong("nextn.enorm", 96), r"'blk.2.nextn.enorm.weight' has the shape \[96\] instead of \[64\]"),
    "fewer queries": (_wrong("attn_q", 32, HIDDEN), r"'blk.2.attn_q.weight' has the shape \[32, 64\] instead of"),
    "a norm of queries": (_wrong("attn_q_norm", 16), "has a tensor 'blk.2.attn_q_norm.weight', which Onward does not"),
}  # fmt: skip


@pytest.mark.parametrize("case", BROKEN)
def test_a_layer_that_is_not_complete_is_refused_where_it_is_asked_for(case: str, tmp_path: Path) -> None:
    change, message = BROKEN[case]
    layer = predicting_layer("qwen2, mimo")
    change(layer)
    checkpoint = written(tmp_path, "qwen2, mimo", layer, is_folder=True)
    found = architecture_of(checkpoint)  # the model is computed as it was
    with pytest.raises(CheckpointError, match=message):
        with_prediction(found, checkpoint)


def test_experts_that_are_not_complete_are_refused_where_they_are_asked_for(tmp_path: Path) -> None:
    folder = write_predicting_folder(tmp_path / "m", "qwen3next", predicting_layer("qwen3next"))
    for name in ("mtp.safetensors", "model.safetensors.index.json"):
        content = (folder / name).read_bytes()
        assert b"mtp.layers.0.mlp.experts.1.up" in content
        (folder / name).write_bytes(content.replace(b"mtp.layers.0.mlp.experts.1.up", b"mtp.layers.0.mlp.experts.9.up"))
    checkpoint = read_checkpoint(folder)
    found = architecture_of(checkpoint)  # the model is computed as it was
    with pytest.raises(CheckpointError, match=r"m has no tensor 'blk.3.ffn_up.1.weight'"):
        with_prediction(found, checkpoint)


@pytest.mark.parametrize(
    ("name", "stored"), [("qwen2, mimo", "mtp_layers.0.gate.weight"), ("qwen35", "mtp.gate.weight")]
)
def test_a_tensor_that_nothing_uses_is_refused(name: str, stored: str, tmp_path: Path) -> None:
    folder = write_predicting_folder(tmp_path / "m", name, predicting_layer(name))
    add_file(folder, {f"model.{stored}": np.ones((2, 2), np.float32)})
    checkpoint = read_checkpoint(folder)
    found = architecture_of(checkpoint)
    with pytest.raises(CheckpointError, match=r"has a tensor 'model\.layers\.\d\.gate\.weight', which Onward does not"):
        with_prediction(found, checkpoint)


@pytest.mark.parametrize("part", ["embed_tokens", "shared_head.head"])
def test_weights_that_are_not_those_of_the_model_are_refused_where_they_are_asked_for(
    part: str, tmp_path: Path
) -> None:
    folder = write_predicting_folder(tmp_path / "m", "deepseek2, glm", predicting_layer("deepseek2, glm"))
    stored = read_safetensors(folder / "mtp.safetensors")
    arrays = {name: tensor.floats().reshape(tensor.shape) for name, tensor in stored.items()}
    arrays[f"model.layers.3.{part}.weight"] = arrays[f"model.layers.3.{part}.weight"][::-1]
    (folder / "mtp.safetensors").write_bytes(safetensors_bytes(arrays))
    checkpoint = read_checkpoint(folder)
    found = architecture_of(checkpoint)  # the model is computed as it was
    with pytest.raises(CheckpointError, match="m has other weights for the layer that predicts several tokens at once"):
        with_prediction(found, checkpoint)


def test_layers_that_are_not_computed_are_left_out_and_refused_where_they_are_asked_for(tmp_path: Path) -> None:
    """ERNIE's read the hidden states before the model's last norm, which is theirs, too."""
    _, tensors = write_folder(tmp_path, "ernie4_5-moe", num_files=2)
    ones = np.ones((2, 2), np.float32)
    names = [f"model.mtp_{part}.weight" for part in ("emb_norm.0", "block.0.mlp.up_proj", "linear_proj.0")]
    add_file(tmp_path, dict.fromkeys(names, ones))
    checkpoint = read_checkpoint(tmp_path)
    assert checkpoint.tensors.keys() == tensors.keys()
    assert checkpoint.notes[0].endswith("(MTP): Onward does not compute them for this architecture.")
    with pytest.raises(
        CheckpointError, match=r"'model.layers.3.\w+.0\.[\w.]+', which Onward does not compute for 'ern"
    ):
        with_prediction(architecture_of(checkpoint), checkpoint)


def test_a_model_without_predicting_layers_is_refused(tmp_path: Path) -> None:
    write_folder(tmp_path / "m", "qwen2")
    checkpoint = read_checkpoint(tmp_path / "m")
    with pytest.raises(CheckpointError, match="m has no layers that predict several tokens at once, which --draft mtp"):
        with_prediction(architecture_of(checkpoint), checkpoint)
