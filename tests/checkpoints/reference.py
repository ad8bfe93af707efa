"""An independent forward pass in float64, written from the architectures' own documents; nothing is shared with src."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = Any
"""float64, of any shape."""


class Reference:
    """A decoder. `metadata` as in a GGUF file, `tensors` by GGUF's names."""

    def __init__(self, metadata: Mapping[str, Any], tensors: Mapping[str, NDArray[Any]]) -> None:
        self.kind = metadata["general.architecture"]
        self.stated = {name.removeprefix(f"{self.kind}."): value for name, value in metadata.items()}
        self.tensors = {name: value.astype(np.float64) for name, value in tensors.items()}
        self.heads = self.stated["attention.head_count"]
        self.kv_heads = self.stated["attention.head_count_kv"]
        self.size = self.stated.get("attention.key_length", self.stated["embedding_length"] // self.heads)
        self.epsilon = self.stated["attention.layer_norm_rms_epsilon"]

    def logits(self, tokens: list[int]) -> Array:
        """Logits at every position, [tokens, vocabulary]."""
        hidden = self.tensors["token_embd.weight"][tokens]
        if self.kind == "gemma3":
            hidden = hidden * math.sqrt(self.stated["embedding_length"])
        for layer in range(self.stated["block_count"]):
            hidden = self.block(layer, hidden)
        hidden = self.norm(hidden, "output_norm")
        return self.linear(hidden, "output" if "output.weight" in self.tensors else "token_embd")

    def block(self, layer: int, hidden: Array) -> Array:
        prefix = f"blk.{layer}."
        attended = self.attention(layer, self.norm(hidden, prefix + "attn_norm"))
        if self.kind == "gemma3":
            attended = self.norm(attended, prefix + "post_attention_norm")
        hidden = hidden + attended
        normal = self.norm(hidden, prefix + "ffn_norm")
        gate, up = self.linear(normal, prefix + "ffn_gate"), self.linear(normal, prefix + "ffn_up")
        moved = self.linear(self.activated(gate) * up, prefix + "ffn_down")
        if self.kind == "gemma3":
            moved = self.norm(moved, prefix + "post_ffw_norm")
        return hidden + moved

    def activated(self, gate: Array) -> Array:
        if self.kind == "gemma3":
            return 0.5 * gate * (1 + np.tanh(math.sqrt(2 / math.pi) * (gate + 0.044715 * gate**3)))
        return gate / (1 + np.exp(-gate))

    def attention(self, layer: int, hidden: Array) -> Array:
        prefix, count = f"blk.{layer}.", len(hidden)
        query, key, value = (
            self.linear(hidden, f"{prefix}attn_{name}").reshape(count, -1, self.size) for name in ("q", "k", "v")
        )
        if prefix + "attn_q_norm.weight" in self.tensors:
            query, key = self.norm(query, prefix + "attn_q_norm"), self.norm(key, prefix + "attn_k_norm")
        is_local = self.kind == "gemma3" and (layer + 1) % 6 != 0
        query, key = self.turned(query, is_local), self.turned(key, is_local)
        allowed = np.tril(np.ones((count, count), bool))
        if is_local:
            allowed &= ~np.tril(np.ones((count, count), bool), -self.stated["attention.sliding_window"])
        result = np.empty((count, self.heads, self.size))
        for head in range(self.heads):
            shared = head * self.kv_heads // self.heads
            scores = query[:, head] @ key[:, shared].T / math.sqrt(self.size)
            weights = np.exp(np.where(allowed, scores - scores.max(axis=1, keepdims=True), -np.inf))
            result[:, head] = weights / weights.sum(axis=1, keepdims=True) @ value[:, shared]
        return self.linear(result.reshape(count, -1), prefix + "attn_output")

    def turned(self, node: Array, is_local: bool) -> Array:
        """Rotate pairs of dimensions by their position: side by side in Llama's files, half a head apart in others."""
        base = self.stated.get("rope.freq_base", 1e4)
        if is_local:
            base = 1e4
        size = self.stated.get("rope.dimension_count", self.size)
        angles = np.arange(len(node))[:, None] / self.stated.get("rope.scaling.factor", 1.0)
        angles = angles * base ** (-np.arange(0, size, 2) / size)
        if "rope_freqs.weight" in self.tensors:
            angles = angles / self.tensors["rope_freqs.weight"]
        cosine, sine = np.cos(angles)[:, None], np.sin(angles)[:, None]
        if self.kind == "llama":
            first, second = slice(0, size, 2), slice(1, size, 2)
        else:
            first, second = slice(0, size // 2), slice(size // 2, size)
        turned = node.copy()
        turned[..., first] = node[..., first] * cosine - node[..., second] * sine
        turned[..., second] = node[..., first] * sine + node[..., second] * cosine
        return turned

    def norm(self, hidden: Array, name: str) -> Array:
        root = np.sqrt((hidden**2).mean(axis=-1, keepdims=True) + self.epsilon)
        return hidden / root * self.tensors[name + ".weight"]

    def linear(self, hidden: Array, name: str) -> Array:
        return hidden @ self.tensors[name + ".weight"].T + self.tensors.get(name + ".bias", 0.0)
