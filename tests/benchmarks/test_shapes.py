"""Files of random weights in the shapes of models: each kind loads and computes, and what operations take is listed."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from benchmarks.shapes import SHAPES, Shape, write

from benchmarks import mixture
from onward.engine.model import Row
from onward.model_files.gguf import GGUFFiles
from onward.runtimes.base import RuntimeOptions
from onward.runtimes.table import load_model
from tests.benchmarks.test_operations import measured
from tests.examples import slow_but

pytestmark = pytest.mark.usefixtures("small_memory")

SMALL = {
    "embedding_length": 256, "feed_forward_length": 256, "attention.head_count": 4, "context_length": 128,
    "expert_count": 4, "expert_used_count": 2, "expert_feed_forward_length": 256,
    "expert_shared_feed_forward_length": 256, "attention.key_length": 64, "attention.value_length": 64,
    "rope.dimension_count": 32, "rope.dimension_sections": [6, 6, 4, 0], "ssm.state_size": 16, "ssm.group_count": 1,
    "ssm.time_step_rank": 4, "ssm.inner_size": 256, "attention.head_count_kv": 2,
}  # fmt: skip


def small(name: str) -> Shape:
    """The shape of a model of the same kind that is computed at once."""
    shape = SHAPES[name]
    stated = {key: SMALL.get(key, value) for key, value in shape.stated.items()}
    heads = shape.stated["attention.head_count_kv"]
    stated["attention.head_count_kv"] = [2 * bool(each) for each in heads] if isinstance(heads, list) else min(heads, 2)
    return replace(shape, vocab_size=600, stated=stated)


@pytest.mark.parametrize("name", slow_but(["qwen3.5-0.8b", "granite-4-h-tiny"], SHAPES))
def test_each_kind_of_file_is_computed(name: str, tmp_path: Path) -> None:
    write(tmp_path / "m.gguf", small(name), 6)
    options = RuntimeOptions(threads=1, kv_memory=8_000_000)
    model = load_model(GGUFFiles(tmp_path / "m.gguf"), options, lambda line: None).model
    try:
        prefill, decode = mixture.of_onward(model, rows=3, prompt=40, out=4, seed=1)
        assert prefill > 0 < decode
        logits = model.evaluate([Row(0, [7], 44, range(2), 1)])
        assert np.isfinite(logits).all() and 0.1 < logits.std() < 100
    finally:
        model.close()


def test_states_are_taken_on_whenever_an_operation_is_measured(tmp_path: Path) -> None:
    write(tmp_path / "m.gguf", small("qwen3.5-0.8b"), 4)
    flags = ("--rows", "2", "--context", "40", "--prefill", "70", "--runs", "2")
    steps = measured("--model", str(tmp_path / "m.gguf"), *flags)["steps"]
    for step in steps.values():
        found = step["operations"]
        assert found["delta rule"]["count"] == found["short convolutions"]["count"] == 3


def test_rows_use_different_experts_and_their_weights_are_counted(tmp_path: Path) -> None:
    write(tmp_path / "m.gguf", small("granite-4-h-tiny"), 6)
    steps = measured("--model", str(tmp_path / "m.gguf"), "--rows", "1", "8", "--context", "40", "--runs", "2")["steps"]
    one, eight = (step["operations"]["experts Q4_K 256 x 256"] for step in steps.values())
    matrix = 256 * 144
    assert one["bytes"] == one["count"] * SMALL["expert_used_count"] * matrix
    assert one["bytes"] < eight["bytes"] <= one["count"] * SMALL["expert_count"] * matrix
