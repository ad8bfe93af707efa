"""Models made from checkpoints compute what their architectures' documents say: log-probabilities of a float64
reference."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from onward.engine.model import Row
from onward.model_files.base import ModelFiles
from onward.model_files.gguf import GGUFFiles
from onward.runtimes.base import LoadedModel, RuntimeOptions
from onward.runtimes.table import load_model
from tests.checkpoints.making import write_gguf
from tests.checkpoints.reference import Reference
from tests.checkpoints.tiny import CONTEXT, HEADS, HIDDEN, LAYERS, tiny
from tests.examples import slow_but

MAX_DIFFERENCE = 1e-4
"""Of a log-probability, in nats."""
NUM_TOKENS = 70
"""More than two KV blocks, and four of gemma3's windows."""


def log_softmax(logits: NDArray[np.floating]) -> NDArray[np.float64]:
    shifted = logits.astype(np.float64) - logits.max(axis=-1, keepdims=True)
    found: NDArray[np.float64] = shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))
    return found


def check_logits(
    files: ModelFiles,
    metadata: dict[str, Any],
    tensors: dict[str, NDArray[np.float32]],
    *,
    cache: Path,
    adapter: Path | None = None,
    asked: int | None = None,
    served: int = CONTEXT,
    long_rope: str = "short",
    max_difference: float = MAX_DIFFERENCE,
) -> LoadedModel:
    """Compare a model with the reference, which gets the checkpoint by GGUF's names. Returns the closed model.

    `asked` and `served` are contexts; `long_rope`: see Reference.
    """
    tokens = np.random.default_rng(3).integers(0, len(tensors["token_embd.weight"]), NUM_TOKENS).tolist()
    reference = Reference(metadata, tensors)
    reference.long_rope = long_rope
    expected = log_softmax(reference.logits(tokens))
    options = RuntimeOptions(threads=1, precision="exact", kv_memory=8_000_000, cache_dir=cache)
    loaded = load_model(files, replace(options, context_length=asked), lambda line: None)
    model, name = loaded.model, ""
    try:
        if adapter is not None:
            assert loaded.adapters is not None
            name, read = loaded.adapters.read(adapter)
            loaded.adapters.add(name, read)
        row = Row(0, tokens, 0, range(model.shape.blocks_for(NUM_TOKENS)), NUM_TOKENS, name)
        found = log_softmax(model.evaluate([row]))
        assert model.context_length == served
    finally:
        model.close()
    assert expected.min() < -8  # logits must differ clearly: nearly equal ones would agree with anything
    assert np.abs(found - expected).max() < max_difference
    return loaded


OF_FOLDERS = {"qwen2, yarn", "qwen2, mimo", "dots1, window", "llama4, dense", "cohere2moe, sum", "gptj, codegen"}
"""Stated in a way that llama.cpp does not read, or in folders alone."""


REPRESENTATIVES = ["llama, yarn", "olmo2", "starcoder2", "qwen2moe"]
"""The tests of the native runtime compare all, with a smaller tolerance (tests/runtimes/native/test_model.py)."""


@pytest.mark.parametrize("name", REPRESENTATIVES)
def test_log_probabilities_are_those_of_the_reference(name: str, tmp_path: Path) -> None:
    metadata, tensors = tiny(name)
    path = write_gguf(tmp_path / "m.gguf", metadata, tensors)
    check_logits(GGUFFiles(path), metadata, tensors, cache=tmp_path)


@pytest.mark.parametrize("name", slow_but(["hunyuan-dense"], ["hunyuan-dense", "llama4"]))
@pytest.mark.parametrize("magnitude", [0.25, 3.0])
def test_norms_after_the_rotation_take_its_magnitude_out_again(magnitude: float, name: str, tmp_path: Path) -> None:
    """All but what it is to their epsilon, which is large here."""
    metadata, tensors = tiny(name)
    stated = {"rope.scaling.attn_factor": magnitude, "attention.layer_norm_rms_epsilon": 0.5}
    metadata |= {f"{name}.{key}": value for key, value in stated.items()}
    path = write_gguf(tmp_path / "m.gguf", metadata, tensors)
    check_logits(GGUFFiles(path), metadata, tensors, cache=tmp_path)


_SCALE = {"attention.scale": (HIDDEN / HEADS) ** -0.5}
BY_DEPTH: dict[str, tuple[int, dict[str, Any]]] = {
    "exaone4": (64, {"attention.sliding_window": 4096, "attention.sliding_window_pattern": 4}),
    "gemma2": (46, _SCALE),
    "gemma3": (62, _SCALE),
}
"""Models that llama.cpp knows by their number of layers (EXAONE 4 32B, Gemma 2 and 3 27B), and what their files do not
state of them."""


@pytest.mark.slow
@pytest.mark.parametrize("name", BY_DEPTH)
def test_models_that_are_recognised_by_their_number_of_layers_have_settings_of_their_own(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    depth, meant = BY_DEPTH[name]
    monkeypatch.setitem(LAYERS, name, depth)
    metadata, tensors = tiny(name)
    path = write_gguf(tmp_path / "m.gguf", metadata, tensors)
    meant = {f"{name}.{key}": value for key, value in meant.items()}
    check_logits(GGUFFiles(path), metadata | meant, tensors, cache=tmp_path, asked=128, served=128)
