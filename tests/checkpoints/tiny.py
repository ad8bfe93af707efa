"""Tiny random checkpoints, one for each architecture that can be computed, with everything that it may have."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from tests.checkpoints.making import letters_tokenizer

HIDDEN, HEADS, KV_HEADS, FEED_FORWARD = 64, 4, 2, 96
Checkpoint = tuple[dict[str, Any], dict[str, NDArray[np.float32]]]
ARCHITECTURES: dict[str, dict[str, Any]] = {
    "llama": {"rope.freq_base": 5_000.0},
    "llama, untied": {},
    "llama, partial rope": {"rope.dimension_count": 8},
    "llama, linear rope": {"rope.scaling.type": "linear", "rope.scaling.factor": 4.0},
    "llama, rope factors": {},
    "qwen2": {"rope.freq_base": 1_000_000.0},
    "qwen3": {"attention.key_length": 32},
    "gemma3": {"attention.key_length": 32, "attention.sliding_window": 16, "rope.freq_base": 1_000_000.0},
}
"""What each states besides the common sizes. A name may go on behind a comma."""


def tiny(name: str, seed: int = 0) -> Checkpoint:
    """Metadata and tensors of a checkpoint of this architecture."""
    random = np.random.default_rng(seed)
    kind = name.partition(",")[0]
    layers = 7 if kind == "gemma3" else 2
    stated = {
        "block_count": layers,
        "context_length": 512,
        "embedding_length": HIDDEN,
        "feed_forward_length": FEED_FORWARD,
        "attention.head_count": HEADS,
        "attention.head_count_kv": KV_HEADS,
        "attention.layer_norm_rms_epsilon": 1e-5,
        **ARCHITECTURES[name],
    }
    metadata = {"general.architecture": kind, **{f"{kind}.{key}": value for key, value in stated.items()}}
    metadata |= letters_tokenizer()
    vocabulary = len(metadata["tokenizer.ggml.tokens"])
    size = stated.get("attention.key_length", HIDDEN // HEADS)

    def matrix(rows: int, inputs: int) -> Any:
        return (random.normal(size=(rows, inputs)) / np.sqrt(inputs)).astype(np.float32)

    def norm(length: int) -> NDArray[np.float32]:
        return random.uniform(0.5, 1.5, length).astype(np.float32)

    tensors = {"token_embd.weight": 3 * matrix(vocabulary, HIDDEN), "output_norm.weight": norm(HIDDEN)}
    if name in ("llama, untied", "qwen2"):
        tensors["output.weight"] = 3 * matrix(vocabulary, HIDDEN)
    if name == "llama, rope factors":
        tensors["rope_freqs.weight"] = random.uniform(1, 8, size // 2).astype(np.float32)
    for layer in range(layers):
        block = {
            "attn_norm": norm(HIDDEN),
            "attn_q": 2 * matrix(HEADS * size, HIDDEN),
            "attn_k": 2 * matrix(KV_HEADS * size, HIDDEN),
            "attn_v": matrix(KV_HEADS * size, HIDDEN),
            "attn_output": matrix(HIDDEN, HEADS * size),
            "ffn_norm": norm(HIDDEN),
            "ffn_gate": matrix(FEED_FORWARD, HIDDEN),
            "ffn_up": matrix(FEED_FORWARD, HIDDEN),
            "ffn_down": matrix(HIDDEN, FEED_FORWARD),
        }
        if kind in ("qwen3", "gemma3"):
            block |= {"attn_q_norm": norm(size), "attn_k_norm": norm(size)}
        if kind == "gemma3":
            block |= {"post_attention_norm": norm(HIDDEN), "post_ffw_norm": norm(HIDDEN)}
        tensors |= {f"blk.{layer}.{part}.weight": weights for part, weights in block.items()}
        if kind == "qwen2":
            for part in ("attn_q", "attn_k", "attn_v"):
                rows = len(block[part])
                tensors[f"blk.{layer}.{part}.bias"] = random.normal(size=rows).astype(np.float32)
    return metadata, tensors
