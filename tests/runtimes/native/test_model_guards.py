"""No kernel reads or writes past the memory that it was given."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.checkpoints.mtp import predicting_layer, write_predicting_gguf
from tests.checkpoints.tiny import write_tiny
from tests.examples import slow_but

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux", reason="mprotect as Linux has it"),
]

NAMES = (
    "llama, untied", "gemma3", "phi3", "gpt2", "cohere2", "olmo2", "qwen3moe", "qwen2moe", "gpt-oss", "gemma2", "lfm2",
    "lfm2moe", "gemma3n", "gemma3n, stated", "gemma4", "gemma4, experts", "qwen35", "qwen35, equal heads",
    "granitehybrid", "granitehybrid, groups", "qwen35moe", "qwen3next", "falcon-h1", "nemotron_h", "nemotron_h_moe",
    "deepseek2", "deepseek2, queries joined", "deepseek2, groups", "deepseek2, groups of sigmoids",
)  # fmt: skip
REPRESENTATIVES = (
    "llama, untied", "gemma3", "gpt2", "qwen3moe", "gpt-oss", "lfm2", "gemma3n", "gemma4", "qwen35", "granitehybrid",
    "falcon-h1", "deepseek2",
)  # fmt: skip
"""Every kind of layer. The debug form of the kernels has looked at more (test_model_bounds.py)."""


def run(argument: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tests.runtimes.native.guarded", argument]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("name", slow_but([], NAMES, REPRESENTATIVES))
def test_no_kernel_leaves_its_memory(name: str, tmp_path: Path) -> None:
    path = write_tiny(tmp_path / "m.gguf", name)
    ran = run(str(path))
    assert ran.returncode == 0, ran.stderr


@pytest.mark.parametrize("name", ["qwen35", "qwen35moe", "deepseek2, groups of sigmoids"])
def test_no_kernel_of_a_predicting_layer_leaves_its_memory(name: str, tmp_path: Path) -> None:
    ran = run(str(write_predicting_gguf(tmp_path / "m.gguf", name, predicting_layer(name))))
    assert ran.returncode == 0, ran.stderr


def test_guard_pages_are_in_place() -> None:
    assert run("--overrun").returncode < 0
