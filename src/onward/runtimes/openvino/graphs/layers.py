"""Norms, linear layers, feed-forward layers, and how they make a block."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from onward.checkpoints.architecture import Architecture
from onward.runtimes.openvino.graphs.nodes import integers, scaled
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

    def length(self, name: str) -> int:
        """Return the numbers in a vector, 0 if there is none."""
        return self._weights.length(name)

    def block(self, layer: int, hidden: Any, attend: Callable[[int, Any], Any]) -> Any:
        """Return what a layer makes of `hidden` [batch, tokens, hidden]. `attend` is the attention of a layer."""
        prefix = f"blk.{layer}."
        read = self._norm_before(hidden, prefix + "attn_norm")
        attended = self._scaled(self._norm_after(attend(layer, read), prefix + "post_attention_norm"))
        if self._found.is_parallel:
            read = self._norm_before(hidden, prefix + "ffn_norm") if self.has(f"{prefix}ffn_norm.weight") else read
            return ops.add(ops.add(hidden, attended), self._scaled(self._feed_forward(prefix, read)))
        hidden = ops.add(hidden, attended)
        moved = self._feed_forward(prefix, self._norm_before(hidden, prefix + "ffn_norm"))
        return ops.add(hidden, self._scaled(self._norm_after(moved, prefix + "post_ffw_norm")))

    def _feed_forward(self, prefix: str, hidden: Any) -> Any:
        up = self.linear(hidden, prefix + "ffn_up")
        if self.has(f"{prefix}ffn_gate.weight"):
            up = ops.multiply(self._activated(self.linear(hidden, prefix + "ffn_gate")), up)
        else:
            up = self._activated(up)
        return self.linear(up, prefix + "ffn_down")

    def _activated(self, node: Any) -> Any:
        match self._found.activation:
            case "silu":
                return ops.swish(node)
            case "gelu":
                return ops.gelu(node, "ERF")
            case "gelu_tanh":
                return ops.gelu(node, "TANH")

    def _scaled(self, added: Any) -> Any:
        return scaled(added, self._found.residual_scale)

    def _norm_before(self, hidden: Any, name: str) -> Any:
        return self.norm(hidden, name) if self._found.has_norms_before else hidden

    def _norm_after(self, added: Any, name: str) -> Any:
        return self.norm(added, name) if self._found.has_norms_after else added

    def linear(self, hidden: Any, name: str) -> Any:
        """Return `hidden` times the weights of a layer, plus its bias if there is one."""
        result = self._weights.multiplied(hidden, name + ".weight")
        bias = self._weights.vector(name + ".bias")
        return result if bias is None else ops.add(result, bias)

    def norm(self, hidden: Any, name: str, rank: int = 3) -> Any:
        """Return `hidden`, of `rank` axes, normalised along the last one, times weights, plus the bias if there is
        one."""
        normal = self._root_mean_square(hidden, rank) if self._found.norm == "rms" else self._centred(hidden)
        result = ops.multiply(self._weights.required_vector(name + ".weight"), normal)
        bias = self._weights.vector(name + ".bias")
        return result if bias is None else ops.add(result, bias)

    def _root_mean_square(self, hidden: Any, rank: int) -> Any:
        shape = [1] * rank
        mean = ops.reduce_mean(ops.power(hidden, _filled(shape, 2.0)), integers(-1), True)
        root = ops.sqrt(ops.add(mean, _filled(shape, self._found.epsilon)))
        return ops.multiply(hidden, ops.divide(_filled(shape, 1.0), root))

    def _centred(self, hidden: Any) -> Any:
        return ops.mvn(hidden, integers(-1), True, self._found.epsilon, "INSIDE_SQRT")


def _filled(shape: list[int], value: float) -> Any:
    return ops.constant(np.full(shape, value, np.float32))
