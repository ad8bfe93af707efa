"""Export the trained weights: float safetensors, then the int8 OpenVINO IR that ships."""

from __future__ import annotations

import re
import shutil
import tempfile
from pathlib import Path

import openvino
import torch

from training.checkpoint import RunFolder
from training.errors import RecipeError, convert_disk_errors
from training.files import read_json, replace_file, replace_json
from training.network import build_network
from training.presets import Preset
from training.tokenizer import END_OF_TEXT, FIM_PAD, load_tokenizer, special_ids

MAX_FOLDER_BYTES = 20_000_000
CONFIG_KEYS = (
    "architectures",
    "attention_bias",
    "bos_token_id",
    "eos_token_id",
    "head_dim",
    "hidden_act",
    "hidden_size",
    "initializer_range",
    "intermediate_size",
    "max_position_embeddings",
    "mlp_bias",
    "model_type",
    "num_attention_heads",
    "num_hidden_layers",
    "num_key_value_heads",
    "pad_token_id",
    "rms_norm_eps",
    "rope_scaling",
    "rope_theta",
    "tie_word_embeddings",
    "vocab_size",
)


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


def export_int8(folder: RunFolder) -> None:
    """Write the int8 weight-only stateful IR, its tokenizer and configuration to the run's model folder.

    Raises RecipeError if the disk is full.
    """
    from optimum.intel import OVModelForCausalLM, OVWeightQuantizationConfig

    with convert_disk_errors(folder.model), tempfile.TemporaryDirectory(dir=folder.path) as temporary:
        exported = Path(temporary)
        model = OVModelForCausalLM.from_pretrained(
            folder.float_model,
            export=True,
            stateful=True,
            compile=False,
            quantization_config=OVWeightQuantizationConfig(bits=8),
        )
        model.save_pretrained(exported)
        xml = exported / "openvino_model.xml"
        xml.write_text(without_provenance(xml.read_text(encoding="utf-8")), encoding="utf-8")
        final = Path(temporary) / "final"
        final.mkdir()
        for name in ("openvino_model.xml", "openvino_model.bin"):
            shutil.move(exported / name, final / name)
        shutil.copyfile(folder.tokenizer, final / "tokenizer.json")
        full_config = read_json(folder.float_model / "config.json")
        config = {key: full_config[key] for key in CONFIG_KEYS if key in full_config}
        replace_json(final / "config.json", config)
        _replace_folder_files(final, folder.model)


def without_provenance(xml: str) -> str:
    """Return the XML of an IR without the model-level runtime information (tool versions, options, paths)."""
    head, mark, tail = xml.rpartition("</edges>")
    return head + mark + re.sub(r"\s*<rt_info>.*</rt_info>", "", tail, flags=re.DOTALL)


def check_model_folder(path: Path) -> int:
    """Read the IR back; return the size of the folder in bytes. Raises RecipeError if it is too large to ship."""
    openvino.Core().read_model(path / "openvino_model.xml")
    size = sum(file.stat().st_size for file in path.iterdir() if file.is_file())
    if size > MAX_FOLDER_BYTES:
        raise RecipeError(f"{path} has {size:,} bytes; at most {MAX_FOLDER_BYTES:,} may ship.")
    return size


def install(model: Path, package: Path) -> None:
    """Copy the finished model into the package, file by file, each atomically."""
    _replace_folder_files(model, package)


def _replace_folder_files(source: Path, target: Path) -> None:
    """Copy every file of `source` to `target`, weights before the files that describe them, each atomically."""
    for file in sorted(source.iterdir(), key=lambda path: path.suffix != ".bin"):
        if file.is_file():
            replace_file(target / file.name, lambda part, file=file: shutil.copyfile(file, part))
