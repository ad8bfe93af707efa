"""Write a model in transformers' Llama or Qwen2 layout as a GGUF file: `python -m training.gguf_file FOLDER FILE`.

FOLDER has model.safetensors, config.json and tokenizer.json. Matrices are written as Q8_0 unless --type says otherwise,
vectors as float32. llama.cpp's own converter accepts only tokenizers that it knows.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]
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
TYPES = ("F16", "Q8_0", "Q4_0")
"""Of matrices."""
TOKEN_NORMAL, TOKEN_CONTROL, TOKEN_UNUSED = 1, 3, 5
RULE = "storyteller"
"""How the recipe's tokenizer cuts text (`tokenizer.ggml.pre`). llama.cpp has no such rule."""


@dataclass(frozen=True, slots=True)
class Description:
    """What a file says about its model beside its numbers. `rule`: see RULE."""

    name: str
    rule: str = RULE
    licence: str = ""
    text: str = ""


def write_gguf(
    to: Path,
    config: dict[str, Any],
    tokenizer: dict[str, Any],
    weights: Iterable[tuple[str, Floats]],
    about: Description,
    kind: str = "Q8_0",
) -> None:
    """Write `weights`, by their transformers names, with the contents of config.json and tokenizer.json to a file.

    Raises KeyError for another layout.
    """
    writer = gguf.GGUFWriter(to, config["model_type"])
    writer.add_name(about.name)
    if about.licence:
        writer.add_license(about.licence)
    if about.text:
        writer.add_description(about.text)
    write_architecture(writer, config, kind)
    write_tokenizer(writer, config, tokenizer, about.rule)
    for name, values in weights:
        add_tensor(writer, tensor_name(name), to_gguf_layout(name, values, config), kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def add_tensor(writer: gguf.GGUFWriter, name: str, values: Floats, kind: str) -> None:
    """Add a matrix in the type `kind`, or a vector as float32."""
    if values.ndim == 1:
        writer.add_tensor(name, values)
        return
    stored = gguf.GGMLQuantizationType[kind]
    writer.add_tensor(name, gguf.quants.quantize(values, stored), raw_dtype=stored)


def write_architecture(writer: Any, config: dict[str, Any], kind: str) -> None:
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
    writer.add_file_type(gguf.LlamaFileType[f"MOSTLY_{kind}"])
    writer.add_quantization_version(gguf.GGML_QUANT_VERSION)


def write_tokenizer(writer: Any, config: dict[str, Any], tokenizer: dict[str, Any], rule: str) -> None:
    """Write a byte-level BPE. Ids of the model that the tokenizer lacks become unused tokens."""
    words = {token: word for word, token in tokenizer["model"]["vocab"].items()}
    special = {entry["id"]: entry["content"] for entry in tokenizer["added_tokens"]}
    tokens, kinds = [], []
    for token in range(config["vocab_size"]):
        tokens.append(special.get(token) or words.get(token) or f"[unused {token}]")
        kinds.append(TOKEN_CONTROL if token in special else TOKEN_NORMAL if token in words else TOKEN_UNUSED)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(rule)
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


def to_gguf_layout(name: str, values: Floats, config: dict[str, Any]) -> Floats:
    """Return a tensor in llama.cpp's order of rows: its Llama rotates neighbouring pairs where transformers rotates
    halves, so the rows of queries and keys are reordered; its Qwen2 rotates halves."""
    if config["model_type"] == "llama" and (".q_proj." in name or ".k_proj." in name):
        heads = config["num_attention_heads" if ".q_proj." in name else "num_key_value_heads"]
        return interleaved(values, heads)
    return values


def interleaved(values: Floats, heads: int) -> Floats:
    """Return the rows of each head in the order: first half's first, second half's first, first half's second, …"""
    halves = values.reshape(heads, 2, values.shape[0] // heads // 2, *values.shape[1:])
    return np.ascontiguousarray(halves.swapaxes(1, 2).reshape(values.shape))


def read_weights(path: Path) -> Iterator[tuple[str, Floats]]:
    """Yield the tensors of a safetensors file of float32 or float16, without the copy of tied embeddings."""
    with path.open("rb") as file:
        size = int.from_bytes(file.read(8), "little")
        header: dict[str, Any] = json.loads(file.read(size))
        header.pop("__metadata__", None)
        for name, entry in header.items():
            begin, end = entry["data_offsets"]
            file.seek(8 + size + begin)
            values = np.frombuffer(file.read(end - begin), {"F32": np.float32, "F16": np.float16}[entry["dtype"]])
            if name != "lm_head.weight" or "model.embed_tokens.weight" not in header:
                yield name, values.reshape(entry["shape"]).astype(np.float32)


def convert(folder: Path, to: Path, about: Description, kind: str = "Q8_0") -> None:
    """Write the model of a folder to a GGUF file. Raises OSError, KeyError."""
    config, tokenizer = (
        json.loads((folder / name).read_text(encoding="utf-8")) for name in ("config.json", "tokenizer.json")
    )
    write_gguf(to, config, tokenizer, read_weights(folder / "model.safetensors"), about, kind)


STORYTELLER = Description(
    "storyteller", licence="apache-2.0", text="A small language model of storybook English and a little Python."
)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m training.gguf_file", description=__doc__)
    parser.add_argument("folder", type=Path, metavar="FOLDER")
    parser.add_argument("file", type=Path, metavar="FILE")
    parser.add_argument("--type", choices=TYPES, default="Q8_0", help="of matrices (default Q8_0)")
    arguments = parser.parse_args()
    convert(arguments.folder, arguments.file, STORYTELLER, arguments.type)
    return 0


if __name__ == "__main__":
    sys.exit(main())
