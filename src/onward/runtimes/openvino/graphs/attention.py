"""Attention with a state of keys and values, in the form that OpenVINO turns into paged attention."""

from __future__ import annotations

from typing import Any

import numpy as np

from onward.checkpoints.architecture import Architecture
from onward.runtimes.openvino.graphs.layers import Layers
from onward.runtimes.openvino.graphs.masks import Masks
from onward.runtimes.openvino.graphs.nodes import broadcast, index, integers, join, number
from onward.runtimes.openvino.graphs.rope import Tables, rotated
from onward.runtimes.openvino.library import ops, ov

_BY_HEAD = (0, 2, 1, 3)
"""[batch, tokens, heads, size] ↔ [batch, heads, tokens, size]."""


class Attention:
    """The attention layers of a decoder. `sinks` and `variables` are those of its states."""

    def __init__(
        self,
        found: Architecture,
        layers: Layers,
        masks: Masks,
        *,
        batch: Any,
        beams: Any,
        tables: Tables | None,
        local_tables: Tables | None,
    ) -> None:
        self.sinks: list[Any] = []
        self.variables: list[Any] = []
        self._found = found
        self._layers = layers
        self._masks = masks
        self._batch = batch
        self._beams = beams
        self._tables = tables
        self._local_tables = local_tables

    def layer(self, layer: int, hidden: Any) -> Any:
        """Return what the attention of a layer makes of `hidden` [batch, tokens, hidden]."""
        found, prefix = self._found, f"blk.{layer}."
        has_window = layer in found.window_layers
        query, key, value = (self._projected(hidden, prefix, name) for name in ("q", "k", "v"))
        tables = self._local_tables if has_window and self._local_tables else self._tables
        if tables is not None and layer not in found.ropeless_layers:
            query, key = (rotated(each, tables, found.head_size) for each in (query, key))
        key = self._shared(self._state(f"past_key_values.{layer}.key", key))
        value = self._shared(self._state(f"past_key_values.{layer}.value", value))
        mask = self._masks.windowed if has_window else self._masks.causal
        scale = number(found.attention_scale or found.head_size**-0.5)
        result = ops.scaled_dot_product_attention(query, key, value, mask, scale, causal=False)
        joined = ops.reshape(_transposed(result), integers(0, 0, found.num_heads * found.head_size), True)
        return self._layers.linear(joined, prefix + "attn_output")

    def _projected(self, hidden: Any, prefix: str, name: str) -> Any:
        """Return queries, keys or values [batch, heads, tokens, size], normalised where there are norms for them: per
        head, or over all heads where the norm is as long."""
        heads, size = self._found.num_heads if name == "q" else self._found.num_kv_heads, self._found.head_size
        node = self._layers.linear(hidden, f"{prefix}attn_{name}")
        norm = f"{prefix}attn_{name}_norm" if name != "v" else ""
        length = self._layers.length(f"{norm}.weight") if norm else 0
        if length and length != size:
            node = self._layers.norm(node, norm)
        node = ops.reshape(node, integers(0, 0, heads, size), True)
        if length == size:
            node = self._layers.norm(node, norm, rank=4)
        return _transposed(node)

    def _state(self, name: str, new: Any) -> Any:
        """Return all keys or values of the sequence: those of earlier calls, and `new`."""
        heads, size = self._found.num_kv_heads, self._found.head_size
        info = ov.op.util.VariableInfo()
        info.data_shape, info.data_type, info.variable_id = ov.PartialShape([-1, heads, -1, size]), ov.Type.f32, name
        variable = ov.op.util.Variable(info)
        nothing = ops.broadcast(number(0.0), join(self._batch, integers(heads), integers(0), integers(size)))
        past = ops.gather(ov.op.read_value(nothing, variable), self._beams, index(0))
        whole = ops.concat([past, new], 2)
        self.sinks.append(ov.op.assign(whole, variable))
        self.variables.append(variable)
        return whole

    def _shared(self, node: Any) -> Any:
        """Return keys or values once for every query head that reads them."""
        heads, kv_heads, size = self._found.num_heads, self._found.num_kv_heads, self._found.head_size
        if heads == kv_heads:
            return node
        shape = join(self._batch, integers(kv_heads), integers(heads // kv_heads), integers(1), integers(size))
        return ops.reshape(broadcast(ops.unsqueeze(node, integers(2)), shape), integers(0, heads, -1, size), True)


def _transposed(node: Any) -> Any:
    return ops.transpose(node, ops.constant(np.asarray(_BY_HEAD, np.int32)))
