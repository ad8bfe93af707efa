"""LongRoPE: the requested context length selects the factors, for GGUF files and folders."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from onward.errors import CheckpointError, SetupError
from onward.model_files.checkpoint import CheckpointFiles
from onward.model_files.gguf import GGUFFiles
from onward.model_files.safetensors import SafetensorsFiles
from onward.runtimes.base import RuntimeOptions
from onward.runtimes.table import load_model
from tests.checkpoints.hugging_face import write_folder
from tests.checkpoints.making import write_gguf
from tests.checkpoints.test_architectures import check_logits
from tests.checkpoints.tiny import CONTEXT, tiny

FIRST = 128
"""The context of the first training."""
SHORT, LONG = [1.5] * 4 + [2.0] * 4, [3.0] * 4 + [7.0] * 4
MAGNITUDE = float(np.sqrt(1 + np.log(CONTEXT / FIRST) / np.log(FIRST)))
"""Of queries and keys, by the rule of Phi 3's authors."""

Made = tuple[CheckpointFiles, dict[str, Any], dict[str, Any]]


@pytest.fixture(params=["gguf", "folder"])
def made(request: pytest.FixtureRequest, tmp_path: Path) -> Made:
    """Files, and the checkpoint by GGUF's names."""
    factors = {f"rope_factors_{name}.weight": np.asarray(values, np.float32)
               for name, values in {"short": SHORT, "long": LONG}.items()}  # fmt: skip
    stated = {"phi3.rope.scaling.attn_factor": MAGNITUDE, "phi3.rope.scaling.original_context_length": FIRST}
    if request.param == "gguf":
        metadata, tensors = tiny("phi3")
        metadata, tensors = metadata | stated, tensors | factors
        path = write_gguf(tmp_path / "m.gguf", metadata, tensors)
        return GGUFFiles(path), metadata, tensors
    metadata, tensors = write_folder(tmp_path / "m", "phi3")
    config = json.loads((tmp_path / "m/config.json").read_text(encoding="utf-8"))
    config |= {
        "rope_scaling": {"type": "longrope", "short_factor": SHORT, "long_factor": LONG},
        "original_max_position_embeddings": FIRST,
    }
    (tmp_path / "m/config.json").write_text(json.dumps(config), encoding="utf-8")
    return SafetensorsFiles(tmp_path / "m"), metadata | stated, tensors | factors


def test_the_context_that_is_asked_for_decides_about_the_positions(made: Made, tmp_path: Path) -> None:
    first = check_logits(*made, cache=tmp_path, served=FIRST)
    assert any(f"takes up to {CONTEXT}" in note and "--context-length" in note for note in first.notes)
    smaller = check_logits(*made, cache=tmp_path, asked=100, served=100)
    assert smaller.fingerprint == first.fingerprint
    longer = check_logits(*made, cache=tmp_path, asked=FIRST + 1, served=FIRST + 1, long_rope="long")
    longest = check_logits(*made, cache=tmp_path, asked=CONTEXT, served=CONTEXT, long_rope="long")
    assert first.fingerprint != longer.fingerprint == longest.fingerprint
    assert not longest.notes
    files, *_ = made
    with pytest.raises(SetupError, match=f"was made for {CONTEXT}"):
        load_model(files, RuntimeOptions(context_length=CONTEXT + 1, cache_dir=tmp_path), lambda line: None)
    facts = files.facts()
    assert (facts["context_length"], facts["original_context_length"]) == (CONTEXT, FIRST)


@pytest.mark.parametrize(
    ("factors", "words"),
    [
        ({"short": 8}, "no tensor 'rope_factors_long.weight'"),
        ({"short": 8, "long": 6}, "'rope_factors_long.weight' has the shape"),
    ],
)
def test_factors_that_do_not_fit_are_refused(factors: dict[str, int], words: str, tmp_path: Path) -> None:
    metadata, tensors = tiny("phi3")
    tensors |= {f"rope_factors_{name}.weight": np.ones(count, np.float32) for name, count in factors.items()}
    path = write_gguf(tmp_path / "m.gguf", metadata, tensors)
    [problem] = GGUFFiles(path).contents_problems()
    assert words in problem
    with pytest.raises(CheckpointError, match=words):
        load_model(GGUFFiles(path), RuntimeOptions(cache_dir=tmp_path), lambda line: None)
