"""The built-in model as a folder, as exporters write models: its tokenizer next to weights that nothing reads."""

from __future__ import annotations

import functools
import json
from pathlib import Path

from onward.checkpoints.read import read_checkpoint
from onward.checkpoints.tokenizer import TokenizerFiles, tokenizer_files
from onward.models.resolve import built_in_folder

CONFIG = {
    "bos_token_id": 0, "eos_token_id": 0, "max_position_embeddings": 1024, "model_type": "llama", "vocab_size": 8192,
}  # fmt: skip


@functools.cache
def tokenizer() -> TokenizerFiles:
    return tokenizer_files(read_checkpoint(built_in_folder("storyteller") / "storyteller.gguf").parameters)


def write_tokenizer(folder: Path) -> Path:
    """Write tokenizer.json and the configurations into a folder, which is made if missing."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "tokenizer.json").write_bytes(tokenizer().tokenizer)
    (folder / "config.json").write_text(json.dumps(CONFIG), encoding="utf-8")
    (folder / "generation_config.json").write_text(json.dumps(tokenizer().generation), encoding="utf-8")
    return folder


def write_story_folder(folder: Path) -> Path:
    """Write the files of an OpenVINO IR, whose graph is not valid."""
    write_tokenizer(folder)
    (folder / "openvino_model.xml").write_text("<net/>", encoding="utf-8")
    (folder / "openvino_model.bin").write_bytes(b"weights")
    return folder
