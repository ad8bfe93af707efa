"""Granite 4 H, Falcon-H1 and Nemotron-H: tiny checkpoints, the formulas of state spaces in float64 (Dao, Gu, arXiv
2405.21060, and the models' own code in transformers), and how folders differ from GGUF files."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = Any
NEMOTRON = ("nemotron_h", "nemotron_h_moe")
KINDS = ("granitehybrid", "falcon-h1", *NEMOTRON)
_SCALES = {"embedding_scale": 6.0, "residual_scale": 0.4, "logit_scale": 0.5, "attention.scale": 0.1}
_SIZES = {"ssm.conv_kernel": 4, "ssm.state_size": 8, "ssm.group_count": 1, "ssm.time_step_rank": 4}
VARIANTS: dict[str, dict[str, Any]] = {
    "granitehybrid": {
        **_SCALES, **_SIZES, "ssm.inner_size": 128, "attention.head_count_kv": [0, 2, 0],
        "rope.scaling.finetuned": False,
    },
    "granitehybrid, experts": {
        **_SCALES, **_SIZES, "ssm.inner_size": 128, "ssm.time_step_rank": 8, "attention.head_count_kv": [2, 0, 0],
        "rope.scaling.finetuned": False, "expert_count": 5, "expert_used_count": 2,
        "expert_shared_feed_forward_length": 64,
    },
    "granitehybrid, groups": {
        **_SCALES, **_SIZES, "ssm.inner_size": 128, "ssm.group_count": 2, "ssm.conv_kernel": 3,
        "attention.head_count_kv": [0, 0, 2],
    },
    "granitehybrid, attention": {
        **_SCALES, **_SIZES, "ssm.inner_size": 128, "attention.head_count_kv": [2, 2, 2],
    },
    "falcon-h1": {
        **_SIZES, "ssm.inner_size": 96, "ssm.time_step_rank": 3, "attention.key_length": 32,
        "attention.value_length": 32, "rope.freq_base": 1e6,
    },
    "falcon-h1, norms": {**_SIZES, "ssm.inner_size": 128, "ssm.group_count": 2},
    "nemotron_h": {
        **_SIZES, "ssm.inner_size": 128, "ssm.group_count": 2, "attention.head_count_kv": [0, 0, 0, 2, 0],
        "feed_forward_length": [0, 96, 0, 0, 96], "attention.key_length": 32, "attention.value_length": 32,
        "attention.layer_norm_epsilon": 1e-5,
    },
    "nemotron_h_moe": {
        **_SIZES, "ssm.inner_size": 128, "attention.head_count_kv": [0, 0, 0, 2], "feed_forward_length": [32, 0, 32, 0],
        "attention.layer_norm_epsilon": 1e-5, "expert_count": 8, "expert_used_count": 3,
        "expert_feed_forward_length": 32, "expert_shared_feed_forward_length": 64, "expert_weights_norm": True,
        "expert_weights_scale": 2.5, "expert_group_count": 1, "expert_shared_count": 1,
    },
}  # fmt: skip
"""A folder of Granite's has one norm over all groups: of one with groups there are files only."""
_COMMON = {
    "model_type": "granitemoehybrid", "num_key_value_heads": 2, "embedding_multiplier": 6.0,
    "residual_multiplier": 0.4, "logits_scaling": 0.5, "attention_multiplier": 0.1, "mamba_d_state": 8,
    "mamba_n_groups": 1, "mamba_d_conv": 4, "mamba_expand": 2, "mamba_conv_bias": True, "mamba_proj_bias": False,
    "mamba_chunk_size": 256,
}  # fmt: skip
_NEMOTRON = {
    "model_type": "nemotron_h", "num_key_value_heads": 2, "ssm_state_size": 8, "layer_norm_epsilon": 1e-5,
    "mlp_hidden_act": "relu2",
}  # fmt: skip
CONFIGS: dict[str, dict[str, Any]] = {
    "granitehybrid": {
        **_COMMON, "mamba_n_heads": 4, "mamba_d_head": "auto", "num_local_experts": 0, "num_experts_per_tok": 0,
        "shared_intermediate_size": 96, "intermediate_size": 96, "position_embedding_type": "nope",
        "layer_types": ["mamba", "attention", "mamba"],
    },
    "granitehybrid, experts": {
        **_COMMON, "mamba_n_heads": 8, "mamba_d_head": 16, "num_local_experts": 5, "num_experts_per_tok": 2,
        "shared_intermediate_size": 64, "layer_types": ["full_attention", "linear_attention", "linear_attention"],
    },
    "granitehybrid, attention": {
        **_COMMON, "mamba_n_heads": 4, "mamba_d_head": "auto", "num_local_experts": 0, "num_experts_per_tok": 0,
        "shared_intermediate_size": 96, "intermediate_size": 96, "position_embedding_type": "rope",
        "layer_types": ["attention"] * 3,
    },
    "falcon-h1": {
        "model_type": "falcon_h1", "head_dim": 32, "rope_theta": 1e6, "mamba_d_ssm": 96, "mamba_n_heads": 3,
        "mamba_d_head": 32, "mamba_d_state": 8, "embedding_multiplier": 3.0, "lm_head_multiplier": 3.0,
        "attention_in_multiplier": 1.5, "attention_out_multiplier": 0.75, "key_multiplier": 0.3,
        "ssm_in_multiplier": 1.25, "ssm_out_multiplier": 0.4, "ssm_multipliers": [0.35, 0.25, 0.2, 0.5, 0.3],
        "mlp_multipliers": [0.9, 0.6], "time_step_limit": [0.0, float("inf")],
    },
    "falcon-h1, norms": {
        "model_type": "falcon_h1", "mamba_d_ssm": None, "mamba_n_heads": 4, "mamba_d_state": 8, "mamba_n_groups": 2,
        "mamba_rms_norm": True, "mamba_norm_before_gate": False, "key_multiplier": 0.6,
        "embedding_multiplier": 2.0, "lm_head_multiplier": 0.5,
        "ssm_multipliers": [0.7, 1.0, 1.5, 0.5, 2.0],
    },
    "nemotron_h": {
        **_NEMOTRON, "head_dim": 32, "n_groups": 2, "mamba_num_heads": 4, "mamba_head_dim": 32,
        "hybrid_override_pattern": "M-M*-", "time_step_limit": [0.0, float("inf")],
    },
    "nemotron_h_moe": {
        **_NEMOTRON, "head_dim": 16, "n_groups": 1, "mamba_num_heads": 4, "mamba_head_dim": 32,
        "layers_block_type": ["moe", "mamba", "moe", "attention"], "n_routed_experts": 8, "num_experts_per_tok": 3,
        "moe_intermediate_size": 32, "moe_shared_expert_intermediate_size": 64, "norm_topk_prob": True,
        "routed_scaling_factor": 2.5, "n_shared_experts": 1,
    },
}  # fmt: skip
FALCON_NAMES = {
    **{f"attn_{part}": f"self_attn.{part}_proj" for part in "qkv"}, "attn_output": "self_attn.o_proj",
    **{f"ffn_{part}": f"feed_forward.{part}_proj" for part in ("gate", "up", "down")},
    "attn_norm": "input_layernorm", "ffn_norm": "pre_ff_layernorm",
}  # fmt: skip
NEMOTRON_WHOLE = {"token_embd": "backbone.embeddings", "output_norm": "backbone.norm_f", "output": "lm_head"}
NEMOTRON_NAMES = {
    "attn_norm": "norm", **{f"attn_{part}": f"mixer.{part}_proj" for part in "qkv"}, "attn_output": "mixer.o_proj",
    **{f"ffn_{part}": f"mixer.{part}_proj" for part in ("up", "down")}, "ffn_gate_inp": "mixer.gate",
    **{f"ffn_{part}_shexp": f"mixer.shared_experts.{part}_proj" for part in ("up", "down")},
    "ssm_in": "mixer.in_proj", "ssm_conv1d": "mixer.conv1d", "ssm_norm": "mixer.norm", "ssm_out": "mixer.out_proj",
}  # fmt: skip
NAMES = {"ssm_in": "mamba.in_proj", "ssm_conv1d": "mamba.conv1d", "ssm_norm": "mamba.norm", "ssm_out": "mamba.out_proj"}
_WHOLE = {"ssm_a": "A_log", "ssm_d": "D", "ssm_dt.bias": "dt_bias"}


def mixer(made: Any, stated: dict[str, Any], hidden: int, *, has_norm: bool) -> dict[str, Any]:
    """The tensors of a layer with a state space. `made`: see tiny."""
    heads, inner, groups = (stated[f"ssm.{name}"] for name in ("time_step_rank", "inner_size", "group_count"))
    width = inner + 2 * groups * stated["ssm.state_size"]
    norm = made.random.uniform(0.5, 1.5, inner).astype(np.float32)
    norms = {"ssm_norm.weight": norm.reshape(groups, -1) if groups > 1 else norm} if has_norm else {}
    return {
        "ssm_in.weight": 1.5 * made.matrix(inner + width + heads, hidden),
        "ssm_conv1d.weight": made.bias(width * stated["ssm.conv_kernel"]).reshape(width, -1),
        "ssm_conv1d.bias": made.bias(width) / 4,
        "ssm_dt.bias": made.bias(heads),
        "ssm_a": -made.random.uniform(0.05, 2, (heads, 1)).astype(np.float32),
        "ssm_d": made.bias(heads)[:, None],
        "ssm_out.weight": made.matrix(hidden, inner) * (1 if has_norm else 0.2),
        **norms,
    }


def _silu(x: Array) -> Array:
    return x / (1 + np.exp(-x))


def state_space(stated: dict[str, Any], tensors: dict[str, Array], prefix: str, hidden: Array, epsilon: float) -> Array:
    """The output of a layer for rows [tokens, hidden]: token by token, head by head."""
    names = ("time_step_rank", "inner_size", "group_count", "state_size")
    heads, inner, groups, count = (stated[f"ssm.{name}"] for name in names)
    width, size = inner + 2 * groups * count, inner // heads
    gate, mixed, times = np.split(hidden @ tensors[f"{prefix}ssm_in.weight"].T, [inner, inner + width], axis=1)
    taps = tensors[f"{prefix}ssm_conv1d.weight"]
    padded = np.concatenate((np.zeros((taps.shape[1] - 1, width)), mixed))
    mixed = np.array([(padded[t : t + taps.shape[1]].T * taps).sum(axis=1) for t in range(len(mixed))])
    mixed = _silu(mixed + tensors[f"{prefix}ssm_conv1d.bias"])
    times = np.log1p(np.exp(times + tensors[f"{prefix}ssm_dt.bias"]))
    decay, factor = (tensors[f"{prefix}ssm_{part}"].reshape(-1) for part in "ad")
    states = np.zeros((heads, size, count))
    found = np.empty((len(hidden), heads, size))
    for t, row in enumerate(mixed):
        x, taken, returned = np.split(row, [inner, inner + groups * count])
        for head in range(heads):
            own = slice(head * groups // heads * count, (head * groups // heads + 1) * count)
            of_head = x[head * size : (head + 1) * size]
            added = times[t, head] * np.outer(of_head, taken[own])
            states[head] = np.exp(times[t, head] * decay[head]) * states[head] + added
            found[t, head] = states[head] @ returned[own] + factor[head] * of_head
    gated = (found.reshape(len(hidden), -1) * _silu(gate)).reshape(len(hidden), groups, -1)
    if f"{prefix}ssm_norm.weight" not in tensors:
        return gated.reshape(len(hidden), -1) @ tensors[f"{prefix}ssm_out.weight"].T
    normal = gated / np.sqrt((gated**2).mean(axis=-1, keepdims=True) + epsilon)
    weighted = normal.reshape(len(hidden), -1) * tensors[f"{prefix}ssm_norm.weight"].reshape(-1)
    return weighted @ tensors[f"{prefix}ssm_out.weight"].T


def as_falcon_stores(tensors: dict[str, NDArray[np.float32]], config: dict[str, Any]) -> dict[str, NDArray[np.float32]]:
    """The tensors as a folder of Falcon-H1's has them: without the multipliers that those of a GGUF file contain."""
    read, of_state = config.get("attention_in_multiplier", 1.0), config.get("ssm_in_multiplier", 1.0)
    inner = config["mamba_d_ssm"] or 128
    states = config.get("mamba_n_groups", 1) * config["mamba_d_state"]
    parts = [inner, inner, states, states, config["mamba_n_heads"]]
    gate, down = config.get("mlp_multipliers", [1.0, 1.0])
    contained = {
        "token_embd": config.get("embedding_multiplier", 1.0), "output": config.get("lm_head_multiplier", 1.0),
        "attn_q": read, "attn_k": read * config["key_multiplier"], "attn_v": read,
        "attn_output": config.get("attention_out_multiplier", 1.0), "ssm_out": config.get("ssm_out_multiplier", 1.0),
        "ssm_in": of_state * np.repeat(config["ssm_multipliers"], parts)[:, None], "ffn_gate": gate, "ffn_down": down,
    }  # fmt: skip
    found = {}
    for name, array in as_stored(tensors).items():
        name = name.replace("_shexp", "")
        if name.endswith(".ffn_norm"):
            name = f"{name}.weight"
        part = name.removesuffix(".weight").rpartition(".")[2]
        if name.endswith("ssm_norm.weight"):
            array = array.reshape(-1)
        found[name] = (array / contained.get(part, 1.0)).astype(np.float32)
    return found


def as_nemotron_stores(tensors: dict[str, NDArray[np.float32]]) -> dict[str, NDArray[np.float32]]:
    """The tensors as a folder of Nemotron-H's has them, of those of experts each by itself."""
    found = {}
    for name, array in tensors.items():
        layer, _, part = name.removeprefix("blk.").partition(".")
        prefix = f"backbone.layers.{layer}.mixer."
        if part in _WHOLE:
            found[prefix + _WHOLE[part]] = (np.log(-array) if part == "ssm_a" else array).reshape(-1)
        elif part == "exp_probs_b.bias":
            found[f"{prefix}gate.e_score_correction_bias"] = array
        elif "_exps." in name:
            parts = enumerate(array)
            found |= {f"{prefix}experts.{expert}.{part[4:].partition('_')[0]}_proj.weight": w for expert, w in parts}
        else:
            flat = array.reshape(-1) if part == "ssm_norm.weight" else array
            found[name] = flat[:, None] if part == "ssm_conv1d.weight" else flat
    return found


def as_stored(tensors: dict[str, NDArray[np.float32]]) -> dict[str, NDArray[np.float32]]:
    """The tensors as a folder has them, those without a usual suffix by their whole names; the feed-forward layer as
    the shared expert."""
    found = {}
    for name, array in tensors.items():
        layer, _, part = name.removeprefix("blk.").partition(".")
        if part in _WHOLE:
            values = np.log(-array) if part == "ssm_a" else array
            found[f"model.layers.{layer}.mamba.{_WHOLE[part]}"] = values.reshape(-1)
        elif part == "ssm_conv1d.weight":
            found[name] = array[:, None]
        elif part in ("ffn_gate.weight", "ffn_up.weight", "ffn_down.weight"):
            found[name.replace(".weight", "_shexp.weight")] = array
        else:
            found[name] = array
    return found
