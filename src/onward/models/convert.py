"""Writes a model as an OpenVINO IR folder, for whoever wants to keep or share what Onward makes of a file."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from onward.checkpoints.paths import is_gguf
from onward.errors import SetupError
from onward.models.resolve import ResolvedModel
from onward.runtimes.base import Progress
from onward.runtimes.checkpoint_format import convert_checkpoint
from onward.runtimes.options import RuntimeOptions, WeightForm


def convert(
    found: ResolvedModel,
    folder: Path,
    *,
    precision: Literal["fast", "exact"],
    weights: WeightForm,
    cache_dir: Path,
    progress: Progress,
) -> None:
    """Write a GGUF or safetensors model, with its adapter, to a folder that does not exist. Slow; blocks. Raises
    SetupError."""
    if folder.exists():
        raise SetupError(f"{folder} exists: choose a folder that does not exist.")
    if not found.format.takes_adapters:
        raise SetupError(f"{found.path} is {found.format.name} already: copy the folder.")
    first = found.format.files(found.path)[0]
    options = RuntimeOptions(precision=precision, weights=weights, cache_dir=cache_dir, adapter=found.adapter)
    convert_checkpoint(first if is_gguf(first) else found.path, folder, options, progress)
