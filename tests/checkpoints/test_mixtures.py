"""Experts stored one by one, as in folders and old GGUF files of Mixtral, or as in gpt-oss's folders."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from onward.checkpoints.mixtures import joined_experts
from onward.checkpoints.quantised import Quantised, with_scales
from onward.checkpoints.tensor import Tensor
from onward.checkpoints.types import FLOAT8, FLOAT16, FLOAT32
from onward.engine.model import Row
from onward.errors import CheckpointError, ModelFolderError
from onward.model_files.base import ModelFiles
from onward.model_files.gguf import GGUFFiles
from onward.model_files.safetensors import SafetensorsFiles
from onward.models.check import check_model
from onward.models.resolve import resolve
from onward.runtimes.base import RuntimeOptions
from onward.runtimes.table import load_model
from tests.checkpoints.hugging_face import gates_between, hugging_face_name, one_by_one, safetensors_bytes, write_folder
from tests.checkpoints.making import FUZZ, Stored, floats, with_bytes, write_gguf
from tests.checkpoints.test_adapter import write_peft
from tests.checkpoints.test_architectures import check_logits
from tests.checkpoints.tiny import tiny
from tests.models.doors import refusal, shown

Arrays = dict[str, NDArray[np.float32]]


def test_millions_of_experts_are_refused_before_each_becomes_a_tensor(monkeypatch: pytest.MonkeyPatch) -> None:
    """A byte or two of a file each, and a kilobyte of memory."""
    monkeypatch.setattr(Tensor, "part", lambda *_: pytest.fail("a matrix became a tensor"))
    count = 1024
    codes = {f"{layer}.experts.up_proj": FLOAT8 for layer in range(300)}
    scales = {f"{name}_scale_inv": FLOAT32 for name in codes}
    stored = {
        name: Tensor(name, (count, 1, 1), kind, np.zeros(count * kind.block_bytes, np.uint8))
        for name, kind in (codes | scales).items()
    }
    with pytest.raises(CheckpointError, match="more matrices of experts than any model"):
        with_scales(stored, Quantised(None), "here")
    both = Tensor("blk.0.ffn_gate_up_exps.weight", (300_000, 2, 1), FLOAT16, np.zeros(1_200_000, np.uint8))
    with pytest.raises(CheckpointError, match="more matrices of experts than any model"):
        joined_experts({both.name: both}, "here")


def test_experts_one_by_one_are_those_of_a_stack(tmp_path: Path) -> None:
    metadata, tensors = tiny("llama, experts")
    apart = one_by_one(tensors)
    assert "blk.1.ffn_down.3.weight" in apart and len(apart) > len(tensors)
    path = write_gguf(tmp_path / "m.gguf", metadata, apart)
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
    assert re.search(words, refusal(write_gguf(tmp_path / "m.gguf", metadata, change(one_by_one(tensors)))))


def test_the_width_of_an_expert_must_be_stated(tmp_path: Path) -> None:
    metadata, tensors = tiny("qwen2moe")
    metadata = {key: value for key, value in metadata.items() if not key.endswith(".expert_feed_forward_length")}
    assert "does not state how wide an expert is" in refusal(write_gguf(tmp_path / "m.gguf", metadata, tensors))


@pytest.mark.parametrize("name", ["blk.0.ffn_up_exps.weight", "blk.0.ffn_gate_inp_shexp.weight", "blk.0.attn_q.weight"])
def test_dimensions_of_one_before_the_others_change_nothing(name: str, tmp_path: Path) -> None:
    metadata, tensors = tiny("qwen2moe")
    changed = dict(tensors)
    changed[name] = tensors[name].reshape((1, *tensors[name].shape))
    check_logits(GGUFFiles(write_gguf(tmp_path / "m.gguf", metadata, changed)), metadata, tensors, cache=tmp_path)


@pytest.mark.parametrize("is_file", [True, False])
def test_adapters_that_change_experts_are_refused_by_name(is_file: bool, tmp_path: Path) -> None:
    metadata, tensors = tiny("qwen3moe")
    base = write_gguf(tmp_path / "m.gguf", metadata, tensors)
    pair = np.ones((4, 64), np.float32), np.ones((32, 4), np.float32)
    if is_file:
        stated = {"general.architecture": "qwen3moe", "general.type": "adapter", "adapter.type": "lora"}
        name = "blk.1.ffn_gate_exps.weight"
        stored = {f"{name}.lora_{side}": array for side, array in zip("ab", pair, strict=True)}
        adapter = write_gguf(tmp_path / "a.gguf", stated, stored)
    else:
        name = "blk.1.ffn_gate.5.weight"
        adapter = write_peft(tmp_path / "a", "qwen3moe", {name: pair}, metadata)
    with pytest.raises(ModelFolderError, match=rf"changes experts \('{name}'\), which Onward does not compute"):
        resolve(f"{base}+{adapter}")


HALVES = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6])
"""OCP's numbers of 4 bits, without their sign."""


_CODED = ("gate_up_proj", "down_proj")


def coded(tensors: Arrays) -> tuple[Arrays, dict[str, Stored], dict[str, NDArray[np.uint8]]]:
    """Random 4-bit weights of gpt-oss's experts: their values, and how a GGUF file and a folder store them."""
    values, file, folder = dict(tensors), dict[str, Stored](), dict[str, NDArray[np.uint8]]()
    random = np.random.default_rng(11)
    both: dict[str, Any] = {}
    for name, array in tensors.items():
        if not name.endswith("_exps.weight"):
            continue
        codes = random.integers(0, 16, (*array.shape[:2], array.shape[2] // 32, 32), np.uint8)
        exponents = random.integers(119, 123, codes.shape[:3]).astype(np.uint8)
        signed = np.where(codes & 8, -1.0, 1.0) * HALVES[codes & 7] * 2.0 ** (exponents[..., None] - 127.0)
        values[name] = signed.reshape(array.shape).astype(np.float32)
        blocks = np.concatenate((exponents[..., None], codes[..., :16] | codes[..., 16:] << 4), axis=3)
        file[name] = "MXFP4", array.shape, blocks.tobytes()
        both[name] = {"blocks": codes[..., ::2] | codes[..., 1::2] << 4, "scales": exponents}
    for name, parts in both.items():
        layer, part = name.split(".")[1], name.split("_")[1]
        for end, each in parts.items():
            if part == "gate":
                pair = each, both[name.replace("gate", "up")][end]
                each = np.stack(pair, axis=2).reshape(len(each), -1, *each.shape[2:])
            if part != "up":
                stored = {"gate": "gate_up"}.get(part, part)
                folder[f"model.layers.{layer}.mlp.experts.{stored}_proj_{end}"] = np.ascontiguousarray(each)
    return values, file, folder


def write_coded(folder: Path) -> tuple[dict[str, Any], Arrays, dict[str, Stored], dict[str, NDArray[Any]]]:
    """A folder as OpenAI published gpt-oss: its metadata, the values, and how a GGUF file and the folder store them."""
    metadata, tensors = write_folder(folder, "gpt-oss")
    values, file, codes = coded(tensors)
    usual = {name: array for name, array in gates_between(tensors).items() if not name.endswith(_CODED)}
    stored: dict[str, NDArray[Any]] = {hugging_face_name(name, "gpt-oss"): array for name, array in usual.items()}
    stored |= codes
    (folder / "model.safetensors").write_bytes(safetensors_bytes(stored))
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    config["quantization_config"] = {"quant_method": "mxfp4", "modules_to_not_convert": ["model.layers.*.self_attn"]}
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    return metadata, values, file, stored


def logits_of(files: ModelFiles) -> bytes:
    options = RuntimeOptions(runtime="native", threads=1, kv_memory=4_000_000)
    model = load_model(files, options, lambda line: None).model
    try:
        return model.evaluate([Row(0, [token * 7 % 25 for token in range(40)], 0, range(2), 40)]).tobytes()
    finally:
        model.close()


@pytest.mark.slow
def test_four_bit_codes_are_computed_as_they_are_stored(tmp_path: Path) -> None:
    """From a folder and from a GGUF file, with the same bits."""
    metadata, values, file, _ = write_coded(tmp_path / "m")
    folder = SafetensorsFiles(tmp_path / "m")
    assert check_logits(folder, metadata, values, cache=tmp_path).notes == ()
    others = {name: floats(array) for name, array in values.items()}
    path = write_gguf(tmp_path / "m.gguf", metadata, others | file)
    check_logits(GGUFFiles(path), metadata, values, cache=tmp_path)
    assert logits_of(folder) == logits_of(GGUFFiles(path))
    facts = shown(tmp_path / "m")
    assert facts["parameters"] == sum(array.size for array in values.values()) > facts["active_parameters"] > 0


_DOWN = "model.layers.1.mlp.experts.down_proj"
CODES: dict[str, tuple[str, NDArray[Any] | None, str]] = {
    "no exponents": (f"{_DOWN}_scales", None, r"experts as U8 \[8, 64, 1, 16\]"),
    "no codes": (f"{_DOWN}_blocks", None, r"experts as U8 \[8, 64, 1\]"),
    "exponents of another size": (f"{_DOWN}_scales", np.zeros((8, 64, 2), np.uint8), "do not fit"),
    "codes of another size": (f"{_DOWN}_blocks", np.zeros((8, 64, 1, 8), np.uint8), "do not fit"),
    "codes as floats": (f"{_DOWN}_blocks", np.zeros((8, 64, 1, 16), np.float32), "experts as F32"),
    "too few codes": (f"{_DOWN}_blocks", np.zeros((8, 64, 16), np.uint8), "do not fit"),
    "countless experts": (f"{_DOWN}_blocks", np.zeros((8192, 1, 1, 16), np.uint8), "do not fit"),
    "in two forms": (_DOWN, np.zeros((8, 32, 64), np.float32), "'blk.1.ffn_down_exps.weight' in two forms"),
    "biases of one dimension": (f"{_DOWN}_bias", np.zeros(64, np.float32), r"experts as F32 \[64\]"),
    "biases of another size": (f"{_DOWN}_bias", np.zeros((8, 60), np.float32), r"bias' has the shape \[8, 60\]"),
    "an odd number of gates": (
        "model.layers.0.mlp.experts.gate_up_proj_bias", np.zeros((8, 63), np.float32), r"\[8, 31\] instead of",
    ),
    "bytes elsewhere": (
        "model.layers.0.self_attn.q_proj_blocks", np.zeros((8, 64), np.uint8), "which Onward does not compute",
    ),
    "no sinks": ("model.layers.2.self_attn.sinks", None, "no tensor 'blk.2.attn_sinks.weight'"),
}  # fmt: skip


@pytest.mark.parametrize("name", CODES)
def test_experts_of_gpt_oss_that_do_not_fit_together_are_refused(name: str, tmp_path: Path) -> None:
    tensor, changed, words = CODES[name]
    stored = write_coded(tmp_path)[3]
    stored.pop(tensor, None)
    if changed is not None:
        stored[tensor] = changed
    (tmp_path / "model.safetensors").write_bytes(safetensors_bytes(stored))
    assert re.search(words, refusal(tmp_path))


@pytest.fixture(scope="module")
def checking(tmp_path_factory: pytest.TempPathFactory) -> tuple[bytes, Callable[[bytes], None]]:
    """The bytes of a file of gpt-oss's weights, and a function that reads its folder with other bytes in that file;
    only ModelFolderError may be raised."""
    folder = tmp_path_factory.mktemp("fuzz")
    write_coded(folder)
    path = folder / "model.safetensors"

    def check(content: bytes) -> None:
        path.write_bytes(content)
        try:
            check_model(folder)
        except ModelFolderError:
            return

    return path.read_bytes(), check


@FUZZ
@given(data=st.data())
def test_a_folder_of_gpt_oss_with_another_header_never_crashes(
    data: st.DataObject, checking: tuple[bytes, Callable[[bytes], None]]
) -> None:
    content, check = checking
    end = 8 + int.from_bytes(content[:8], "little")
    shape = st.sampled_from(b"0123456789,[]_bs")
    changes = data.draw(st.dictionaries(st.integers(8, end - 1), shape, max_size=6))
    check(with_bytes(content, changes))
