"""From the trained weights to what ships: float safetensors, then an int8 OpenVINO IR."""

from __future__ import annotations

import re
import shutil
import tempfile
from pathlib import Path

import openvino
import torch

from training.checkpoint import RunFolder
from training.errors import RecipeError, disk_errors_explained
from training.files import read_json, replace_file, replace_json
from training.network import build_network
from training.presets import Preset
from training.tokenizer import END_OF_TEXT, FIM_PAD, load_tokenizer, special_ids

LARGEST_FOLDER = 20_000_000
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
    """Write the float32 weights in transformers' layout (safetensors) with the tokenizer beside them."""
    ids = special_ids(load_tokenizer(folder.tokenizer))
    network = build_network(preset.shape, ids[END_OF_TEXT], ids[FIM_PAD], preset.seed)
    network.load_state_dict(masters, strict=False)
    network.tie_weights()
    with disk_errors_explained(folder.float_model), tempfile.TemporaryDirectory(dir=folder.path) as temporary:
        network.save_pretrained(temporary)
        shutil.copyfile(folder.tokenizer, Path(temporary) / "tokenizer.json")
        _replace_folder_files(Path(temporary), folder.float_model)


def export_int8(folder: RunFolder) -> None:
    """Write the int8 weight-only stateful IR, its tokenizer and its configuration to the run's model folder."""
    from optimum.intel import OVModelForCausalLM, OVWeightQuantizationConfig

    with disk_errors_explained(folder.model), tempfile.TemporaryDirectory(dir=folder.path) as temporary:
        made = Path(temporary)
        model = OVModelForCausalLM.from_pretrained(
            folder.float_model,
            export=True,
            stateful=True,
            compile=False,
            quantization_config=OVWeightQuantizationConfig(bits=8),
        )
        model.save_pretrained(made)
        xml = made / "openvino_model.xml"
        xml.write_text(without_provenance(xml.read_text(encoding="utf-8")), encoding="utf-8")
        wanted = Path(temporary) / "wanted"
        wanted.mkdir()
        for name in ("openvino_model.xml", "openvino_model.bin"):
            shutil.move(made / name, wanted / name)
        shutil.copyfile(folder.tokenizer, wanted / "tokenizer.json")
        whole = read_json(folder.float_model / "config.json")
        config = {key: whole[key] for key in CONFIG_KEYS if key in whole}
        replace_json(wanted / "config.json", config)
        _replace_folder_files(wanted, folder.model)


def without_provenance(xml: str) -> str:
    """An IR's XML without the model-level runtime information (tool versions, options, paths)."""
    head, mark, tail = xml.rpartition("</edges>")
    return head + mark + re.sub(r"\s*<rt_info>.*</rt_info>", "", tail, flags=re.DOTALL)


def check_model_folder(path: Path) -> int:
    """Read the IR back, check the folder's size, and return it in bytes."""
    openvino.Core().read_model(path / "openvino_model.xml")
    size = sum(file.stat().st_size for file in path.iterdir() if file.is_file())
    if size > LARGEST_FOLDER:
        raise RecipeError(f"{path} holds {size:,} bytes; what ships must stay within {LARGEST_FOLDER:,}.")
    return size


def install(model: Path, package: Path) -> None:
    """Copy the finished model into the package, file by file, each atomically."""
    _replace_folder_files(model, package)


def _replace_folder_files(made: Path, final: Path) -> None:
    """Copy every file of `made` over its namesake in `final`, weights before what describes them."""
    for file in sorted(made.iterdir(), key=lambda path: path.suffix != ".bin"):
        if file.is_file():
            replace_file(final / file.name, lambda part, source=file: shutil.copyfile(source, part))
