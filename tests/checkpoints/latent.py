"""DeepSeek-V2 and V3: tiny checkpoints, the formulas of latent attention in float64 (DeepSeek-AI, arXiv 2405.04434, and
the authors' modeling_deepseek.py), and how folders differ from GGUF files."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = Any
KIND = "deepseek2"
HEADS, UNROTATED, ROTATED, VALUES, RANK = 4, 24, 16, 20, 40
_KEYS = UNROTATED + ROTATED
_EXPERTS = {
    "expert_count": 8, "expert_used_count": 3, "expert_feed_forward_length": 32, "expert_shared_count": 2,
    "leading_dense_block_count": 1, "expert_weights_scale": 1.0,
}  # fmt: skip
_SIZES = {"attention.kv_lora_rank": RANK, "attention.q_lora_rank": 0, "rope.dimension_count": ROTATED}
_SPLIT = {
    **_SIZES, "attention.head_count_kv": 1, "attention.key_length": RANK + ROTATED, "attention.value_length": RANK,
    "attention.key_length_mla": _KEYS, "attention.value_length_mla": VALUES,
}  # fmt: skip
_JOINED = {
    **_SIZES, "attention.head_count_kv": HEADS, "attention.key_length": _KEYS, "attention.value_length": VALUES,
}  # fmt: skip
_YARN = {
    "rope.scaling.type": "yarn", "rope.scaling.factor": 8.0, "rope.scaling.original_context_length": 64,
}  # fmt: skip
_SIGMOID = {"expert_gating_func": 2, "expert_weights_norm": True, "expert_weights_scale": 1.5, "expert_shared_count": 1}
VARIANTS: dict[str, dict[str, Any]] = {
    "deepseek2": {**_SPLIT, **_EXPERTS, **_YARN, "rope.scaling.yarn_log_multiplier": 0.0707},
    "deepseek2, joined": {**_JOINED, **_EXPERTS, **_YARN, "rope.scaling.yarn_log_multiplier": 0.0707},
    "deepseek2, latent queries": {**_SPLIT, **_EXPERTS, **_SIGMOID, "attention.q_lora_rank": 48},
    "deepseek2, queries joined": {
        **_JOINED, **_EXPERTS, **_SIGMOID, "attention.q_lora_rank": 48, "attention.layer_norm_rms_epsilon": 0.01,
    },
    "deepseek2, yarn": {**_SPLIT, **_EXPERTS, **_YARN, "rope.scaling.attn_factor": 0.9},
    "deepseek2, groups": {
        **_JOINED, **_EXPERTS, **_YARN, "rope.scaling.yarn_log_multiplier": 0.0707, "expert_weights_scale": 4.0,
        "expert_group_count": 4, "expert_group_used_count": 2,
    },
    "deepseek2, groups of sigmoids": {
        **_SPLIT, **_EXPERTS, **_SIGMOID, **_YARN, "rope.scaling.yarn_log_multiplier": 0.1, "expert_count": 12,
        "attention.q_lora_rank": 48, "expert_group_count": 4, "expert_group_used_count": 2,
    },
    "deepseek2, groups of sigmoids, joined": {
        **_JOINED, **_EXPERTS, **_SIGMOID, **_YARN, "rope.scaling.yarn_log_multiplier": 0.1, "expert_count": 12,
        "attention.q_lora_rank": 48, "expert_group_count": 4, "expert_group_used_count": 2,
    },
    "deepseek2, glm": {
        **_JOINED, **_EXPERTS, **_SIGMOID, "attention.q_lora_rank": 48, "rope.freq_base": 1_000_000.0,
    },
    "deepseek2, dense": {
        **_JOINED, "expert_shared_count": 0, "expert_feed_forward_length": 96, "leading_dense_block_count": 3,
    },
}  # fmt: skip
"""Files of today have matrices of keys and of values, older ones both in one. Without experts: Youtu-LLM. Groups of
experts are DeepSeek-V2's, and, with sigmoids, V3's."""
_CONFIG = {
    "num_key_value_heads": HEADS, "kv_lora_rank": RANK, "q_lora_rank": None, "qk_nope_head_dim": UNROTATED,
    "qk_rope_head_dim": ROTATED, "v_head_dim": VALUES, "first_k_dense_replace": 1, "n_routed_experts": 8,
    "num_experts_per_tok": 3, "moe_intermediate_size": 32, "moe_layer_freq": 1, "n_group": 1,
    "topk_group": 1,
}  # fmt: skip
CONFIGS: dict[str, dict[str, Any]] = {
    "deepseek2, joined": {
        **_CONFIG, "model_type": "deepseek_v2", "n_shared_experts": 2, "routed_scaling_factor": 1.0,
        "norm_topk_prob": False, "topk_method": "greedy", "scoring_func": "softmax", "rope_theta": 10_000,
        "rope_scaling": {
            "type": "yarn", "factor": 8, "original_max_position_embeddings": 64, "beta_fast": 32, "beta_slow": 1,
            "mscale": 0.707, "mscale_all_dim": 0.707,
        },
    },
    "deepseek2, queries joined": {
        **_CONFIG, "model_type": "kimi_k2", "q_lora_rank": 48, "n_shared_experts": 1, "routed_scaling_factor": 1.5,
        "norm_topk_prob": True, "topk_method": "noaux_tc", "scoring_func": "sigmoid", "num_nextn_predict_layers": 0,
        "rope_scaling": None, "rms_norm_eps": 0.01,
    },
}  # fmt: skip
_V2_YARN = CONFIGS["deepseek2, joined"]["rope_scaling"]
CONFIGS |= {
    "deepseek2, groups": {
        **CONFIGS["deepseek2, joined"], "n_group": 4, "topk_group": 2, "topk_method": "group_limited_greedy",
        "routed_scaling_factor": 4.0,
    },
    "deepseek2, groups of sigmoids, joined": {
        **CONFIGS["deepseek2, queries joined"], "model_type": "deepseek_v3", "n_routed_experts": 12, "n_group": 4,
        "topk_group": 2, "rms_norm_eps": 1e-5, "num_nextn_predict_layers": 1,
        "rope_scaling": {**_V2_YARN, "mscale": 1.0, "mscale_all_dim": 1.0},
    },
    "deepseek2, glm": {
        **_CONFIG, "model_type": "glm4_moe_lite", "q_lora_rank": 48, "n_shared_experts": 1,
        "routed_scaling_factor": 1.5, "norm_topk_prob": True, "first_k_dense_replace": None,
        "mlp_layer_types": ["dense", "sparse", "sparse"], "num_nextn_predict_layers": 1,
        "rope_parameters": {"rope_type": "default", "rope_theta": 1e6}, "partial_rotary_factor": 1.0,
    },
}  # fmt: skip
NAMES = {
    "attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm", "attn_q": "self_attn.q_proj",
    "attn_q_a": "self_attn.q_a_proj", "attn_q_a_norm": "self_attn.q_a_layernorm", "attn_q_b": "self_attn.q_b_proj",
    "attn_kv_a_mqa": "self_attn.kv_a_proj_with_mqa", "attn_kv_a_norm": "self_attn.kv_a_layernorm",
    "attn_kv_b": "self_attn.kv_b_proj", "attn_output": "self_attn.o_proj", "ffn_gate_inp": "mlp.gate",
    **{f"ffn_{part}": f"mlp.{part}_proj" for part in ("gate", "up", "down")},
    **{f"ffn_{part}_shexp": f"mlp.shared_experts.{part}_proj" for part in ("gate", "up", "down")},
}  # fmt: skip


def attention_tensors(stated: dict[str, Any], made: Any, hidden: int) -> dict[str, Any]:
    """The tensors of a layer's attention. `made`: see tiny."""
    found = {
        "attn_kv_a_mqa.weight": 1.5 * made.matrix(RANK + ROTATED, hidden),
        "attn_output.weight": made.matrix(hidden, HEADS * VALUES),
        **made.norm("attn_kv_a_norm", RANK),
    }
    if rank := stated["attention.q_lora_rank"]:
        found |= {
            "attn_q_a.weight": made.matrix(rank, hidden),
            "attn_q_b.weight": 1.5 * made.matrix(HEADS * _KEYS, rank),
            **made.norm("attn_q_a_norm", rank),
        }
    else:
        found["attn_q.weight"] = 1.5 * made.matrix(HEADS * _KEYS, hidden)
    keys_and_values = made.matrix(HEADS * (UNROTATED + VALUES), RANK)
    if "attention.key_length_mla" not in stated:
        return found | {"attn_kv_b.weight": keys_and_values}
    keys, values = np.split(keys_and_values.reshape(HEADS, -1, RANK), [UNROTATED], axis=1)
    return found | {
        "attn_k_b.weight": np.ascontiguousarray(keys.swapaxes(1, 2)), "attn_v_b.weight": np.ascontiguousarray(values),
    }  # fmt: skip


def attention(
    stated: dict[str, Any],
    tensors: dict[str, Array],
    prefix: str,
    hidden: Array,
    epsilon: float,
    frequencies: Array,
) -> Array:
    """The output of a layer's attention for rows [tokens, hidden]. `frequencies`: by which pairs of dimensions turn."""
    count, multiplier = len(hidden), stated.get("rope.scaling.yarn_log_multiplier")
    weights = {name.removeprefix(f"{prefix}attn_"): values for name, values in tensors.items()}

    def normal(rows: Array, name: str) -> Array:
        return rows / np.sqrt((rows**2).mean(axis=-1, keepdims=True) + epsilon) * weights[f"{name}_norm.weight"]

    magnitude, scale = 1.0, _KEYS**-0.5
    if stated.get("rope.scaling.type") == "yarn":
        grown = math.log(stated["rope.scaling.factor"])
        if multiplier is None:  # llama.cpp's way
            magnitude = (0.1 * grown + 1) * stated.get("rope.scaling.attn_factor", 1.0)
            scale *= magnitude**2
        else:
            scale *= (multiplier * grown + 1) ** 2
    turns = magnitude * np.exp(1j * np.arange(count)[:, None] * frequencies)

    def turned(rows: Array) -> Array:
        """Pairs that are side by side, as complex numbers, times those of their positions."""
        pairs = (rows[..., 0::2] + 1j * rows[..., 1::2]) * (turns if rows.ndim == 2 else turns[:, None])
        return np.stack((pairs.real, pairs.imag), axis=-1).reshape(rows.shape)

    if "q_a.weight" in weights:
        queries = normal(hidden @ weights["q_a.weight"].T, "q_a") @ weights["q_b.weight"].T
    else:
        queries = hidden @ weights["q.weight"].T
    queries = queries.reshape(count, HEADS, _KEYS)
    latent, common = np.split(hidden @ weights["kv_a_mqa.weight"].T, [RANK], axis=1)
    latent, common = normal(latent, "kv_a"), turned(common)
    if "kv_b.weight" in weights:
        both = (latent @ weights["kv_b.weight"].T).reshape(count, HEADS, UNROTATED + VALUES)
        keys, values = both[..., :UNROTATED], both[..., UNROTATED:]
    else:
        keys = np.einsum("tr,hrd->thd", latent, weights["k_b.weight"])
        values = np.einsum("tr,hdr->thd", latent, weights["v_b.weight"])
    scores = np.einsum("thd,shd->hts", queries[..., :UNROTATED], keys)
    scores += np.einsum("thd,sd->hts", turned(queries[..., UNROTATED:]), common)
    scores = np.where(np.tril(np.ones((count, count), bool)), scores * scale, -np.inf)
    shares = np.exp(scores - scores.max(axis=-1, keepdims=True))
    shares /= shares.sum(axis=-1, keepdims=True)
    return np.einsum("hts,shd->thd", shares, values).reshape(count, -1) @ weights["output.weight"].T


def of_best_groups(stated: dict[str, Any], scores: Array) -> Array:
    """What experts are chosen by, minus infinity in groups that are not used: V2's have the score of their best expert
    (`group_limited_greedy` in its modeling_deepseek.py), V3's the sum of their best two (`noaux_tc`)."""
    groups = scores.reshape(stated["expert_group_count"], -1)
    num_best = 2 if stated.get("expert_gating_func") == 2 else 1
    of_groups = np.sort(groups, axis=1)[:, -num_best:].sum(axis=1)
    used = np.argsort(-of_groups, kind="stable")[: stated["expert_group_used_count"]]
    found = np.full_like(groups, -np.inf)
    found[used] = groups[used]
    return found.reshape(-1)


def as_stored(
    tensors: dict[str, NDArray[np.float32]], bias: str = "e_score_correction_bias"
) -> dict[str, NDArray[np.float32]]:
    """The tensors as a folder has them, of those of experts each by itself. `bias`: the name of the router's."""
    found = {}
    for name, array in tensors.items():
        layer, _, part = name.removeprefix("blk.").partition(".")
        if part == "exp_probs_b.bias":
            found[f"model.layers.{layer}.mlp.gate.{bias}"] = array
        elif "_exps." in name:
            found |= {name.replace("_exps.", f".{expert}."): each for expert, each in enumerate(array)}
        else:
            found[name] = array
    return found
