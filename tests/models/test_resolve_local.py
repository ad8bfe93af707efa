"""Where models are found, and under which names: folders of downloads, Ollama's manifests, adapters.

Sources: peft's LoraConfig (0.21) and `LoraLayer`, huggingface_hub's constants, Ollama's manifests.
"""

from __future__ import annotations

import hashlib
import json
import os
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from onward.errors import ModelNameError
from onward.models import hub
from onward.models.resolve import resolve
from tests.checkpoints.hugging_face import safetensors_bytes, write_folder
from tests.checkpoints.making import floats, write_gguf
from tests.checkpoints.tiny import HIDDEN, tiny
from tests.examples import slow_but
from tests.models.doors import command, hub_downloads, refusal, scores, shown

PROMPT = [token * 7 % 25 for token in range(30)]
RANDOM = np.random.default_rng(3)
LOW = RANDOM.normal(size=(2, HIDDEN)).astype(np.float32)
HIGH = RANDOM.normal(size=(HIDDEN, 2)).astype(np.float32)


def gguf(path: Path) -> Path:
    metadata, tensors = tiny("llama")
    path.parent.mkdir(parents=True, exist_ok=True)
    return write_gguf(path, metadata, tensors)


def peft(folder: Path, **stated: Any) -> Path:
    """An adapter as PEFT saves it."""
    folder.mkdir()
    common = {"peft_type": "LORA", "r": 2, "lora_alpha": 4, "target_modules": ["q_proj"], "bias": "none"}
    (folder / "adapter_config.json").write_text(json.dumps({**common, **stated}), encoding="utf-8")
    name = "base_model.model.model.layers.0.self_attn.q_proj"
    weights = {f"{name}.lora_A.weight": LOW, f"{name}.lora_B.weight": HIGH}
    (folder / "adapter_model.safetensors").write_bytes(safetensors_bytes(weights))
    return folder


def gguf_adapter(path: Path, **stated: Any) -> Path:
    metadata = {
        "general.architecture": "llama", "general.type": "adapter", "adapter.type": "lora", "adapter.lora.alpha": 8.0,
        **stated,
    }  # fmt: skip
    tensors = {"blk.0.attn_q.weight.lora_a": floats(LOW), "blk.0.attn_q.weight.lora_b": floats(HIGH)}
    return write_gguf(path, metadata, tensors)


NOT_PLAIN: dict[str, dict[str, Any]] = {
    "alora_invocation_tokens": {"alora_invocation_tokens": [1, 2, 3]},
    "pissa": {"init_lora_weights": "pissa"},
    "pissa_niter_4": {"init_lora_weights": "pissa_niter_4"},
    "olora": {"init_lora_weights": "olora"},
    "corda": {"init_lora_weights": "corda"},
    "loftq": {"init_lora_weights": "loftq"},
    "init_lora_weights": {"init_lora_weights": ["pissa"]},
    "target_parameters": {"target_parameters": ["mlp.experts.gate_up_proj"]},
    "use_qalora": {"use_qalora": True},
    "arrow_config": {"arrow_config": {"top_k": 2}},
    "use_bdlora": {"use_bdlora": {"nblocks": 2}},
    "use_dora": {"use_dora": True},
    "alpha_pattern": {"alpha_pattern": {"q_proj": 16}},
    "modules_to_save": {"modules_to_save": ["lm_head"]},
    "trainable_token_indices": {"trainable_token_indices": [3]},
    "lora_bias": {"lora_bias": True},
    "next_years_config": {"next_years_config": {"x": 1}},
}
PLAIN: dict[str, dict[str, Any]] = {
    "gaussian": {"init_lora_weights": "gaussian"},
    "the usual beginning": {"init_lora_weights": True},
    "singular vectors of activations": {"init_lora_weights": "eva", "eva_config": {"rho": 2.0}},
    "other ranks elsewhere": {"rank_pattern": {"q_proj": 2}, "r": 8},
    "a layer of its own order": {"fan_in_fan_out": True},
    "nothing to save": {"modules_to_save": [], "next_years_config": {}, "megatron_core": "megatron.core"},
    "some layers": {"layers_to_transform": [0]},
}


@pytest.mark.parametrize("name", NOT_PLAIN)
def test_an_adapter_that_is_not_a_plain_sum_is_refused_by_name(name: str, tmp_path: Path) -> None:
    write_folder(tmp_path / "base", "llama")
    assert name in refusal(f"{tmp_path / 'base'}+{peft(tmp_path / 'a', **NOT_PLAIN[name])}")


@pytest.mark.parametrize("name", slow_but(["singular vectors of activations", "other ranks elsewhere"], PLAIN))
def test_what_only_training_needs_to_know_changes_nothing(name: str, tmp_path: Path) -> None:
    write_folder(tmp_path / "base", "llama")
    expected, found = (
        scores(f"{tmp_path / 'base'}+{peft(tmp_path / kind, **stated)}", PROMPT, tmp_path)
        for kind, stated in {"plain": {}, "stated": PLAIN[name]}.items()
    )
    assert found == expected


def test_a_gguf_adapter_for_certain_tokens_is_refused(tmp_path: Path) -> None:
    base = gguf(tmp_path / "base.gguf")
    named = gguf_adapter(tmp_path / "a.gguf", **{"adapter.lora.task_name": "a", "adapter.alora.invocation_tokens": []})
    shown(f"{base}+{named}")
    adapter = gguf_adapter(tmp_path / "b.gguf", **{"adapter.alora.invocation_tokens": [1, 2]})
    assert "'adapter.alora.invocation_tokens'" in refusal(f"{base}+{adapter}")


def manifest(root: Path, name: str, layers: dict[str, Path], place: str = "registry.ollama.ai/library") -> str:
    """A model of Ollama, `name[:tag]` of a host and an owner; the names of the layers are their kinds."""
    stated = []
    (root / "blobs").mkdir(parents=True, exist_ok=True)
    for kind, path in layers.items():
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
        (root / "blobs" / f"sha256-{digest}").write_bytes(path.read_bytes())
        stated.append({"mediaType": f"application/vnd.ollama.image.{kind}", "digest": f"sha256:{digest}"})
    model, _, tag = name.partition(":")
    path = root / "manifests" / place / model / (tag or "latest")
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps({"layers": stated}), encoding="utf-8")
    return f"ollama:{name}"


def test_the_adapter_of_a_manifest_is_merged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OLLAMA_MODELS", str(tmp_path / "ollama"))
    base, adapter = gguf(tmp_path / "base.gguf"), gguf_adapter(tmp_path / "a.gguf")
    tuned = manifest(tmp_path / "ollama", "tuned", {"model": base, "adapter": adapter})
    assert resolve(tuned, allow_download=False).id == "tuned"
    assert scores(tuned, PROMPT, tmp_path) == scores(f"{base}+{adapter}", PROMPT, tmp_path)
    assert "has an adapter already" in refusal(f"{tuned}+{adapter}")


def test_the_folder_of_ollamas_service_is_looked_into(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OLLAMA_MODELS", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setattr("onward.models.ollama._OF_SERVICE", tmp_path / "service")
    words = refusal("ollama:plain")
    assert str(tmp_path / "home/.ollama/models") in words and str(tmp_path / "service") in words
    name = manifest(tmp_path / "service", "plain", {"model": gguf(tmp_path / "m.gguf")})
    assert shown(name)["id"] == "plain"
    monkeypatch.setenv("OLLAMA_MODELS", "~/there")
    manifest(tmp_path / "home/there", "other", {"model": gguf(tmp_path / "m.gguf")})
    assert shown("ollama:other")["id"] == "other"


def test_weights_that_a_manifest_of_ollama_names_are_served_or_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its template, parameters and image projector do not change a completion; weights that are not in a GGUF file, and
    other names, are refused."""
    monkeypatch.setenv("OLLAMA_MODELS", f"{tmp_path}/ollama/")
    root, model, other = tmp_path / "ollama", gguf(tmp_path / "m.gguf"), tmp_path / "other"
    other.write_text("{}", encoding="utf-8")
    plain = manifest(root, "plain", {"template": other, "model": model, "params": other, "license": other})
    vision = manifest(root, "vision", {"model": model, "projector": other})
    manifest(root, "Thing-GGUF:Q4_K_M", {"model": model}, "hf.co/someone")
    tensors = manifest(root, "tensors", {"tensor": other})
    for name in (plain, vision, "ollama:hf.co/someone/Thing-GGUF:Q4_K_M", "ollama:plain:latest"):
        assert shown(name)["id"] == name.removeprefix("ollama:")
    assert "not a manifest of Ollama that names a model" in refusal(tensors)
    for name in ("ollama:Plain", "ollama:plain:LATEST", "ollama:missing", "ollama:someone/Thing-GGUF"):
        words = refusal(name)
        assert str(root) in words and "OLLAMA_MODELS" in words, name
    monkeypatch.setenv("OLLAMA_MODELS", "")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert str(tmp_path / "home/.ollama/models") in refusal(plain)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")
def test_a_pipe_as_a_manifest_is_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OLLAMA_MODELS", str(tmp_path))
    path = tmp_path / "manifests/registry.ollama.ai/library/pipe"
    path.mkdir(parents=True)
    os.mkfifo(path / "latest")
    assert "is not a regular file" in refusal("ollama:pipe")


def test_a_link_keeps_its_name(tmp_path: Path) -> None:
    """The hub's cache has files by their digests, and links with names."""
    blob = gguf(tmp_path / "blobs" / "0123456789abcdef")
    (tmp_path / "Tiny-Q8_0.gguf").symlink_to(blob)
    assert shown(tmp_path / "Tiny-Q8_0.gguf")["id"] == "Tiny-Q8_0"
    write_folder(tmp_path / "snapshots" / "fedcba", "llama")
    (tmp_path / "tiny").symlink_to(tmp_path / "snapshots" / "fedcba")
    assert shown(tmp_path / "tiny")["id"] == "tiny"


@pytest.mark.parametrize("name", ["models/tiny.gguf", "tiny.gguf", "sub/TINY.GGUF"])
def test_a_missing_gguf_file_is_not_looked_up_on_the_hub(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert f"{name} does not exist" in refusal(name)


def test_a_name_that_is_not_utf_8_is_reported_in_one_message(tmp_path: Path) -> None:
    path = tmp_path / os.fsdecode(b"bad\xff.gguf")
    try:
        gguf(path)
    except OSError:
        pytest.skip("the file system takes UTF-8 only")
    assert "has a name that is not UTF-8: rename it" in refusal(os.fsdecode(os.fsencode(path)))
    adapter, manifest = gguf_adapter(path.with_suffix(".adapter.gguf")), tmp_path / "manifests" / path.name
    manifest.parent.mkdir()
    manifest.touch()
    for other in (f"{gguf(tmp_path / 'm.gguf')}+{adapter}", str(manifest)):
        assert "has a name that is not UTF-8: rename it" in refusal(other), ascii(other)


NAMES = (
    "my model.gguf", "模型 ü.gguf", "a,b.gguf", "a=b.gguf", "a+b.gguf", "a@b.gguf", "a:b.gguf", "a#b%20c.gguf",
    "a'b\"c.gguf", "-dash.gguf", "new\nline.gguf", "😀.gguf", "UPPER.GGUF", "no suffix", "x" * 200 + ".gguf",
)  # fmt: skip


def test_a_file_may_have_any_name(tmp_path: Path) -> None:
    for name in NAMES:
        path = tmp_path / name
        try:
            gguf(path)
        except (OSError, UnicodeEncodeError):  # a file system, or an encoding, that does not allow the name
            continue
        assert shown(path)["id"] == Path(name).stem, name
    path = gguf(tmp_path / "a=b, c+d@e:f'g #1" / 'h=i, j+k@l:m "n".gguf')
    assert len(scores(path, PROMPT, tmp_path / "cache")) == len(PROMPT) - 1
    adapter = gguf_adapter(tmp_path / "a+b, c=d.gguf")
    assert shown(f"{path}+{adapter}")["id"] == f"{path.stem}+{adapter.name}"


def test_a_projector_next_to_a_model_is_not_a_second_model(tmp_path: Path) -> None:
    gguf(tmp_path / "tiny" / "tiny.gguf")
    for name in ("mmproj-tiny-f16.gguf", "tiny.imatrix.gguf", "tiny-mmproj.GGUF"):
        gguf(tmp_path / "tiny" / name)
    assert shown(tmp_path / "tiny")["id"] == "tiny"
    gguf(tmp_path / "tiny" / "another.GGUF")
    assert "contains several models (another.GGUF, tiny.gguf)" in refusal(tmp_path / "tiny")


def cached(home: Path, repository: str, name: str = "llama") -> Path:
    """A repository in the hub's cache, of which another program downloaded some files."""
    folder = home / "hub" / f"models--{repository.replace('/', '--')}"
    write_folder(folder / "snapshots" / "abc123", name)
    (folder / "refs").mkdir()
    (folder / "refs" / "main").write_text("abc123", encoding="utf-8")
    return folder


@pytest.mark.parametrize("variables", [
    {"HF_HOME": "{home}/hf"}, {"HF_HOME": "~/hf"}, {"HF_HOME": "$HOME/hf"}, {"HF_HUB_CACHE": "~/hf/hub"},
    {"HUGGINGFACE_HUB_CACHE": "{home}/hf/hub"}, {"HF_HOME": "/none", "HF_HUB_CACHE": "{home}/hf/hub"},
])  # fmt: skip
def test_the_hubs_cache_is_where_its_library_says(
    variables: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("HF_HOME", "HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    for name, value in variables.items():
        monkeypatch.setenv(name, value.format(home=tmp_path))
    cached(tmp_path / "hf", "org/thing")
    code, out, _ = command("models", "list", "--format", "json")
    assert code == 0 and "org/thing" in [each["id"] for each in json.loads(out)["data"]]


def test_a_cache_that_another_program_filled_in_part_is_served_offline(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    monkeypatch.delenv("HF_HUB_CACHE", raising=False)
    folder = cached(tmp_path, "org/thing")
    assert resolve("org/thing", allow_download=False).path == folder / "snapshots" / "abc123"
    assert resolve("org/thing@abc123", allow_download=False).id == "org/thing"
    assert shown("org/thing")["problems"] == []


@pytest.fixture
def asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """Patterns of files that were downloaded, from tmp_path / "repository"."""
    asked: list[list[str]] = []

    def copy(*, allow_patterns: list[str], **_: Any) -> str:
        asked.append(allow_patterns)
        (tmp_path / "snapshot").mkdir(exist_ok=True)
        for path in (tmp_path / "repository").iterdir():
            if any(fnmatch(path.name, pattern) for pattern in allow_patterns):
                (tmp_path / "snapshot" / path.name).write_bytes(path.read_bytes())
        return str(tmp_path / "snapshot")

    hub_downloads(monkeypatch, copy)
    return asked


def test_the_files_that_an_index_lists_are_downloaded_whatever_their_names(
    tmp_path: Path, asked: list[list[str]]
) -> None:
    write_folder(tmp_path / "repository", "llama", num_files=2)
    index = tmp_path / "repository" / "model.safetensors.index.json"
    index.write_text(index.read_text(encoding="utf-8").replace("model-", "weights.[a]-"), encoding="utf-8")
    for path in (tmp_path / "repository").glob("model-*"):
        path.rename(path.with_name(path.name.replace("model-", "weights.[a]-")))
    found = hub.fetch(hub.HubName("org/name", None), allow_download=True)
    assert shown(found)["format"] == "safetensors"
    assert len(asked[-1]) == 2


def test_weights_that_are_quantised_in_a_way_that_is_not_read_are_not_downloaded(
    tmp_path: Path, asked: list[list[str]]
) -> None:
    write_folder(tmp_path / "repository", "llama", num_files=2)
    config = tmp_path / "repository" / "config.json"
    stated = json.loads(config.read_text(encoding="utf-8"))
    stated["quantization_config"] = {"quant_method": "modelopt", "quant_algo": "NVFP4_AWQ"}
    config.write_text(json.dumps(stated), encoding="utf-8")
    with pytest.raises(
        ModelNameError, match=r"The weights of org/name were not downloaded\..*'modelopt' \(NVFP4_AWQ\)"
    ):
        hub.fetch(hub.HubName("org/name", None), allow_download=True)
    assert len(asked) == 1
    assert resolve("org/name", must_be_computed=False).files.format == "safetensors"  # for vLLM
    assert len(asked) == 3
    for path in (tmp_path / "snapshot").glob("*.safetensors"):
        path.unlink()
    stated["quantization_config"] = {"quant_method": "modelopt", "quant_algo": "FP8"}
    config.write_text(json.dumps(stated), encoding="utf-8")
    hub.fetch(hub.HubName("org/name", None), allow_download=True)
    assert len(asked) == 5
