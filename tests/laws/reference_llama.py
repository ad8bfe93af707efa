"""An independent forward pass of a Llama model in an IR folder, in float64 numpy, from the stored weights.

It shares only the file reader with the runtime: no kernels, no KV cache, no quantised activations.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov
from numpy.typing import NDArray

Matrix = NDArray[np.float64]


class ReferenceLlama:
    """Computes the log probabilities of the next token at every position of a text."""

    def __init__(self, folder: Path) -> None:
        config = json.loads((folder / "config.json").read_text())
        self.layers = config["num_hidden_layers"]
        self.heads, self.kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
        self.head_size = config["head_dim"]
        self.epsilon = float(config["rms_norm_eps"])
        self.theta = float(config["rope_theta"])
        model = ov.Core().read_model(folder / "openvino_model.xml")
        constants = {op.get_friendly_name(): op for op in model.get_ops() if op.get_type_name() == "Constant"}
        self.weights: dict[str, Matrix] = {
            name.removeprefix("self.model.").removesuffix(".weight"): _dequantised(name, constants)
            for name in constants
            if name.endswith(".weight")
        }
        self.norms: dict[str, Matrix] = dict(filter(None, (_norm(op) for op in constants.values())))

    def logprobs(self, tokens: list[int]) -> Matrix:
        """Return float64 [len(tokens), vocab_size]: row i is the distribution of the token after tokens[: i + 1]."""
        hidden = self.weights["embed_tokens"][tokens]
        for layer in range(self.layers):
            place = f"layers.{layer}."
            hidden = hidden + self._attention(place, self._normed(place + "self_attn.q_proj", hidden))
            hidden = hidden + self._feed_forward(place, self._normed(place + "mlp.gate_proj", hidden))
        logits = self._normed("lm_head", hidden) @ self.weights["embed_tokens"].T
        shifted = logits - logits.max(axis=1, keepdims=True)
        logprobs: Matrix = shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))
        return logprobs

    def _normed(self, reader: str, hidden: Matrix) -> Matrix:
        """Return RMSNorm with the weights of the norm that is the input of `reader`."""
        scale = np.sqrt((hidden**2).mean(axis=1, keepdims=True) + self.epsilon)
        normed: Matrix = hidden / scale * self.norms[reader]
        return normed

    def _attention(self, place: str, hidden: Matrix) -> Matrix:
        length = len(hidden)
        place += "self_attn."
        query = self._rotated(self._heads(place + "q_proj", hidden, self.heads))
        key = self._rotated(self._heads(place + "k_proj", hidden, self.kv_heads))
        value = self._heads(place + "v_proj", hidden, self.kv_heads)
        group = self.heads // self.kv_heads
        key, value = np.repeat(key, group, axis=0), np.repeat(value, group, axis=0)
        scores = query @ key.transpose(0, 2, 1) / np.sqrt(self.head_size)
        scores += np.triu(np.full((length, length), -np.inf), 1)
        weights = np.exp(scores - scores.max(axis=2, keepdims=True))
        weights /= weights.sum(axis=2, keepdims=True)
        mixed = (weights @ value).transpose(1, 0, 2).reshape(length, -1)
        projected: Matrix = mixed @ self.weights[place + "o_proj"].T
        return projected

    def _heads(self, name: str, hidden: Matrix, heads: int) -> Matrix:
        """Return the heads of a projection: [heads, tokens, head_size]."""
        return (hidden @ self.weights[name].T).reshape(len(hidden), heads, -1).transpose(1, 0, 2)

    def _rotated(self, heads: Matrix) -> Matrix:
        """Return the heads with rotary position embeddings; halves are paired as in transformers."""
        half = self.head_size // 2
        frequencies = self.theta ** (-np.arange(half) / half)
        angles = np.arange(heads.shape[1])[:, None] * frequencies
        cosine, sine = np.cos(angles), np.sin(angles)
        first, second = heads[..., :half], heads[..., half:]
        return np.concatenate([first * cosine - second * sine, second * cosine + first * sine], axis=2)

    def _feed_forward(self, place: str, hidden: Matrix) -> Matrix:
        place += "mlp."
        gate = hidden @ self.weights[place + "gate_proj"].T
        up = hidden @ self.weights[place + "up_proj"].T
        projected: Matrix = (gate / (1 + np.exp(-gate)) * up) @ self.weights[place + "down_proj"].T
        return projected


def _dequantised(name: str, constants: dict[str, Any]) -> Matrix:
    def data(suffix: str) -> Matrix:
        return np.asarray(constants[name + suffix].data, np.float64)

    return (data("") - data("/zero_point")) * data("/scale")


def _norm(constant: Any) -> tuple[str, Matrix] | None:
    """Return the projection whose input is this norm, and the norm's weights; None for other constants."""
    if list(constant.get_output_shape(0))[:2] != [1, 1] or constant.get_output_size() != 1:
        return None
    for multiply in constant.output(0).get_target_inputs():
        for reader in multiply.get_node().output(0).get_target_inputs():
            name = reader.get_node().get_friendly_name()
            if "MatMul" in name:
                place = name.removeprefix("__module.").removeprefix("model.").split("/")[0]
                if place.endswith(("q_proj", "k_proj", "v_proj")):
                    place = place.rsplit(".", 1)[0] + ".q_proj"
                elif place.endswith(("gate_proj", "up_proj")):
                    place = place.rsplit(".", 1)[0] + ".gate_proj"
                return place, np.asarray(constant.data, np.float64).reshape(-1)
    return None
