"""A folder that transformers and vLLM read, converted from a GGUF file of the llama architecture: float32, with its
tokenizer.

`python -m tests.real_models.vllm.folders FILE.gguf FOLDER`.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from onward.checkpoints.read import read_checkpoint
from onward.checkpoints.tokenizer import tokenizer_files
from tests.checkpoints.hugging_face import hugging_face_name, safetensors_bytes
from tests.engines.upstreams.byte_model import HIDDEN, write_byte_model


def write_folder_of(file: Path, folder: Path) -> Path:
    """Write the folder of a GGUF file. Its rotated pairs are half a head apart, as transformers has them."""
    checkpoint = read_checkpoint(file)
    stated = checkpoint.parameters
    layers = stated.num_layers()
    heads = stated.same_in_layers("attention.head_count", layers)
    files = tokenizer_files(stated)
    ends = files.generation["eos_token_id"]
    config: dict[str, Any] = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_act": "silu",
        "hidden_size": (hidden := stated.integer("embedding_length", minimum=1)),
        "intermediate_size": stated.same_in_layers("feed_forward_length", layers),
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": stated.same_in_layers("attention.head_count_kv", layers, heads),
        "head_dim": hidden // heads,
        "max_position_embeddings": stated.integer("context_length", minimum=1),
        "rms_norm_eps": round(stated.real("attention.layer_norm_rms_epsilon"), 9),
        "rope_theta": stated.real("rope.freq_base", 10_000.0),
        "vocab_size": checkpoint.tensor("token_embd.weight").shape[0],
        "tie_word_embeddings": "output.weight" not in checkpoint.tensors,
        "torch_dtype": "float32",
        "eos_token_id": ends[0],
    }
    folder.mkdir(parents=True, exist_ok=True)
    stored = {
        hugging_face_name(name, "llama"): tensor.floats().reshape(tensor.shape)
        for name, tensor in checkpoint.tensors.items()
    }
    (folder / "model.safetensors").write_bytes(safetensors_bytes(stored))
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    (folder / "tokenizer.json").write_bytes(files.tokenizer)
    names = {name: files.configuration[name] for name in ("bos_token", "eos_token") if files.configuration[name]}
    class_name = {"tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": False}
    (folder / "tokenizer_config.json").write_text(json.dumps(class_name | names), encoding="utf-8")
    (folder / "generation_config.json").write_text(json.dumps(files.generation), encoding="utf-8")
    return folder


def write_byte_folder(folder: Path) -> Path:
    """Write the folder of the tiny model with the toy's vocabulary. vLLM's attention needs heads of 32 dimensions."""
    file = folder.with_suffix(".gguf")
    return write_folder_of(write_byte_model(file, num_heads=HIDDEN // 32), folder)


if __name__ == "__main__":
    print(write_folder_of(Path(sys.argv[1]), Path(sys.argv[2])))
