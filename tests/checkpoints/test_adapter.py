"""LoRA adapters: merged weights compute what the float64 reference computes with W + scale · B · A."""

from __future__ import annotations

import json
import math
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import onward
from onward.checkpoints.table import ARCHITECTURES
from onward.compose import compose
from onward.compose.backend import start_engine
from onward.errors import CheckpointError, ModelFolderError, SetupError
from onward.model_files.gguf import GGUFFiles
from onward.model_files.safetensors import SafetensorsFiles
from onward.models.resolve import resolve, with_adapter
from onward.settings import Settings
from tests.checkpoints.hugging_face import (
    CONFIGS,
    codegen_parts,
    hugging_face_name,
    hugging_face_rows,
    queries_with_keys,
    safetensors_bytes,
    write_folder,
)
from tests.checkpoints.making import write_gguf
from tests.checkpoints.mamba2 import as_falcon_stores
from tests.checkpoints.test_architectures import MAX_DIFFERENCE, check_logits
from tests.checkpoints.tiny import tiny
from tests.examples import slow_but
from tests.models.story_folder import write_story_folder

Arrays = dict[str, NDArray[np.float32]]
RANK = 4
WIDE = 5e-4
"""How far from the reference adapters may be whose changes are so large that rounding errors grow: log-probabilities
are hundreds, or attention is nearly to one token."""


JOINED = {"internlm2": queries_with_keys, "gptj, codegen": codegen_parts}
"""Models of folders with queries, keys and values in one matrix, and how these lie there."""


def is_linear(name: str, weights: NDArray[Any]) -> bool:
    """Whether a tensor is the matrix of a linear layer."""
    is_matrix = name.startswith("blk.") and name.endswith(".weight") and weights.ndim == 2
    return is_matrix and "shortconv.conv." not in name and ".ssm_conv1d." not in name and "_norm." not in name


def changes(tensors: Arrays, kind: str) -> dict[str, tuple[Any, Any]]:
    """A and B for every linear layer, by GGUF's names. Queries, keys and values that are one matrix in folders have the
    same A."""
    random = np.random.default_rng(7)
    found: dict[str, tuple[Any, Any]] = {}
    for name, weights in tensors.items():
        if is_linear(name, weights):
            rows, inputs = weights.shape
            low: Any = 0.3 * random.normal(size=(RANK, inputs)) / math.sqrt(inputs)
            if kind in JOINED and name.endswith(("attn_k.weight", "attn_v.weight")):
                low = found[f"{name.rpartition('.attn_')[0]}.attn_q.weight"][0]
            found[name] = low.astype(np.float32), random.normal(size=(rows, RANK)).astype(np.float32)
    return found


def tuned(tensors: Arrays, pairs: dict[str, tuple[Any, Any]], scale: float) -> Arrays:
    return tensors | {name: tensors[name] + np.float32(scale) * (high @ low) for name, (low, high) in pairs.items()}


def write_peft(folder: Path, name: str, pairs: dict[str, tuple[Any, Any]], metadata: Any, **config: Any) -> Path:
    folder.mkdir(parents=True)
    stored, kind = {}, name.partition(",")[0]
    lows = {name.replace(".attn_q.", ".attn_qkv."): low for name, (low, _) in pairs.items()}
    highs = {name: high for name, (_, high) in pairs.items()}
    if name in JOINED:
        pairs = {each: (lows[each], high) for each, high in JOINED[name](highs).items()}
    for name, (low, high) in pairs.items():
        module = "base_model.model." + hugging_face_name(name, kind).removesuffix(".weight")
        if ".ssm_out." in name:
            low = hugging_face_rows(name, low, kind, metadata | {"is_adapter": True})
        stored[f"{module}.lora_A.weight"] = low
        is_whole = ".ssm_out." in name
        stored[f"{module}.lora_B.weight"] = (
            high if is_whole else hugging_face_rows(name, high, kind, metadata | {"is_adapter": True})
        )
    (folder / "adapter_model.safetensors").write_bytes(safetensors_bytes(stored))
    (folder / "adapter_config.json").write_text(
        json.dumps({"peft_type": "LORA", "r": RANK, "lora_alpha": 6, **config}), encoding="utf-8"
    )
    return folder


def as_trained(pairs: dict[str, tuple[Any, Any]], name: str) -> dict[str, tuple[Any, Any]]:
    """The pairs as an adapter of a folder has them, whose changes Falcon-H1's multipliers multiply, too."""
    if name != "falcon-h1":
        return pairs
    return {each: (low, as_falcon_stores({each: high}, CONFIGS[name])[each]) for each, (low, high) in pairs.items()}


TUNED = [
    "llama", "qwen2", "qwen2moe", "qwen2vl", "qwen3", "qwen3moe", "qwen3vl", "qwen3vlmoe", "mellum", "gpt-oss",
    "phi2", "phi3", "gpt2", "opt", "opt, norms after", "gptj", "gptj, codegen", "falcon", "falcon, groups", "gptneox",
    "starcoder", "starcoder2", "stablelm", "command-r, head norms", "cohere2", "cohere2moe", "glm4",
    "gemma", "gemma2", "gemma3", "gemma3n", "gemma4", "granite", "granitemoe", "granitehybrid", "minicpm", "smollm3",
    "olmo", "olmo2", "olmoe", "exaone4", "seed_oss", "hunyuan-dense", "hunyuan-moe", "arcee", "apertus", "afmoe",
    "internlm2", "mistral3", "lfm2", "lfm2moe", "ernie4_5", "ernie4_5-moe", "minimax-m2", "dots1", "llama4", "qwen35",
    "qwen35moe", "qwen3next, joined", "falcon-h1", "nemotron_h",
    "nemotron_h_moe", "deepseek2, joined", "deepseek2, queries joined", "glm4moe", "bailingmoe2, groups",
]  # fmt: skip
"""Of mixtures, everything but the experts: their routers too."""


def test_adapters_of_every_architecture_are_tried() -> None:
    assert {name.partition(",")[0] for name in TUNED} == ARCHITECTURES.keys()


@pytest.mark.parametrize("name", slow_but(["qwen2moe"], TUNED))
@pytest.mark.parametrize("is_file", [True, False])
def test_a_folder_of_peft_changes_a_folder_and_a_file(name: str, is_file: bool, tmp_path: Path) -> None:
    metadata, tensors = tiny(name) if is_file else write_folder(tmp_path / "m", name)
    pairs = changes(tensors, name)
    adapter = write_peft(tmp_path / "a", name, as_trained(pairs, name), metadata)
    path = write_gguf(tmp_path / "m.gguf", metadata, tensors) if is_file else tmp_path / "m"
    files = GGUFFiles(path) if is_file else SafetensorsFiles(path)
    expected = tuned(tensors, pairs, 6 / RANK)
    if is_file and name == "falcon-h1":
        with pytest.raises(CheckpointError, match="Falcon-H1's multipliers are part of the weights in GGUF files"):
            check_logits(files, metadata, expected, cache=tmp_path, adapter=adapter)
        return
    difference = WIDE if name == "gemma3n" else MAX_DIFFERENCE
    check_logits(files, metadata, expected, cache=tmp_path, adapter=adapter, max_difference=difference)


@pytest.mark.parametrize(("name", "end"), [("granitehybrid", ""), ("granitemoe, shared", "_shexp")])
def test_an_adapter_may_change_gate_and_up_projection_in_one_tensor(name: str, end: str, tmp_path: Path) -> None:
    metadata, tensors = write_folder(tmp_path / "m", name)
    random = np.random.default_rng(2)
    rows, inputs = tensors[f"blk.0.ffn_gate{end}.weight"].shape
    low, high = random.normal(size=(RANK, inputs)) / inputs, random.normal(size=(2 * rows, RANK))
    low, high = low.astype(np.float32), high.astype(np.float32)
    module = "base_model.model.model.layers.0.shared_mlp.input_linear"
    (tmp_path / "a").mkdir()
    stored = {f"{module}.lora_A.weight": low, f"{module}.lora_B.weight": high}
    (tmp_path / "a" / "adapter_model.safetensors").write_bytes(safetensors_bytes(stored))
    (tmp_path / "a" / "adapter_config.json").write_text(
        json.dumps({"peft_type": "LORA", "r": RANK, "lora_alpha": 6}), encoding="utf-8"
    )
    pairs = {
        f"blk.0.ffn_{part}{end}.weight": (low, half)
        for part, half in zip(("gate", "up"), np.split(high, 2), strict=True)
    }
    expected = tuned(tensors, pairs, 6 / RANK)
    check_logits(SafetensorsFiles(tmp_path / "m"), metadata, expected, cache=tmp_path, adapter=tmp_path / "a")


def test_rank_stabilised_adapters_are_scaled_by_the_root_of_the_rank(tmp_path: Path) -> None:
    metadata, tensors = write_folder(tmp_path / "m", "llama")
    pairs = changes(tensors, "llama")
    adapter = write_peft(tmp_path / "a", "llama", pairs, metadata, use_rslora=True)
    expected = tuned(tensors, pairs, 6 / math.sqrt(RANK))
    files = SafetensorsFiles(tmp_path / "m")
    check_logits(files, metadata, expected, cache=tmp_path, adapter=adapter, max_difference=WIDE)


def write_gguf_adapter(path: Path, pairs: dict[str, tuple[Any, Any]], **changed: Any) -> Path:
    metadata = {
        "general.architecture": "llama", "general.type": "adapter", "adapter.type": "lora",
        "adapter.lora.alpha": 8.0, **changed,
    }  # fmt: skip
    stored = {
        f"{name}.lora_{side}": each for name, both in pairs.items() for side, each in zip("ab", both, strict=True)
    }
    return write_gguf(path, metadata, stored)


def test_a_gguf_file_changes_a_file_and_a_folder(tmp_path: Path) -> None:
    metadata, tensors = write_folder(tmp_path / "m", "llama")
    pairs = changes(tensors, "llama")
    adapter = write_gguf_adapter(tmp_path / "a.gguf", pairs)
    expected = tuned(tensors, pairs, 8 / RANK)
    path = write_gguf(tmp_path / "m.gguf", metadata, tensors)
    check_logits(GGUFFiles(path), metadata, expected, cache=tmp_path, adapter=adapter)
    check_logits(SafetensorsFiles(tmp_path / "m"), metadata, expected, cache=tmp_path, adapter=adapter)


@pytest.mark.parametrize("name", slow_but(["llama"], ["llama", "gpt2"]))
def test_embeddings_are_changed_too(name: str, tmp_path: Path) -> None:
    """Where embeddings are tied, as in gpt2, so is the output layer."""
    metadata, tensors = tiny(name)
    embedding = tensors["token_embd.weight"]
    random = np.random.default_rng(4)
    low = random.normal(size=(RANK, embedding.shape[1])).astype(np.float32)
    pairs = {"token_embd.weight": (low, random.normal(size=(len(embedding), RANK)).astype(np.float32))}
    adapter = write_gguf_adapter(tmp_path / "a.gguf", pairs, **{"general.architecture": name})
    files = GGUFFiles(write_gguf(tmp_path / "m.gguf", metadata, tensors))
    expected = tuned(tensors, pairs, 8 / RANK)
    check_logits(files, metadata, expected, cache=tmp_path, adapter=adapter, max_difference=WIDE)


@pytest.mark.slow
def test_adapters_are_served_with_their_base(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ONWARD_CACHE_DIR", str(tmp_path / "cache"))
    metadata, tensors = tiny("llama")
    base = write_gguf(tmp_path / "base.gguf", metadata, tensors)
    write_gguf_adapter(tmp_path / "a.gguf", changes(tensors, "llama"))
    with onward.Onward(model=str(base), lora=(f"tuned={tmp_path / 'a.gguf'}",), kv_memory="8MB") as client:
        assert [each.id for each in client.models.list()][:2] == ["base", "tuned"]
        request = {"prompt": "abc", "max_tokens": 12, "temperature": 0}
        answers = [client.completions.create(model=name, **request) for name in ("base", "tuned")]  # type: ignore[call-overload]
    assert answers[0].choices[0].text != answers[1].choices[0].text
    assert answers[0].system_fingerprint != answers[1].system_fingerprint
    assert resolve(f"{base}+{tmp_path / 'a.gguf'}").id == "base+a.gguf"
    with pytest.raises(SetupError, match="--lora base=… has the name of a model"):
        compose(Settings(model=(str(base),), lora=(("base", str(tmp_path / "a.gguf")),)))


def test_replicas_of_a_cluster_have_no_adapters(tmp_path: Path) -> None:
    metadata, tensors = tiny("llama")
    base = write_gguf(tmp_path / "base.gguf", metadata, tensors)
    adapter = write_gguf_adapter(tmp_path / "a.gguf", changes(tensors, "llama"))
    with pytest.raises(SetupError, match="Replicas have no adapters"):
        start_engine(Settings(model=(f"{base}+{adapter}",)), lambda line: None, ExitStack())


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"peft_type": "IA3"}, "'IA3' adapter; Onward computes LORA"),
        ({"use_dora": True}, "DoRA"),
        ({"modules_to_save": ["lm_head"]}, "whole layers in addition to the adapter"),
        ({"bias": "all"}, "has biases"),
        ({"lora_alpha": "much"}, "not a number"),
        ({"lora_alpha": 10**400}, "states an alpha that is not a finite number"),
        ({"lora_alpha": -1e300, "use_rslora": True}, "states an alpha that is not a finite number"),
    ],
)
def test_what_is_not_computed_is_refused_by_name(config: dict[str, Any], words: str, tmp_path: Path) -> None:
    metadata, tensors = write_folder(tmp_path / "m", "llama")
    write_peft(tmp_path / "a", "llama", changes(tensors, "llama"), metadata, **config)
    with pytest.raises(ModelFolderError, match=words):
        resolve(f"{tmp_path / 'm'}+{tmp_path / 'a'}")


def test_adapters_of_other_models_are_refused(tmp_path: Path) -> None:
    metadata, tensors = tiny("llama")
    base = write_gguf(tmp_path / "base.gguf", metadata, tensors)
    pairs = changes(tensors, "llama")

    def refused(words: str, pairs: dict[str, tuple[Any, Any]], **changed: Any) -> None:
        adapter = write_gguf_adapter(tmp_path / "a.gguf", pairs, **changed)
        with pytest.raises(ModelFolderError, match=words):
            resolve(f"{base}+{adapter}")

    refused("made for 'qwen2', not for 'llama'", pairs, **{"general.architecture": "qwen2"})
    refused("is not a LoRA adapter, but a model", pairs, **{"general.type": "model"})
    for alpha in (math.inf, math.nan, 1e30):
        refused("states an alpha that is not a finite number", pairs, **{"adapter.lora.alpha": alpha})
    refused("was made for another model", {name: (low[:, :-2], high) for name, (low, high) in pairs.items()})
    refused("changes 'blk.9.attn_q.weight', which", {"blk.9.attn_q.weight": pairs["blk.0.attn_q.weight"]})
    taps = np.ones((RANK, 3), np.float32), np.ones((64, RANK), np.float32)
    norm = np.ones((RANK, 64), np.float32), np.ones((2, RANK), np.float32)
    base = write_gguf(tmp_path / "base.gguf", *tiny("nemotron_h"))
    for name in ("blk.0.ssm_norm.weight", "blk.0.ssm_a"):
        refused("numbers that multiply no input", {name: norm}, **{"general.architecture": "nemotron_h"})
    base = write_gguf(tmp_path / "base.gguf", *tiny("lfm2"))
    refused("changes convolutions", {"blk.0.shortconv.conv.weight": taps}, **{"general.architecture": "lfm2"})
    with pytest.raises(ModelFolderError, match=r"not a LoRA adapter: pass a folder with adapter_config\.json"):
        resolve(f"{base}+{tmp_path}")
    with pytest.raises(ModelFolderError, match="nowhere does not exist: pass a folder with"):
        with_adapter(resolve(str(base)), tmp_path / "nowhere")
    folder = write_story_folder(tmp_path / "exported")
    with pytest.raises(ModelFolderError, match=r"exported is OpenVINO IR\. Merge it before the export"):
        resolve(f"{folder}+{tmp_path / 'a.gguf'}")
