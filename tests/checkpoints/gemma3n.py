"""Gemma 3n: tiny random checkpoints, and its forward pass in float64, written from its configuration's documentation
and its modeling file, and from the publications of AltUp (Baykal and others, arXiv 2301.13310) and LAuReL (Menghani and
others, arXiv 2411.07501); nothing is shared with src."""

from __future__ import annotations

import math
from collections.abc import Mapping
from statistics import NormalDist
from typing import Any

import numpy as np

from tests.checkpoints.gemma4 import HEADS, HIDDEN, Gemma4, gelu
from tests.checkpoints.gemma4 import NAMES as _NAMES_OF_INPUTS
from tests.checkpoints.gemma4 import WHOLE as _WHOLE_OF_INPUTS

Array = Any
"""float64, of any shape."""
KIND = "gemma3n"
STATES = 4
_SIZES = {
    "attention.key_length": 32, "attention.value_length": 32, "rope.freq_base": 1_000_000.0,
    "rope.freq_base_swa": 5_000.0, "attention.sliding_window": 16,
}  # fmt: skip
VARIANTS: dict[str, dict[str, Any]] = {
    "gemma3n": {
        **_SIZES, "attention.sliding_window_pattern": 4, "attention.shared_kv_layers": 4, "feed_forward_length": 256,
    },
    "gemma3n, own keys": {
        **_SIZES, "attention.sliding_window_pattern": 4, "attention.shared_kv_layers": 0, "feed_forward_length": 256,
    },
    "gemma3n, stated": {
        **_SIZES, "block_count": 7,
        "attention.sliding_window_pattern": [True, False, False, True, False, False, True],
        "attention.shared_kv_layers": 2, "embedding_length_per_layer_input": 32, "altup.num_inputs": 3,
        "altup.active_idx": 0, "final_logit_softcapping": 20.0, "feed_forward_length": [96, 128, 96, 64, 96, 96, 96],
        "activation_sparsity_scale": [1.5, -math.inf, 0.5, -0.25, -math.inf, 1.0, -math.inf],
    },
}  # fmt: skip
"""What each states besides the common sizes: the first two only what llama.cpp reads, but for the layers that share
keys, which are those after 20 there; the last one all that files state."""
SHARES = [0.9, 0.0, 0.75, 0.3, 0.0, 0.95, 0.0, 0.5]
"""Of gates that are zero, by layer, in a folder."""
ROWS = 26
"""Of what layers look up in a folder: tokens beyond them have the first one."""
CONFIGS = {
    "gemma3n": {
        "model_type": "gemma3n_text", "num_key_value_heads": 2, "head_dim": 32, "sliding_window": 16,
        "layer_types": [*["sliding_attention"] * 3, "full_attention"] * 2, "intermediate_size": 256,
        "num_kv_shared_layers": 4,
        "rope_local_base_freq": 5_000.0, "rope_scaling": None, "laurel_rank": 64, "vocab_size_per_layer_input": ROWS,
        "vocab_size": 30, "activation_sparsity_pattern": SHARES, "altup_coef_clip": 120.0,
    },
    "gemma3n, stated": {
        "model_type": "gemma3n_text", "num_key_value_heads": 2, "head_dim": 32, "sliding_window": 16,
        "layer_types": [
            "sliding_attention", "full_attention", "full_attention", "sliding_attention", "full_attention",
            "full_attention", "sliding_attention",
        ],
        "intermediate_size": [96, 128, 96, 64, 96, 96, 96], "num_kv_shared_layers": 2, "final_logit_softcapping": 20.0,
        "hidden_size_per_layer_input": 32, "altup_num_inputs": 3, "laurel_rank": 16, "vocab_size": 30,
        "vocab_size_per_layer_input": ROWS,
        "rope_parameters": {
            "full_attention": {"rope_type": "default", "rope_theta": 1e6},
            "sliding_attention": {"rope_type": "default", "rope_theta": 5e3},
        },
    },
}  # fmt: skip
NAMES = {
    **_NAMES_OF_INPUTS, "altup_router": "altup.modality_router", "altup_router_norm": "altup.router_norm",
    "altup_predict_coef": "altup.prediction_coefs", "altup_correct_coef": "altup.correction_coefs",
    "laurel_l": "laurel.linear_left", "laurel_r": "laurel.linear_right",
    "laurel_post_norm": "laurel.post_laurel_norm",
}  # fmt: skip
WHOLE = _WHOLE_OF_INPUTS
_STACKED = {"altup_proj": "altup_projections", "altup_unembd_proj": "altup_unembed_projections"}


def as_stored(tensors: Mapping[str, Any]) -> dict[str, Any]:
    """The tensors as a folder has them: the matrices of each hidden state apart, and fewer rows of what layers look
    up."""
    found: dict[str, Any] = {}
    for name, array in tensors.items():
        whole = name.removesuffix(".weight")
        if whole in _STACKED:
            found |= {f"model.{_STACKED[whole]}.{index}.weight": each for index, each in enumerate(array)}
        elif whole == "per_layer_token_embd":
            found[name] = array[:ROWS]
        elif whole.endswith("altup_correct_scale"):
            found[f"model.layers.{name.split('.')[1]}.altup.correct_output_scale"] = array
        else:
            found[name] = array
    return found


def of_folder(metadata: dict[str, Any], tensors: dict[str, Any], name: str) -> None:
    """Change a checkpoint to what its folder says: by shares which gates are zero, fewer rows of what layers look up,
    and no keys that are not used."""
    layers = metadata[f"{KIND}.block_count"]
    metadata[f"{KIND}.shares"] = CONFIGS[name].get("activation_sparsity_pattern") or [0.0] * layers
    table = tensors["per_layer_token_embd.weight"]
    table[ROWS:] = table[0]
    for layer in range(layers - metadata[f"{KIND}.attention.shared_kv_layers"], layers):
        for part in ("attn_k", "attn_v", "attn_k_norm"):
            del tensors[f"blk.{layer}.{part}.weight"]


def whole_tensors(stated: Mapping[str, Any], made: Any, vocabulary: int) -> dict[str, Any]:
    """The tensors of no layer, besides embeddings and the last norm. `made` makes random ones."""
    inputs, others = stated.get("embedding_length_per_layer_input", 256), stated.get("altup.num_inputs", STATES) - 1
    whole = stated["block_count"] * inputs
    return {
        "per_layer_token_embd.weight": made.matrix(vocabulary, whole) * 8,
        "per_layer_model_proj.weight": made.matrix(whole, HIDDEN),
        **made.norm("per_layer_proj_norm", inputs),
        **{f"{name}.weight": np.stack([made.matrix(HIDDEN, HIDDEN) for _ in range(others)]) for name in _STACKED},
    }


def block(stated: Mapping[str, Any], made: Any, layer: int) -> dict[str, Any]:
    """The tensors of a layer: its router's products are as large as tanh notices."""
    size, inputs = stated["attention.key_length"], stated.get("embedding_length_per_layer_input", 256)
    states, rank = stated.get("altup.num_inputs", STATES), 16 if "altup.num_inputs" in stated else 64
    inner = stated["feed_forward_length"]
    inner = inner[layer] if isinstance(inner, list) else inner
    keys = 2 * size
    matrices = {
        "attn_q": (HEADS * size, HIDDEN), "attn_k": (keys, HIDDEN), "attn_v": (keys, HIDDEN),
        "attn_output": (HIDDEN, HEADS * size), "ffn_gate": (inner, HIDDEN), "ffn_up": (inner, HIDDEN),
        "ffn_down": (HIDDEN, inner), "inp_gate": (inputs, HIDDEN), "proj": (HIDDEN, inputs),
        "laurel_l": (rank, HIDDEN), "laurel_r": (HIDDEN, rank),
    }  # fmt: skip
    found = {"attn_q_norm.weight": made.norm("q", size)["q.weight"] / 6, **made.norm("attn_k_norm", size)}
    for norm in (
        "attn_norm", "post_attention_norm", "ffn_norm", "post_ffw_norm", "post_norm", "altup_router_norm",
        "laurel_post_norm", "altup_correct_scale",
    ):  # fmt: skip
        found |= made.norm(norm)
    found["altup_router.weight"] = HIDDEN / 2 * made.matrix(states, HIDDEN)
    found["altup_predict_coef.weight"] = made.matrix(states * states, states) / 4
    found["altup_correct_coef.weight"] = made.matrix(states, states) / 4
    return found | {f"{part}.weight": made.matrix(*shape) for part, shape in matrices.items()}


class Gemma3n(Gemma4):
    """The decoder: Gemma 4's attention and inputs of layers, all else its own."""

    GLOBAL_SHARE = 1.0

    def logits(self, tokens: list[int]) -> Array:
        embedded = self.tensors["token_embd.weight"][tokens] * math.sqrt(HIDDEN)
        inputs = self.layer_inputs(tokens, embedded)
        assert inputs is not None
        others = [embedded @ matrix.T for matrix in self.tensors["altup_proj.weight"]]
        states = [embedded, *(as_large(each, embedded) for each in others)]
        for layer in range(self.count):
            states = self.states_after(layer, states, inputs[:, layer])
        unembedded = [
            state @ matrix.T for state, matrix in zip(states[1:], self.tensors["altup_unembd_proj.weight"], strict=True)
        ]
        hidden = np.mean([states[0], *(as_large(each, states[0]) for each in unembedded)], axis=0)
        hidden = self.norm(hidden, "output_norm.weight")
        logits = hidden @ self.tensors.get("output.weight", self.tensors["token_embd.weight"]).T
        cap = self.stated.get("final_logit_softcapping", 30.0)
        return cap * np.tanh(logits / cap)

    def states_after(self, layer: int, states: list[Array], own: Array) -> list[Array]:
        prefix, count = f"blk.{layer}.", len(states)
        mixing = self.linear(self.modalities(prefix, states[0]), prefix + "altup_predict_coef")
        mixing = mixing.reshape(-1, count, count)
        predicted = [states[k] + sum(mixing[:, k, j, None] * states[j] for j in range(count)) for k in range(count)]
        active = predicted[0]
        normal = self.norm(active, prefix + "attn_norm.weight")
        beside = self.linear(self.linear(normal, prefix + "laurel_l"), prefix + "laurel_r")
        beside = normal + self.norm(beside, prefix + "laurel_post_norm.weight")
        attended = self.norm(self.attention(layer, normal), prefix + "post_attention_norm.weight")
        hidden = (active + attended + beside) / math.sqrt(2)
        moved = self.gated(layer, self.norm(hidden, prefix + "ffn_norm.weight"))
        hidden = hidden + self.norm(moved, prefix + "post_ffw_norm.weight")
        factors = 1 + self.linear(self.modalities(prefix, hidden), prefix + "altup_correct_coef")
        corrected = [predicted[k] + factors[:, k, None] * (hidden - active) for k in range(count)]
        first = corrected[0] * self.tensors[prefix + "altup_correct_scale.weight"]
        added = self.linear(gelu(self.linear(first, prefix + "inp_gate")) * own, prefix + "proj")
        added = self.norm(added, prefix + "post_norm.weight")
        return [corrected[0], *(state + added for state in corrected[1:])]

    def modalities(self, prefix: str, state: Array) -> Array:
        normal = self.norm(state, prefix + "altup_router_norm.weight") / HIDDEN
        return np.tanh(self.linear(normal, prefix + "altup_router"))

    def gated(self, layer: int, hidden: Array) -> Array:
        prefix = f"blk.{layer}."
        gate = self.linear(hidden, prefix + "ffn_gate")
        if (cutoff := self.cutoff(layer)) is not None:
            # llama.cpp's standard deviation is a sample's, that of transformers, which reads folders, the row's own
            spread = gate.std(axis=-1, ddof=0 if "shares" in self.stated else 1, keepdims=True)
            gate = np.maximum(gate - (gate.mean(axis=-1, keepdims=True) + cutoff * spread), 0)
        return self.linear(gelu(gate) * self.linear(hidden, prefix + "ffn_up"), prefix + "ffn_down")

    def cutoff(self, layer: int) -> float | None:
        if "shares" in self.stated:
            share = self.stated["shares"][layer]
            return NormalDist().inv_cdf(share) if share else None
        if (scales := self.stated.get("activation_sparsity_scale")) is not None:
            return float(scales[layer]) if scales[layer] > -math.inf else None
        return 1.6448536 if layer < 10 else None


def as_large(state: Array, other: Array) -> Array:
    """A state times what makes its root mean square that of another one."""
    own, wanted = ((each**2).mean(axis=-1, keepdims=True) for each in (state, other))
    return state * np.sqrt(wanted) / np.sqrt(np.maximum(own, 1e-5))
