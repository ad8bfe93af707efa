"""Write a model in transformers' Llama or Qwen2 layout as a GGUF file of float16 matrices, for llama.cpp.

llama.cpp's own converter accepts only tokenizers that it knows. Needs the `gguf` package: the one in llama.cpp's
source if that was built here, else an installed one.
"""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.float_weights import read
from benchmarks.peer_build import LLAMA_CPP, PeerError

NAMES = {
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
}
OUTER_TENSORS = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}
PRE_TOKENIZERS = {"llama": "llama-bpe", "qwen2": "qwen2"}
"""How llama.cpp splits text before BPE. Prompts are sent as ids, so it only has to be a name that it knows."""
TOKEN_NORMAL, TOKEN_CONTROL, TOKEN_UNUSED = 1, 3, 5


def convert(weights: Path, config_folder: Path, to: Path) -> None:
    """Write `weights` (a folder of either kind) with config.json and tokenizer.json of `config_folder` to a GGUF file.

    Raises PeerError without the gguf package, ValueError for another layout.
    """
    config = json.loads((config_folder / "config.json").read_text(encoding="utf-8"))
    if config["model_type"] not in PRE_TOKENIZERS:
        raise ValueError(f"{config_folder}: a {config['model_type']} model; only Llama and Qwen2 are supported")
    writer = _gguf().GGUFWriter(to, config["model_type"])
    write_architecture(writer, config)
    tokenizer = json.loads((config_folder / "tokenizer.json").read_text(encoding="utf-8"))
    write_tokenizer(writer, config, tokenizer)
    for name, values in read(weights):
        writer.add_tensor(tensor_name(name), to_gguf_layout(name, values, config))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _gguf() -> Any:
    vendored = str(LLAMA_CPP / "gguf-py")
    if vendored not in sys.path:
        sys.path.append(vendored)
    try:
        return importlib.import_module("gguf")
    except ImportError as error:
        raise PeerError(f"Writing GGUF needs {error.name}: `pip install gguf`.") from error


def write_architecture(writer: Any, config: dict[str, Any]) -> None:
    """Write the shape of the network."""
    heads = config["num_attention_heads"]
    size = config.get("head_dim") or config["hidden_size"] // heads
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(heads)
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_key_length(size)
    writer.add_value_length(size)
    writer.add_rope_dimension_count(size)
    writer.add_rope_freq_base(config["rope_theta"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_vocab_size(config["vocab_size"])
    writer.add_file_type(1)  # mostly float16


def write_tokenizer(writer: Any, config: dict[str, Any], tokenizer: dict[str, Any]) -> None:
    """Write a byte-level BPE. Ids of the model that the tokenizer lacks become unused tokens."""
    words = {token: word for word, token in tokenizer["model"]["vocab"].items()}
    special = {entry["id"]: entry["content"] for entry in tokenizer["added_tokens"]}
    tokens, kinds = [], []
    for token in range(config["vocab_size"]):
        tokens.append(special.get(token) or words.get(token) or f"[unused {token}]")
        kinds.append(TOKEN_CONTROL if token in special else TOKEN_NORMAL if token in words else TOKEN_UNUSED)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(PRE_TOKENIZERS[config["model_type"]])
    writer.add_token_list(tokens)
    writer.add_token_types(kinds)
    merges = tokenizer["model"]["merges"]
    writer.add_token_merges([merge if isinstance(merge, str) else " ".join(merge) for merge in merges])
    writer.add_bos_token_id(config["eos_token_id"])
    writer.add_eos_token_id(config["eos_token_id"])
    writer.add_add_bos_token(False)


def tensor_name(name: str) -> str:
    """Return llama.cpp's name of the transformers tensor `name`."""
    stem, _, kind = name.rpartition(".")
    if stem in OUTER_TENSORS:
        return f"{OUTER_TENSORS[stem]}.{kind}"
    layer, _, part = stem.removeprefix("model.layers.").partition(".")
    return f"blk.{layer}.{NAMES[part]}.{kind}"


def to_gguf_layout(name: str, values: NDArray[np.float32], config: dict[str, Any]) -> NDArray[Any]:
    """Return matrices as float16 and vectors as float32, of the same shape.

    llama.cpp's Llama rotates neighbouring pairs where transformers rotates halves, so the rows of queries and keys are
    reordered; its Qwen2 rotates halves.
    """
    if config["model_type"] == "llama" and (".q_proj." in name or ".k_proj." in name):
        heads = config["num_attention_heads" if ".q_proj." in name else "num_key_value_heads"]
        values = interleaved(values, heads)
    return values.astype(np.float16 if values.ndim > 1 else np.float32)


def interleaved(values: NDArray[np.float32], heads: int) -> NDArray[np.float32]:
    """Return the rows of each head in the order: first half's first, second half's first, first half's second, …"""
    halves = values.reshape(heads, 2, values.shape[0] // heads // 2, *values.shape[1:])
    return halves.swapaxes(1, 2).reshape(values.shape)
