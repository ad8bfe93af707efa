"""Attention on a tape, between the products of what a layer reads and that of what it returns.

Where keys and values are made of fewer numbers of a position, as latent attention has them (checkpoints.latent), they
are computed, and kept, for all heads: later steps attend to them as to others.
"""

from __future__ import annotations

import math

import numpy as np

from onward.kernels.maths import LOG2_E
from onward.kernels.memory import Rows, Vector
from onward.kernels.operands import Norm
from onward.kernels.panels import panel_count
from onward.kernels.weight_types import GROUP, PANEL_ROWS
from onward.runtimes.native.buffers import Cache, HeadBuffers
from onward.runtimes.native.model_tape import ModelTape
from onward.runtimes.native.positions import Positions


class AttentionRecords:
    """Writes the records."""

    def __init__(self, shared: ModelTape, positions: Positions, cache: Cache) -> None:
        self._shared, self._found, self._weights = shared, shared.found, shared.weights
        self._tape, self._buffers = shared.tape, shared.buffers
        self._positions, self._cache = positions, cache

    def queries(self, layer: int) -> list[tuple[str, Rows]]:
        """Return the matrices of a layer's queries, and of a gate of what they find, with where their products lie."""
        prefix, heads = f"blk.{layer}.", self._buffers.heads[self._found.heads_of(layer)]
        gates = [(f"{prefix}attn_q_gate", heads.gates)] if self._found.has_gated_attention else []
        if (latent := self._buffers.latent) is not None and self._weights.has(f"{prefix}attn_q_a.weight"):
            return [(f"{prefix}attn_q_a", latent.queries)]
        return [(f"{prefix}attn_q", heads.queries), *gates]

    def keys(self, layer: int) -> list[tuple[str, Rows]]:
        """Return the matrices of a layer's own keys and values, or of what these are made of."""
        prefix, heads = f"blk.{layer}.", self._buffers.heads[self._found.heads_of(layer)]
        if (latent := self._buffers.latent) is not None:
            return [(f"{prefix}attn_kv_a_mqa", latent.keys), (f"{prefix}attn_k_rope", latent.common)]
        both = (f"{prefix}attn_k", heads.keys), (f"{prefix}attn_v", heads.values)
        return [part for part in both if self._weights.has(f"{part[0]}.weight")]

    def _expand(self, layer: int, *, has_queries: bool) -> None:
        """Write keys and values of all heads, and queries if they are wanted, where they are made of fewer numbers."""
        prefix, heads = f"blk.{layer}.attn_", self._buffers.heads[self._found.heads_of(layer)]
        if self._found.latent is None or (latent := self._buffers.latent) is None:
            return
        sources = [("kv_a_norm", latent.keys, [(f"{prefix}k_b", heads.keys), (f"{prefix}v_b", heads.values)])]
        if has_queries and self._weights.has(f"{prefix}q_b.weight"):
            sources.append(("q_a_norm", latent.queries, [(f"{prefix}q_b", heads.queries)]))
        for name, source, parts in sources:
            norm = Norm(self._weights.required_vector(f"{prefix}{name}.weight"), self._found.latent.epsilon)
            self._shared.read_normalised(source, norm, *(part for part, _ in parts))
            self._shared.products(parts)

    def rotate(self, layer: int, *, has_queries: bool = True) -> None:
        """Write queries, if they are wanted, and a layer's own keys and values as attention reads them."""
        found, prefix = self._found, f"blk.{layer}."
        heads = found.heads_of(layer)
        buffers, shape, blocks = self._buffers.heads[heads], self._cache.shapes[layer], self._cache.layers[layer]
        self._expand(layer, has_queries=has_queries)
        self._limit(layer, has_queries=has_queries)
        queries = written = None
        is_plain = found.has_plain_head_norms and found.rope_of(layer) is not None
        magnitude = self._magnitude(layer)
        if has_queries:
            queries = buffers.queries, buffers.rotated
            if is_plain:
                self._norm_without_weights(buffers.queries, heads.num_heads, heads.head_size, magnitude)
            elif not found.has_head_norms_after_rotation:
                self._norm_heads(f"{prefix}attn_q_norm", buffers.queries, heads.num_heads, heads.head_size)
        if found.keys_of(layer) == layer:
            written = buffers.keys, buffers.values
            self._values(layer, buffers)
            if is_plain or found.has_head_norms_after_rotation:
                self._norm_without_weights(buffers.keys, heads.num_kv_heads, heads.head_size, magnitude)
            else:
                self._norm_heads(f"{prefix}attn_k_norm", buffers.keys, heads.num_kv_heads, heads.head_size)
        tables, growth = self._positions.of_layer(layer)
        scale = 1.0 / math.sqrt(heads.head_size) if found.attention_scale is None else found.attention_scale
        if is_plain:  # a rotation changes no root mean square but by its magnitude, which the norm takes out again
            scale /= magnitude * magnitude
        common = self._buffers.latent.common if self._buffers.latent is not None else None
        self._tape.rotate(shape, queries, written, tables, blocks, scale * LOG2_E, growth, common)
        if has_queries and found.has_head_norms_after_rotation:
            self._norm_rotated(layer, buffers, scale * LOG2_E)

    def _limit(self, layer: int, *, has_queries: bool) -> None:
        """Cut off products that are larger than the architecture has them."""
        heads, limit = self._found.heads_of(layer), self._found.projection_limit
        if limit is None:
            return
        buffers, keys = self._buffers.heads[heads], heads.num_kv_heads * heads.head_size
        parts = [(buffers.keys, keys), (buffers.values, keys)] if self._found.keys_of(layer) == layer else []
        parts += [(buffers.queries, heads.num_heads * heads.head_size)] if has_queries else []
        for rows, count in parts:
            self._tape.cap(rows, panel_count(count) * PANEL_ROWS, limit, is_hard=True)

    def attend(self, layer: int) -> None:
        """Write what a layer attends to, in the form that its output reads."""
        found, tape, prefix = self._found, self._tape, f"blk.{layer}."
        heads = found.heads_of(layer)
        buffers, shape, blocks = self._buffers.heads[heads], self._cache.shapes[layer], self._cache.layers[layer]
        sinks = self._weights.vector(f"{prefix}attn_sinks.weight")
        window = found.window if layer in found.window_layers else None
        size, forms = heads.num_heads * heads.value_size, self._weights.forms(f"{prefix}attn_output")
        is_read_as_written = forms == ["float32"] and size % GROUP == 0 and not found.has_gated_attention
        attended = self._shared.inputs["float32"] if is_read_as_written else buffers.attended
        tape.attend(shape, buffers.rotated, blocks, attended, window, sinks=sinks, cap=found.attention_cap)
        if found.has_gated_attention:
            self._shared.read_unit(buffers.gates, buffers.attended, size, f"{prefix}attn_output", "sigmoid")
        elif not is_read_as_written:
            self._shared.read(buffers.attended, size, f"{prefix}attn_output")

    def _values(self, layer: int, buffers: HeadBuffers) -> None:
        """Write the values that are not the product of a matrix as it is: keys before their norm, and norms."""
        heads = self._found.heads_of(layer)
        if not any(self._weights.has(f"blk.{layer}.attn_{part}.weight") for part in ("v", "v_b")):
            self._tape.quantise(buffers.keys, heads.num_kv_heads * heads.head_size, buffers.values, "float32")
        if self._found.has_value_norms:
            self._norm_without_weights(buffers.values, heads.num_kv_heads, heads.head_size)

    def _norm_without_weights(self, rows: Rows, num_heads: int, size: int, magnitude: float = 1.0) -> None:
        """Divide each head by its root mean square, as if it had been multiplied by `magnitude`: that counts for the
        epsilon alone."""
        ones, epsilon = Vector.of(np.ones(size, np.float32)), self._found.epsilon / (magnitude * magnitude)
        self._tape.norm_heads(rows, num_heads, size, Norm(ones, epsilon))

    def _magnitude(self, layer: int) -> float:
        """Return by what a layer's rotation multiplies queries and keys."""
        rope = self._found.rope_of(layer)
        return 1.0 if rope is None else rope.magnitude

    def _norm_rotated(self, layer: int, buffers: HeadBuffers, scale: float) -> None:
        """Normalise rotated queries, which have been multiplied by `scale`, with the weights of their norm and of that
        of the keys: a rotation changes no root mean square, and a score is a sum of products of both, in which either
        may have the weights. Keys have been normalised before, so that they are as large as their rotation made them.
        """
        heads, prefix = self._found.heads_of(layer), f"blk.{layer}.attn_"
        own, keys = (self._weights.required_vector(f"{prefix}{part}_norm.weight").values for part in "qk")
        size = heads.head_size
        weight = Vector.of(own[:size] * keys[:size] * np.float32(scale / self._magnitude(layer)))
        self._tape.norm_heads(buffers.rotated, heads.num_heads, size, Norm(weight, self._found.epsilon * scale * scale))

    def _norm_heads(self, name: str, values: Rows, num_heads: int, size: int) -> None:
        """Normalise queries or keys where there is a norm for them: per head, or over all heads where it is as long. A
        layer norm as long as all heads has the weights of each, one after the other (StableLM)."""
        if not self._weights.has(f"{name}.weight"):
            return
        norm = self._shared.norm(name)
        if norm.weight.length == size or norm.is_centred:
            self._tape.norm_heads(values, num_heads, size, norm)
        else:
            self._tape.norm(values, norm, values, "float32")
