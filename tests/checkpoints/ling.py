"""Ling 2.0: tiny checkpoints, and how folders differ from GGUF files (inclusionAI's modeling_bailing_moe_v2.py)."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from tests.checkpoints import latent

KIND = "bailingmoe2"
_COMMON = {
    "rope.dimension_count": 8, "expert_used_count": 3, "expert_feed_forward_length": 32, "expert_gating_func": 2,
    "expert_weights_norm": True, "expert_weights_scale": 1.5, "leading_dense_block_count": 1,
}  # fmt: skip
VARIANTS: dict[str, dict[str, Any]] = {
    KIND: {
        **_COMMON, "expert_count": 12, "expert_shared_count": 1, "expert_shared_feed_forward_length": 48,
    },
    f"{KIND}, groups": {
        **_COMMON, "expert_count": 12, "expert_shared_count": 1, "expert_group_count": 4, "expert_group_used_count": 2,
    },
    f"{KIND}, no bias": {
        **_COMMON, "expert_count": 8, "expert_shared_count": 2, "expert_shared_feed_forward_length": 48,
    },
}  # fmt: skip
"""The last one has no bias of its router's choice, and states the size of one of two experts that all tokens use."""
CONFIGS: dict[str, dict[str, Any]] = {
    f"{KIND}, groups": {
        "model_type": "bailing_moe_v2", "head_dim": 16, "partial_rotary_factor": 0.5, "rope_theta": 10_000,
        "num_experts": 12, "num_experts_per_tok": 3, "moe_intermediate_size": 32, "num_shared_experts": 1, "n_group": 4,
        "topk_group": 2, "routed_scaling_factor": 1.5, "norm_topk_prob": True, "score_function": "sigmoid",
        "first_k_dense_replace": 1, "num_nextn_predict_layers": 1,
    },
}  # fmt: skip
NAMES = {
    "attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm", "attn_qkv": "attention.query_key_value",
    "attn_output": "attention.dense", "attn_q_norm": "attention.query_layernorm",
    "attn_k_norm": "attention.key_layernorm", "ffn_gate_inp": "mlp.gate",
    **{f"ffn_{part}": f"mlp.{part}_proj" for part in ("gate", "up", "down")},
    **{f"ffn_{part}_shexp": f"mlp.shared_experts.{part}_proj" for part in ("gate", "up", "down")},
}  # fmt: skip
WHOLE = {"token_embd": "model.word_embeddings", "output_norm": "model.norm", "output": "lm_head"}


def shared_size(stated: dict[str, Any]) -> int:
    """The size of the experts that all tokens use together."""
    one = stated.get("expert_shared_feed_forward_length", stated["expert_feed_forward_length"])
    return int(one * stated["expert_shared_count"])


def as_stored(tensors: dict[str, NDArray[np.float32]]) -> dict[str, NDArray[np.float32]]:
    """The tensors as a folder has them."""
    return latent.as_stored(tensors, "expert_bias")
