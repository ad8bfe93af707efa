"""Qwen 3.5: tiny checkpoints, the formulas of its delta rule in float64 (Yang et al., arXiv 2412.06464, and the model's
own code in transformers), and what folders do otherwise than GGUF files."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = Any
KEY_HEADS = 2
VARIANTS: dict[str, dict[str, Any]] = {
    "qwen35": {
        "attention.key_length": 32, "attention.value_length": 32, "rope.dimension_count": 8,
        "rope.dimension_sections": [2, 1, 1, 0], "ssm.conv_kernel": 4, "ssm.state_size": 32,
        "ssm.group_count": KEY_HEADS, "ssm.time_step_rank": 4, "ssm.inner_size": 128, "full_attention_interval": 4,
    },
    "qwen35, equal heads": {
        "attention.key_length": 32, "attention.value_length": 32, "rope.dimension_count": 8, "ssm.conv_kernel": 3,
        "ssm.state_size": 16, "ssm.group_count": KEY_HEADS, "ssm.time_step_rank": 2, "ssm.inner_size": 96,
        "attention.recurrent_layers": [False, True, True, True, False],
    },
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
}  # fmt: skip
NAMES = {
    "attn_qkv": "linear_attn.in_proj_qkv", "attn_gate": "linear_attn.in_proj_z", "ssm_alpha": "linear_attn.in_proj_a",
    "ssm_beta": "linear_attn.in_proj_b", "ssm_conv1d": "linear_attn.conv1d", "ssm_norm": "linear_attn.norm",
    "ssm_out": "linear_attn.out_proj", "post_attention_norm": "post_attention_layernorm",
}  # fmt: skip


def is_recurrent(stated: dict[str, Any], layer: int) -> bool:
    listed = stated.get("attention.recurrent_layers")
    return bool(listed[layer] if listed else (layer + 1) % stated["full_attention_interval"])


def mixer(made: Any, stated: dict[str, Any], hidden: int) -> dict[str, Any]:
    """The tensors of a layer with a delta rule. `made`: see tiny."""
    heads, inner = stated["ssm.time_step_rank"], stated["ssm.inner_size"]
    width = 2 * stated["ssm.group_count"] * stated["ssm.state_size"] + inner
    return {
        "attn_qkv.weight": 1.5 * made.matrix(width, hidden),
        "attn_gate.weight": made.matrix(inner, hidden),
        "ssm_alpha.weight": made.matrix(heads, hidden),
        "ssm_beta.weight": made.matrix(heads, hidden),
        "ssm_conv1d.weight": made.bias(width * stated["ssm.conv_kernel"]).reshape(width, -1),
        "ssm_a": -made.random.uniform(0.01, 1, heads).astype(np.float32),
        "ssm_dt.bias": made.bias(heads),
        "ssm_norm.weight": made.random.uniform(0.5, 1.5, inner // heads).astype(np.float32),
        "ssm_out.weight": 2 * made.matrix(hidden, inner),
    }


def _silu(x: Array) -> Array:
    return x / (1 + np.exp(-x))


def delta_net(stated: dict[str, Any], tensors: dict[str, Array], prefix: str, hidden: Array, epsilon: float) -> Array:
    """What a layer makes of rows [tokens, hidden]: token by token, head by head."""
    heads, keys, size = (stated[f"ssm.{name}"] for name in ("time_step_rank", "group_count", "state_size"))
    of_values = stated["ssm.inner_size"] // heads
    weights = {name: tensors[f"{prefix}{name}.weight"] for name in ("attn_qkv", "attn_gate", "ssm_alpha", "ssm_beta")}
    mixed, gates, alpha, beta = (hidden @ each.T for each in weights.values())
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
            own = slice(head % keys * size, (head % keys + 1) * size)
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


def as_stored(tensors: dict[str, NDArray[np.float32]]) -> dict[str, NDArray[np.float32]]:
    """The tensors as a folder has them, those without an end of the usual kind by their whole names."""
    heads = next(len(array) for name, array in tensors.items() if name.endswith("ssm_a"))
    found = {}
    for name, array in tensors.items():
        stored = of_folder(name, array, heads) if name.startswith("blk.") else array
        own = f"model.layers.{name.split('.')[1]}.linear_attn." if name.startswith("blk.") else ""
        if name.endswith("ssm_a"):
            found[own + "A_log"] = np.log(-stored)
        elif name.endswith("ssm_dt.bias"):
            found[own + "dt_bias"] = stored
        elif name.endswith("ssm_conv1d.weight"):
            found[name] = stored[:, None]
        elif name.endswith("norm.weight") and not name.endswith("ssm_norm.weight"):
            found[name] = stored - 1
        else:
            found[name] = stored
    return found
