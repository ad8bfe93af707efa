"""Norms, linear layers, feed-forward layers, and how they make a block."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from onward.runtimes.openvino.graphs.architecture import Architecture
from onward.runtimes.openvino.graphs.nodes import integers
from onward.runtimes.openvino.graphs.weights import Weights
from onward.runtimes.openvino.library import ops


class Layers:
    """The layers of a decoder. Names are GGUF's, without `.weight`."""

    def __init__(self, found: Architecture, weights: Weights) -> None:
        self._found = found
        self._weights = weights

    def has(self, name: str) -> bool:
        """Return whether the model has a tensor of this name."""
        return self._weights.has(name)

    def block(self, layer: int, hidden: Any, attend: Callable[[int, Any], Any]) -> Any:
        """Return what a layer makes of `hidden` [batch, tokens, hidden]. `attend` is the attention of a layer."""
        prefix = f"blk.{layer}."
        attended = attend(layer, self.norm(hidden, prefix + "attn_norm"))
        hidden = ops.add(hidden, self._optional_norm(attended, prefix + "post_attention_norm"))
        moved = self._feed_forward(prefix, self.norm(hidden, prefix + "ffn_norm"))
        return ops.add(hidden, self._optional_norm(moved, prefix + "post_ffw_norm"))

    def _feed_forward(self, prefix: str, hidden: Any) -> Any:
        gate = self._activated(self.linear(hidden, prefix + "ffn_gate"))
        return self.linear(ops.multiply(gate, self.linear(hidden, prefix + "ffn_up")), prefix + "ffn_down")

    def _activated(self, node: Any) -> Any:
        match self._found.activation:
            case "silu":
                return ops.swish(node)
            case "gelu_tanh":
                return ops.gelu(node, "TANH")

    def linear(self, hidden: Any, name: str) -> Any:
        """Return `hidden` times the weights of a layer, plus its bias if there is one."""
        result = self._weights.multiplied(hidden, name + ".weight")
        bias = self._weights.vector(name + ".bias")
        return result if bias is None else ops.add(result, bias)

    def _optional_norm(self, hidden: Any, name: str) -> Any:
        return self.norm(hidden, name) if self._weights.has(name + ".weight") else hidden

    def norm(self, hidden: Any, name: str, rank: int = 3) -> Any:
        """Return `hidden`, of `rank` axes, divided by its root mean square along the last one."""
        shape = [1] * rank
        mean = ops.reduce_mean(ops.power(hidden, _filled(shape, 2.0)), integers(-1), True)
        root = ops.sqrt(ops.add(mean, _filled(shape, self._found.epsilon)))
        normal = ops.multiply(hidden, ops.divide(_filled(shape, 1.0), root))
        return ops.multiply(self._weights.required_vector(name + ".weight"), normal)


def _filled(shape: list[int], value: float) -> Any:
    return ops.constant(np.full(shape, value, np.float32))
