"""Builds the graph of a decoder, as exporters write it: stateful, with attention that OpenVINO can page."""

from __future__ import annotations

from typing import Any

import numpy as np

from onward.checkpoints.architecture import Architecture
from onward.runtimes.openvino.graphs.attention import Attention
from onward.runtimes.openvino.graphs.layers import Layers
from onward.runtimes.openvino.graphs.masks import Masks
from onward.runtimes.openvino.graphs.nodes import index, integers, scaled
from onward.runtimes.openvino.graphs.rope import rope_tables
from onward.runtimes.openvino.graphs.weights import Weights
from onward.runtimes.openvino.library import ops, ov


def build_decoder(found: Architecture, weights: Weights) -> ov.Model:
    """Return the graph. Inputs: `input_ids`, `attention_mask`, `position_ids` int64 [batch, tokens], `beam_idx` int32
    [batch]; output: `logits` float32 [batch, tokens, vocabulary]. Slow: all weights are converted."""
    tokens, attention_mask, positions = (
        _input(name, [-1, -1], np.int64) for name in ("input_ids", "attention_mask", "position_ids")
    )
    beams = _input("beam_idx", [-1], np.int32)
    batch = ops.gather(ops.shape_of(tokens), integers(0), index(0))
    layers = Layers(found, weights)
    attention = Attention(
        found,
        layers,
        Masks(tokens, attention_mask, batch, found.window),
        batch=batch,
        beams=beams,
        tables=rope_tables(found.rope, positions, batch) if found.rope else None,
        local_tables=rope_tables(found.local_rope, positions, batch) if found.local_rope else None,
    )
    hidden = ops.gather(weights.embedding(), ops.convert(tokens, "i32"), ops.constant(np.asarray(0, np.int32)))
    hidden = scaled(hidden, found.embedding_scale)
    if found.rope is None:
        places = ops.gather(weights.positions(), ops.convert(positions, "i32"), ops.constant(np.asarray(0, np.int32)))
        hidden = ops.add(hidden, places)
    for layer in range(found.num_layers):
        hidden = layers.block(layer, hidden, attention.layer)
    hidden = layers.norm(hidden, "output_norm")
    result = ops.result(scaled(layers.linear(hidden, weights.output_layer()), found.logit_scale))
    result.output(0).set_names({"logits"})
    return ov.Model(
        [result], attention.sinks, [tokens, attention_mask, positions, beams], attention.variables, found.name
    )


def _input(name: str, shape: list[int], dtype: type[np.generic]) -> Any:
    node = ops.parameter(shape, dtype, name=name)
    node.output(0).set_names({name})
    return node
