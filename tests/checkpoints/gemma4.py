"""Gemma 4: tiny random checkpoints, and its forward pass in float64, written from its configuration's documentation and
its modeling file; nothing is shared with src."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = Any
"""float64, of any shape."""
HIDDEN, HEADS = 64, 4
_SIZES = {
    "attention.key_length": 32, "attention.value_length": 32, "attention.key_length_swa": 16,
    "attention.value_length_swa": 16, "rope.dimension_count": 32, "rope.dimension_count_swa": 16,
    "rope.freq_base": 1_000_000.0, "rope.freq_base_swa": 10_000.0, "attention.sliding_window": 16,
}  # fmt: skip
VARIANTS: dict[str, dict[str, Any]] = {
    "gemma4": {
        **_SIZES, "block_count": 7, "attention.sliding_window_pattern": [True, False, True, False, True, True, False],
        "attention.shared_kv_layers": 3, "feed_forward_length": [96] * 4 + [192] * 3,
        "embedding_length_per_layer_input": 32, "final_logit_softcapping": 40.0,
    },
    "gemma4, values from keys": {
        **_SIZES, "block_count": 4, "attention.sliding_window_pattern": [True, True, False, False],
        "attention.head_count_kv": [2, 2, 1, 1], "attention.shared_kv_layers": 0, "embedding_length_per_layer_input": 0,
        "attention.key_length_swa": 32, "attention.value_length_swa": 32, "rope.dimension_count_swa": 32,
    },
    "gemma4, experts": {
        **_SIZES, "block_count": 3, "attention.sliding_window_pattern": [True, True, False],
        "attention.head_count_kv": [2, 2, 1], "attention.shared_kv_layers": 0, "embedding_length_per_layer_input": 0,
        "expert_count": 8, "expert_used_count": 3, "expert_feed_forward_length": 32,
    },
}  # fmt: skip
"""What each states besides the common sizes: small models, large ones, mixtures of experts."""
KEYS_ARE_VALUES = ("gemma4, values from keys", "gemma4, experts")
"""Their layers without a window have no matrix for values."""

_TYPES = {True: "sliding_attention", False: "full_attention"}
_RULES = {
    "full_attention": {"rope_type": "proportional", "partial_rotary_factor": 0.25, "rope_theta": 1e6},
    "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
}


def _config(name: str, **changes: Any) -> dict[str, Any]:
    pattern = VARIANTS[name]["attention.sliding_window_pattern"]
    return {
        "model_type": "gemma4_text", "num_key_value_heads": 2, "head_dim": 16, "sliding_window": 16,
        "hidden_size_per_layer_input": 0, "layer_types": [_TYPES[each] for each in pattern], "rope_parameters": _RULES,
        "final_logit_softcapping": 30.0, **changes,
    }  # fmt: skip


CONFIGS = {
    "gemma4": _config(
        "gemma4", global_head_dim=32, num_kv_shared_layers=3, use_double_wide_mlp=True, hidden_size_per_layer_input=32,
        final_logit_softcapping=40.0, num_experts=None, num_global_key_value_heads=None,
    ),
    "gemma4, values from keys": _config(
        "gemma4, values from keys", model_type="gemma4_unified_text", head_dim=32, global_head_dim=32,
        num_global_key_value_heads=1, attention_k_eq_v=True, use_bidirectional_attention="vision",
    ),
    "gemma4, experts": _config(
        "gemma4, experts", per_layer_config={"2": {"head_dim": 32, "num_key_value_heads": 1}}, attention_k_eq_v=True,
        enable_moe_block=True, num_experts=8, top_k_experts=3, moe_intermediate_size=32,
    ),
}  # fmt: skip
"""What config.json states: the last one as newer versions of transformers write it."""
NAMES = {
    "inp_gate": "per_layer_input_gate", "proj": "per_layer_projection", "post_norm": "post_per_layer_input_norm",
    "post_ffw_norm_1": "post_feedforward_layernorm_1", "post_ffw_norm_2": "post_feedforward_layernorm_2",
    "pre_ffw_norm_2": "pre_feedforward_layernorm_2", "ffn_gate_inp": "router.proj",
}  # fmt: skip
WHOLE = {
    "per_layer_token_embd": "model.embed_tokens_per_layer", "per_layer_model_proj": "model.per_layer_model_projection",
    "per_layer_proj_norm": "model.per_layer_projection_norm",
}  # fmt: skip
_APART = {
    "layer_output_scale.weight": "layer_scalar", "ffn_gate_inp.scale": "router.scale",
    "ffn_down_exps.scale": "router.per_expert_scale", "ffn_down_exps.weight": "experts.down_proj",
}  # fmt: skip


def as_stored(tensors: Mapping[str, Any]) -> dict[str, Any]:
    """The tensors as a folder has them: some under other names, experts' gate and up projections in one, and no rotary
    factors."""
    found: dict[str, Any] = {}
    for name, array in tensors.items():
        own = f"model.layers.{name.split('.')[1]}." if name.startswith("blk.") else ""
        end = name.split(".", 2)[-1]
        if "ffn_gate_exps" in name:
            both = array, tensors[name.replace("gate", "up")]
            found[f"{own}experts.gate_up_proj"] = np.concatenate(both, axis=1)
        elif end in _APART:
            found[own + _APART[end]] = array
        elif "ffn_up_exps" not in name and name != "rope_freqs.weight":
            found[name] = array
    return found


def whole_tensors(name: str, stated: Mapping[str, Any], made: Any, vocabulary: int) -> dict[str, Any]:
    """The tensors of no layer, besides embeddings and the last norm. `made` makes random ones."""
    size = stated["rope.dimension_count"] // 2
    factors = np.full(size, 1e30, np.float32)
    factors[: size // 4] = 1
    found = {"rope_freqs.weight": factors}
    if inputs := stated["embedding_length_per_layer_input"]:
        whole = stated["block_count"] * inputs
        found |= {
            "per_layer_token_embd.weight": made.matrix(vocabulary, whole) * 8,
            "per_layer_model_proj.weight": made.matrix(whole, HIDDEN),
            **made.norm("per_layer_proj_norm", inputs),
        }
    return found


def block(name: str, stated: Mapping[str, Any], made: Any, layer: int) -> dict[str, Any]:
    """The tensors of a layer."""
    is_local = stated["attention.sliding_window_pattern"][layer]
    size = stated["attention.key_length_swa" if is_local else "attention.key_length"]
    keys, inner = (_of(stated[each], layer) for each in ("attention.head_count_kv", "feed_forward_length"))
    matrices = {
        "attn_q": (HEADS * size, HIDDEN), "attn_output": (HIDDEN, HEADS * size), "ffn_gate": (inner, HIDDEN),
        "ffn_up": (inner, HIDDEN), "ffn_down": (HIDDEN, inner),
    }  # fmt: skip
    found = {"attn_q_norm.weight": made.norm("q", size)["q.weight"] / 6}
    for norm in ("attn_norm", "post_attention_norm", "ffn_norm", "post_ffw_norm"):
        found |= made.norm(norm)
    is_keyless = layer >= stated["block_count"] - stated["attention.shared_kv_layers"]
    if not is_keyless or not is_local:  # files have some that no layer uses
        matrices["attn_k"] = keys * size, HIDDEN
        if is_local or name not in KEYS_ARE_VALUES:
            matrices["attn_v"] = keys * size, HIDDEN
        found |= made.norm("attn_k_norm", size)
    if inputs := stated["embedding_length_per_layer_input"]:
        matrices |= {"inp_gate": (inputs, HIDDEN), "proj": (HIDDEN, inputs)}
        found |= made.norm("post_norm")
    if count := stated.get("expert_count"):
        expert = stated["expert_feed_forward_length"]
        matrices["ffn_gate_inp"] = count, HIDDEN
        for part, shape in {"gate": (expert, HIDDEN), "up": (expert, HIDDEN), "down": (HIDDEN, expert)}.items():
            found[f"ffn_{part}_exps.weight"] = np.stack([made.matrix(*shape) for _ in range(count)])
        for norm in ("post_ffw_norm_1", "pre_ffw_norm_2", "post_ffw_norm_2"):
            found |= made.norm(norm)
        found["ffn_gate_inp.scale"] = 4 * made.norm("scale")["scale.weight"]
        found["ffn_down_exps.scale"] = made.norm("scale", count)["scale.weight"]
    found["layer_output_scale.weight"] = np.array([0.5 + 0.1 * layer], np.float32)
    found |= {f"{part}.weight": made.matrix(*shape) for part, shape in matrices.items()}
    return found


def _of(number: Any, layer: int) -> int:
    return int(number[layer] if isinstance(number, list) else number)


class Gemma4:
    """The decoder. `stated`: metadata without the prefix; `tensors`: float64, by GGUF's names."""

    GLOBAL_SHARE = 0.25
    """Of the dimensions of a head without a window, how many are rotated, with frequencies of the whole head."""

    def __init__(self, stated: Mapping[str, Any], tensors: Mapping[str, NDArray[np.float64]]) -> None:
        self.stated, self.tensors = stated, tensors
        self.count = stated["block_count"]
        self.cache: dict[bool, tuple[Array, Array]] = {}
        """Keys and values of the last layer with some: with a window, and without."""

    def logits(self, tokens: list[int]) -> Array:
        embedded = self.tensors["token_embd.weight"][tokens] * math.sqrt(HIDDEN)
        inputs = self.layer_inputs(tokens, embedded)
        hidden = embedded
        for layer in range(self.count):
            hidden = self.block(layer, hidden, None if inputs is None else inputs[:, layer])
        hidden = self.norm(hidden, "output_norm.weight")
        logits = hidden @ self.tensors.get("output.weight", self.tensors["token_embd.weight"]).T
        cap = self.stated.get("final_logit_softcapping", 30.0)  # llama.cpp's where a file states none
        return cap * np.tanh(logits / cap) if cap else logits

    def layer_inputs(self, tokens: list[int], embedded: Array) -> Array | None:
        size = self.stated.get("embedding_length_per_layer_input", 256)  # llama.cpp's where a file states none
        if not size:
            return None
        looked_up = self.tensors["per_layer_token_embd.weight"][tokens].reshape(-1, self.count, size) * math.sqrt(size)
        projected = embedded @ self.tensors["per_layer_model_proj.weight"].T / math.sqrt(HIDDEN)
        projected = self.norm(projected.reshape(-1, self.count, size), "per_layer_proj_norm.weight")
        return (projected + looked_up) / math.sqrt(2)

    def block(self, layer: int, hidden: Array, own: Array | None) -> Array:
        prefix = f"blk.{layer}."
        attended = self.attention(layer, self.norm(hidden, prefix + "attn_norm.weight"))
        hidden = hidden + self.norm(attended, prefix + "post_attention_norm.weight")
        moved = self.dense(prefix, self.norm(hidden, prefix + "ffn_norm.weight"))
        if prefix + "ffn_gate_inp.weight" in self.tensors:
            moved = self.norm(moved, prefix + "post_ffw_norm_1.weight")
            moved = moved + self.norm(self.experts(prefix, hidden), prefix + "post_ffw_norm_2.weight")
        hidden = hidden + self.norm(moved, prefix + "post_ffw_norm.weight")
        if own is not None:
            gated = gelu(self.linear(hidden, prefix + "inp_gate")) * own
            hidden = hidden + self.norm(self.linear(gated, prefix + "proj"), prefix + "post_norm.weight")
        return hidden * self.tensors.get(prefix + "layer_output_scale.weight", np.ones(1))[0]

    def dense(self, prefix: str, hidden: Array) -> Array:
        gated = gelu(self.linear(hidden, prefix + "ffn_gate")) * self.linear(hidden, prefix + "ffn_up")
        return self.linear(gated, prefix + "ffn_down")

    def experts(self, prefix: str, hidden: Array) -> Array:
        routed = self.norm(hidden, "") * self.tensors[prefix + "ffn_gate_inp.scale"] / math.sqrt(HIDDEN)
        scores = self.linear(routed, prefix + "ffn_gate_inp")
        rows = self.norm(hidden, prefix + "pre_ffw_norm_2.weight")
        result = np.zeros_like(hidden)
        for place, (row, score) in enumerate(zip(rows, scores, strict=True)):
            shares = np.exp(score - score.max())
            shares /= shares.sum()
            chosen = np.argsort(-shares, kind="stable")[: self.stated["expert_used_count"]]
            shares = shares / shares[chosen].sum()
            scales = self.tensors.get(prefix + "ffn_down_exps.scale", np.ones(len(shares)))
            for expert in chosen:
                gate, up, down = (
                    self.tensors[f"{prefix}ffn_{part}_exps.weight"][expert] for part in ("gate", "up", "down")
                )
                result[place] += shares[expert] * scales[expert] * (down @ (gelu(gate @ row) * (up @ row)))
        return result

    def attention(self, layer: int, hidden: Array) -> Array:
        prefix, count, is_local = f"blk.{layer}.", len(hidden), self.is_local(layer)
        size = self.stated["attention.key_length"]
        if is_local:
            size = self.stated.get("attention.key_length_swa", size)
        query = self.norm(
            self.linear(hidden, prefix + "attn_q").reshape(count, -1, size), prefix + "attn_q_norm.weight"
        )
        query = self.turned(query, is_local)
        if layer < self.count - self.stated["attention.shared_kv_layers"]:
            key = self.linear(hidden, prefix + "attn_k").reshape(count, -1, size)
            value = key
            if prefix + "attn_v.weight" in self.tensors:
                value = self.linear(hidden, prefix + "attn_v").reshape(count, -1, size)
            key = self.turned(self.norm(key, prefix + "attn_k_norm.weight"), is_local)
            self.cache[is_local] = key, self.norm(value, "")
        keys, values = self.cache[is_local]
        allowed = np.tril(np.ones((count, count), bool))
        if is_local:
            allowed &= ~np.tril(np.ones((count, count), bool), -self.stated["attention.sliding_window"])
        result = np.empty((count, HEADS, size))
        for head in range(HEADS):
            shared = head * keys.shape[1] // HEADS
            scores = np.where(allowed, query[:, head] @ keys[:, shared].T, -np.inf)
            weights = np.exp(scores - scores.max(axis=1, keepdims=True))
            result[:, head] = weights / weights.sum(axis=1, keepdims=True) @ values[:, shared]
        return self.linear(result.reshape(count, -1), prefix + "attn_output")

    def is_local(self, layer: int) -> bool:
        pattern = self.stated["attention.sliding_window_pattern"]
        return bool(pattern[layer]) if isinstance(pattern, list) else layer % pattern < pattern - 1

    def turned(self, node: Array, is_local: bool) -> Array:
        size = node.shape[-1]
        base = self.stated["rope.freq_base_swa" if is_local else "rope.freq_base"]
        frequencies = base ** (-np.arange(0, size, 2) / size)
        if not is_local:
            frequencies[int(self.GLOBAL_SHARE * size // 2) :] = 0
        angles = np.arange(len(node))[:, None, None] * frequencies
        first, second = np.split(node, 2, axis=-1)
        cosine, sine = np.cos(angles), np.sin(angles)
        return np.concatenate([first * cosine - second * sine, first * sine + second * cosine], axis=-1)

    def norm(self, hidden: Array, name: str) -> Array:
        """RMS norm; without a name it has no weights."""
        root = np.sqrt((hidden**2).mean(axis=-1, keepdims=True) + self.stated["attention.layer_norm_rms_epsilon"])
        return hidden / root * self.tensors.get(name, 1.0)

    def linear(self, hidden: Array, name: str) -> Array:
        return hidden @ self.tensors[name + ".weight"].T


def gelu(x: Array) -> Array:
    return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))
