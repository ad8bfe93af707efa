"""Experts that files have one by one, as old GGUF files of Mixtral and folders do."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from onward.errors import ModelFolderError
from onward.model_files.gguf import GGUFFiles
from onward.models.resolve import resolve
from tests.checkpoints.hugging_face import one_by_one
from tests.checkpoints.making import floats, write_gguf
from tests.checkpoints.test_adapter import write_peft
from tests.checkpoints.test_architectures import check_logits
from tests.checkpoints.tiny import tiny
from tests.models.doors import refusal, shown

Arrays = dict[str, NDArray[np.float32]]


def written(path: Path, metadata: dict[str, Any], tensors: Arrays) -> Path:
    return write_gguf(path, metadata, {name: floats(array) for name, array in tensors.items()})


def test_experts_one_by_one_are_those_of_a_stack(tmp_path: Path) -> None:
    metadata, tensors = tiny("llama, experts")
    apart = one_by_one(tensors)
    assert "blk.1.ffn_down.3.weight" in apart and len(apart) > len(tensors)
    path = written(tmp_path / "m.gguf", metadata, apart)
    check_logits(GGUFFiles(path), metadata, tensors, cache=tmp_path)
    facts = shown(path)
    assert facts["experts"] == 4 and facts["notes"] == []
    assert 0 < facts["active_parameters"] < facts["parameters"] == sum(array.size for array in tensors.values())


def _without(name: str) -> Callable[[Arrays], Arrays]:
    return lambda tensors: {key: array for key, array in tensors.items() if key != name}


BROKEN: dict[str, tuple[Callable[[Arrays], Arrays], str]] = {
    "one is missing": (_without("blk.1.ffn_up.2.weight"), "no tensor 'blk.1.ffn_up.2.weight'"),
    "the last one is missing": (_without("blk.1.ffn_up.3.weight"), r"\[3, 96, 64\] instead of \[4, 96, 64\]"),
    "one of another size": (
        lambda tensors: {**tensors, "blk.0.ffn_gate.1.weight": tensors["blk.0.ffn_gate.1.weight"][:32]},
        r"'blk.0.ffn_gate.1.weight' is F32 \[32, 64\], but 'blk.0.ffn_gate.0.weight' is F32 \[96, 64\]",
    ),
    "in both forms": (
        lambda tensors: {**tensors, "blk.0.ffn_up_exps.weight": np.zeros((4, 96, 64), np.float32)},
        "'blk.0.ffn_up_exps.weight' in one and by expert",
    ),
    "one twice": (
        lambda tensors: {**tensors, "blk.0.ffn_gate.00.weight": tensors["blk.0.ffn_gate.0.weight"]},
        "a tensor 'blk.0.ffn_gate.00.weight', which Onward does not compute",
    ),
    "a number of 5,000 digits": (
        lambda tensors: {**tensors, f"blk.0.ffn_gate.{'9' * 5000}.weight": tensors["blk.0.ffn_gate.0.weight"]},
        "a tensor 'blk.0.ffn_gate.9999.*, which Onward does not compute",
    ),
    "a vector of gates": (
        lambda tensors: {**tensors, "blk.0.ffn_gate_up_exps.weight": np.ones(64, np.float32)},
        "a tensor 'blk.0.ffn_gate_up_exps.weight', which Onward does not compute",
    ),
    "a layer without any": (
        lambda tensors: {key: array for key, array in tensors.items() if not key.startswith("blk.1.ffn_down.")},
        "no tensor 'blk.1.ffn_down_exps.weight'",
    ),
}


@pytest.mark.parametrize("name", BROKEN)
def test_what_is_missing_or_differs_is_refused_by_name(name: str, tmp_path: Path) -> None:
    change, words = BROKEN[name]
    metadata, tensors = tiny("llama, experts")
    assert re.search(words, refusal(written(tmp_path / "m.gguf", metadata, change(one_by_one(tensors)))))


def test_the_width_of_an_expert_must_be_stated(tmp_path: Path) -> None:
    metadata, tensors = tiny("qwen2moe")
    metadata = {key: value for key, value in metadata.items() if not key.endswith(".expert_feed_forward_length")}
    assert "does not state how wide an expert is" in refusal(written(tmp_path / "m.gguf", metadata, tensors))


@pytest.mark.parametrize("name", ["blk.0.ffn_up_exps.weight", "blk.0.ffn_gate_inp_shexp.weight", "blk.0.attn_q.weight"])
def test_dimensions_of_one_before_the_others_change_nothing(name: str, tmp_path: Path) -> None:
    metadata, tensors = tiny("qwen2moe")
    changed = dict(tensors)
    changed[name] = tensors[name].reshape((1, *tensors[name].shape))
    check_logits(GGUFFiles(written(tmp_path / "m.gguf", metadata, changed)), metadata, tensors, cache=tmp_path)


@pytest.mark.parametrize("is_file", [True, False])
def test_adapters_that_change_experts_are_refused_by_name(is_file: bool, tmp_path: Path) -> None:
    metadata, tensors = tiny("qwen3moe")
    base = written(tmp_path / "m.gguf", metadata, tensors)
    pair = np.ones((4, 64), np.float32), np.ones((32, 4), np.float32)
    if is_file:
        stated = {"general.architecture": "qwen3moe", "general.type": "adapter", "adapter.type": "lora"}
        name = "blk.1.ffn_gate_exps.weight"
        stored = {f"{name}.lora_{side}": array for side, array in zip("ab", pair, strict=True)}
        adapter = written(tmp_path / "a.gguf", stated, stored)
    else:
        name = "blk.1.ffn_gate.5.weight"
        adapter = write_peft(tmp_path / "a", "qwen3moe", {name: pair}, metadata)
    with pytest.raises(ModelFolderError, match=rf"changes experts \('{name}'\), which Onward does not compute"):
        resolve(f"{base}+{adapter}")
