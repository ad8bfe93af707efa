"""Qwen 3.5 and Qwen 3 Next: tiny checkpoints, the formulas of their delta rule in float64 (Yang et al., arXiv
2412.06464, and the models' own code in transformers), and how folders differ from GGUF files."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = Any
KINDS = ("qwen35", "qwen35moe", "qwen3next")
KEY_HEADS = 2
_STATES: dict[str, Any] = {
    "attention.key_length": 32, "attention.value_length": 32, "rope.dimension_count": 8, "ssm.conv_kernel": 4,
    "ssm.state_size": 32, "ssm.group_count": KEY_HEADS, "ssm.time_step_rank": 4, "ssm.inner_size": 128,
}  # fmt: skip
_EXPERTS = {
    "expert_count": 8, "expert_used_count": 3, "expert_feed_forward_length": 32,
    "expert_shared_feed_forward_length": 64, "full_attention_interval": 2,
}  # fmt: skip
VARIANTS: dict[str, dict[str, Any]] = {
    "qwen35": {**_STATES, "rope.dimension_sections": [2, 1, 1, 0], "full_attention_interval": 4},
    "qwen35, equal heads": {
        **_STATES, "ssm.conv_kernel": 3, "ssm.state_size": 16, "ssm.time_step_rank": 2, "ssm.inner_size": 96,
        "attention.recurrent_layers": [False, True, True, True, False],
    },
    "qwen35moe": {**_STATES, **_EXPERTS, "rope.dimension_sections": [2, 1, 1, 0]},
    "qwen3next": {**_STATES, **_EXPERTS},
    "qwen3next, joined": {**_STATES, **_EXPERTS, "attention.recurrent_layers": [True, False, True]},
}  # fmt: skip
_CONFIG: dict[str, Any] = {
    "num_key_value_heads": 2, "head_dim": 32, "rope_parameters": {"rope_theta": 1e4, "partial_rotary_factor": 0.25},
    "linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 32, "linear_value_head_dim": 32,
    "num_experts": 8, "num_experts_per_tok": 3, "moe_intermediate_size": 32, "shared_expert_intermediate_size": 64,
}  # fmt: skip
CONFIGS: dict[str, dict[str, Any]] = {
    "qwen35": {
        "model_type": "qwen3_5_text", "num_key_value_heads": 2, "head_dim": 32, "attn_output_gate": True,
        "rope_parameters": {
            "rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.25, "mrope_section": [2, 1, 1],
            "mrope_interleaved": True,
        },
        "linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 32, "linear_value_head_dim": 32,
        "layer_types": [*["linear_attention"] * 3, "full_attention", "linear_attention"],
    },
    "qwen35, equal heads": {
        "model_type": "qwen3_5_text", "num_key_value_heads": 2, "head_dim": 32,
        "rope_parameters": {"rope_theta": 1e4, "partial_rotary_factor": 0.25}, "linear_conv_kernel_dim": 3,
        "linear_num_key_heads": 2, "linear_num_value_heads": 2, "linear_key_head_dim": 16, "linear_value_head_dim": 48,
        "layer_types": [
            "full_attention", "linear_attention", "linear_attention", "linear_attention", "full_attention",
        ],
    },
    "qwen35moe": {
        **_CONFIG, "model_type": "qwen3_5_moe_text", "intermediate_size": None,
        "layer_types": ["linear_attention", "full_attention", "linear_attention"],
    },
    "qwen3next": {**_CONFIG, "model_type": "qwen3_next", "full_attention_interval": 2},
    "qwen3next, joined": {
        **_CONFIG, "model_type": "qwen3_next",
        "layer_types": ["linear_attention", "full_attention", "linear_attention"],
    },
}  # fmt: skip
NAMES = {
    "attn_qkv": "linear_attn.in_proj_qkv", "attn_gate": "linear_attn.in_proj_z", "ssm_alpha": "linear_attn.in_proj_a",
    "ssm_beta": "linear_attn.in_proj_b", "ssm_conv1d": "linear_attn.conv1d", "ssm_norm": "linear_attn.norm",
    "ssm_out": "linear_attn.out_proj", "post_attention_norm": "post_attention_layernorm",
    "ssm_in": "linear_attn.in_proj_qkvz", "ssm_ba": "linear_attn.in_proj_ba", "ffn_gate_inp": "mlp.gate",
    "ffn_gate_inp_shexp": "mlp.shared_expert_gate",
    **{f"ffn_{part}_shexp": f"mlp.shared_expert.{part}_proj" for part in ("gate", "up", "down")},
}  # fmt: skip


def is_recurrent(stated: dict[str, Any], layer: int) -> bool:
    listed = stated.get("attention.recurrent_layers")
    return bool(listed[layer] if listed else (layer + 1) % stated["full_attention_interval"])


def mixer(name: str, made: Any, stated: dict[str, Any], hidden: int) -> dict[str, Any]:
    """The tensors of a layer with a delta rule. `made`: see tiny."""
    heads, inner = stated["ssm.time_step_rank"], stated["ssm.inner_size"]
    width = 2 * stated["ssm.group_count"] * stated["ssm.state_size"] + inner
    inputs = {"attn_qkv": 1.5 * made.matrix(width, hidden), "attn_gate": made.matrix(inner, hidden)}
    gates = {"ssm_alpha": made.matrix(heads, hidden), "ssm_beta": made.matrix(heads, hidden)}
    if name.startswith("qwen3next"):
        gates = {"ssm_ba": np.concatenate(list(gates.values()))}
    if name == "qwen3next, joined":
        inputs = {"ssm_in": together(*inputs.values())}
    return {
        **{f"{part}.weight": weights for part, weights in (inputs | gates).items()},
        "ssm_conv1d.weight": made.bias(width * stated["ssm.conv_kernel"]).reshape(width, -1),
        "ssm_a": -made.random.uniform(0.01, 1, heads).astype(np.float32),
        "ssm_dt.bias": made.bias(heads),
        "ssm_norm.weight": made.random.uniform(0.5, 1.5, inner // heads).astype(np.float32),
        "ssm_out.weight": 2 * made.matrix(hidden, inner),
    }


def _silu(x: Array) -> Array:
    return x / (1 + np.exp(-x))


def _projected(stated: dict[str, Any], tensors: dict[str, Array], prefix: str, hidden: Array) -> list[Array]:
    """The input of the convolution, the gates, and the projections (alpha, beta) of decay and update rate. Qwen 3 Next
    groups them by key head."""
    count, keys, size = len(hidden), stated["ssm.group_count"], stated["ssm.state_size"]

    def linear(name: str) -> Array:
        return hidden @ tensors[f"{prefix}{name}.weight"].T

    if prefix + "ssm_in.weight" in tensors:
        values = stated["ssm.inner_size"] // keys
        rows = linear("ssm_in").reshape(count, keys, -1)
        parts = np.split(rows, np.cumsum([size, size, values]), axis=2)
        queries, key, value, gates = (part.reshape(count, -1) for part in parts)
        mixed = np.concatenate((queries, key, value), axis=1)
    else:
        mixed, gates = linear("attn_qkv"), linear("attn_gate")
    if prefix + "ssm_ba.weight" not in tensors:
        return [mixed, gates, linear("ssm_alpha"), linear("ssm_beta")]
    both = linear("ssm_ba").reshape(count, keys, 2, -1)
    return [mixed, gates, both[:, :, 1].reshape(count, -1), both[:, :, 0].reshape(count, -1)]


def delta_net(stated: dict[str, Any], tensors: dict[str, Array], prefix: str, hidden: Array, epsilon: float) -> Array:
    """The output of a layer for rows [tokens, hidden]: token by token, head by head."""
    heads, keys, size = (stated[f"ssm.{name}"] for name in ("time_step_rank", "group_count", "state_size"))
    of_values = stated["ssm.inner_size"] // heads
    sharing, is_tiled = heads // keys, prefix + "ssm_ba.weight" not in tensors
    mixed, gates, alpha, beta = _projected(stated, tensors, prefix, hidden)
    taps = tensors[prefix + "ssm_conv1d.weight"]
    padded = np.concatenate((np.zeros((taps.shape[1] - 1, mixed.shape[1])), mixed))
    mixed = _silu(np.array([(padded[t : t + taps.shape[1]].T * taps).sum(axis=1) for t in range(len(mixed))]))
    decay = np.exp(tensors[prefix + "ssm_a"] * np.log1p(np.exp(alpha + tensors[prefix + "ssm_dt.bias"])))
    share = 1 / (1 + np.exp(-beta))
    states = np.zeros((heads, size, of_values))
    found = np.empty((len(hidden), heads, of_values))
    for t, row in enumerate(mixed):
        queries, key, values = np.split(row, [keys * size, 2 * keys * size])
        for head in range(heads):
            first = (head % keys if is_tiled else head // sharing) * size
            own = slice(first, first + size)
            q, k = (each[own] / np.sqrt((each[own] ** 2).sum() + 1e-6) for each in (queries, key))
            v = values[head * of_values : (head + 1) * of_values]
            state = states[head] * decay[t, head]
            states[head] = state + np.outer(k, (v - k @ state) * share[t, head])
            found[t, head] = (q / np.sqrt(size)) @ states[head]
    normal = found / np.sqrt((found**2).mean(axis=-1, keepdims=True) + epsilon) * tensors[prefix + "ssm_norm.weight"]
    return (normal.reshape(len(hidden), -1) * _silu(gates)) @ tensors[prefix + "ssm_out.weight"].T


def of_folder(name: str, array: NDArray[np.float32], heads: int) -> NDArray[np.float32]:
    """A tensor, or a matrix of an adapter, with the heads that share keys one after the other, as folders have them;
    in GGUF files those are `KEY_HEADS` apart. `heads`: of values."""
    part = name.split(".")[2]
    if part == "ssm_out":
        return np.ascontiguousarray(_together(array.T, heads).T)
    if part in ("attn_gate", "ssm_alpha", "ssm_beta", "ssm_a", "ssm_dt"):
        return _together(array, heads)
    if part in ("attn_qkv", "ssm_conv1d"):
        values = {4: 128, 2: 96}[heads]
        return np.concatenate((array[:-values], _together(array[-values:], heads)))
    return array


def _together(rows: NDArray[np.float32], heads: int) -> NDArray[np.float32]:
    apart = rows.reshape(heads // KEY_HEADS, KEY_HEADS, -1, *rows.shape[1:])
    return np.ascontiguousarray(apart.swapaxes(0, 1)).reshape(rows.shape)


def together(mixed: NDArray[np.float32], gates: NDArray[np.float32]) -> NDArray[np.float32]:
    """Rows of queries, keys and values, and those of gates, as Qwen 3 Next has them: grouped by key head."""
    keys = (len(mixed) - len(gates)) // 2
    parts = (mixed[:keys], mixed[keys : 2 * keys], mixed[2 * keys :], gates)
    by_key = [part.reshape(KEY_HEADS, -1, *part.shape[1:]) for part in parts]
    return np.concatenate(by_key, axis=1).reshape(-1, *mixed.shape[1:])


def as_stored(tensors: dict[str, NDArray[np.float32]]) -> dict[str, NDArray[np.float32]]:
    """The tensors as a folder has them, those without a usual suffix by their whole names."""
    heads = next(len(array) for name, array in tensors.items() if name.endswith("ssm_a"))
    is_tiled = not any(".ssm_ba." in name for name in tensors)
    found = {}
    for name, array in tensors.items():
        is_of_layer = name.startswith("blk.")
        stored = of_folder(name, array, heads) if is_of_layer and is_tiled else array
        layer = f"model.layers.{name.split('.')[1]}." if is_of_layer else ""
        own = layer + "linear_attn."
        if name.endswith("ssm_a"):
            found[own + "A_log"] = np.log(-stored)
        elif name.endswith("ssm_dt.bias"):
            found[own + "dt_bias"] = stored
        elif ".attn_gate." in name and not is_tiled:
            continue
        elif ".attn_qkv." in name and not is_tiled:
            found[name.replace("attn_qkv", "ssm_in")] = together(stored, tensors[name.replace("qkv", "gate")])
        elif ".ffn_gate_exps." in name:
            both = stored, tensors[name.replace("gate", "up")]
            found[layer + "mlp.experts.gate_up_proj"] = np.concatenate(both, axis=1)
        elif ".ffn_down_exps." in name:
            found[layer + "mlp.experts.down_proj"] = stored
        elif ".ffn_up_exps." in name:
            continue
        elif name.endswith("ssm_conv1d.weight"):
            found[name] = stored[:, None]
        elif name.endswith("norm.weight") and not name.endswith("ssm_norm.weight"):
            found[name] = stored - 1
        else:
            found[name] = stored
    return found
