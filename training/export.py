"""Export the trained weights: float safetensors, then the GGUF file that ships."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

import torch

from training.checkpoint import RunFolder
from training.errors import RecipeError, convert_disk_errors
from training.files import replace_file
from training.gguf_file import STORYTELLER, convert
from training.network import build_network
from training.presets import Preset
from training.tokenizer import END_OF_TEXT, FIM_PAD, load_tokenizer, special_ids

MAX_FOLDER_BYTES = 20_000_000
FILE_NAME = "storyteller.gguf"


def save_float_model(folder: RunFolder, preset: Preset, masters: dict[str, torch.Tensor]) -> None:
    """Write the float32 weights in transformers' layout (safetensors) and the tokenizer. Raises RecipeError."""
    ids = special_ids(load_tokenizer(folder.tokenizer))
    network = build_network(preset.shape, ids[END_OF_TEXT], ids[FIM_PAD], preset.seed)
    network.load_state_dict(masters, strict=False)
    network.tie_weights()
    with convert_disk_errors(folder.float_model), tempfile.TemporaryDirectory(dir=folder.path) as temporary:
        network.save_pretrained(temporary)
        shutil.copyfile(folder.tokenizer, Path(temporary) / "tokenizer.json")
        _replace_folder_files(Path(temporary), folder.float_model)


def export_gguf(folder: RunFolder) -> None:
    """Write the model that ships, one GGUF file, to the run's model folder. Raises RecipeError if the disk is full."""
    replace_file(folder.model / FILE_NAME, lambda part: convert(folder.float_model, part, STORYTELLER))


def check_model_folder(path: Path) -> int:
    """Return the size of the folder in bytes. Raises RecipeError if it is too large to ship."""
    size = sum(file.stat().st_size for file in path.iterdir() if file.is_file())
    if size > MAX_FOLDER_BYTES:
        raise RecipeError(f"{path} has {size:,} bytes; at most {MAX_FOLDER_BYTES:,} may ship.")
    return size


def install(model: Path, package: Path) -> None:
    """Copy the finished model into the package, file by file, each atomically."""
    _replace_folder_files(model, package)


def _replace_folder_files(source: Path, target: Path) -> None:
    """Copy every file of `source` to `target`, each atomically."""
    for file in sorted(source.iterdir()):
        if file.is_file():
            replace_file(target / file.name, lambda part, file=file: shutil.copyfile(file, part))
