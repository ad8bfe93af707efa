"""What a step begins and ends with on a tape: embeddings of tokens and positions, what each layer adds of its token,
and the logits of what the last layer returns."""

from __future__ import annotations

import math

import numpy as np

from onward.checkpoints.architecture import EMBEDDING_IN, EMBEDDING_OUT
from onward.kernels.memory import Rows, Vector
from onward.kernels.operands import Norm
from onward.kernels.panels import panel_count
from onward.kernels.weight_types import PANEL_ROWS
from onward.runtimes.native.model_tape import ModelTape
from onward.runtimes.native.weights import (
    EMBEDDING,
    LAYER_EMBEDDING,
    LAYER_PROJECTION,
    POSITION_EMBEDDING,
)


class EmbeddingRecords:
    """Writes the records."""

    def __init__(self, shared: ModelTape) -> None:
        self._shared, self._found, self._weights = shared, shared.found, shared.weights
        self._tape, self._buffers = shared.tape, shared.buffers

    def write_hidden(self) -> None:
        """Write the hidden values that the first layer reads, and what each layer adds of its token."""
        found, weights, hidden, size = self._found, self._weights, self._buffers.hidden, self._found.embedding_size
        embedded = self._buffers.embedded if size else hidden
        self._tape.embed(weights.table(EMBEDDING), embedded, found.embedding_scale)
        if size:
            self._read(embedded, size, EMBEDDING_IN)
            self._shared.products([(EMBEDDING_IN, hidden)])
        if found.rope is None:
            self._tape.embed(weights.table(POSITION_EMBEDDING), hidden, of_positions=True, is_added=True)
        if found.layer_input:
            self._layer_inputs()

    def write_logits(self, norm: str) -> None:
        """Write the logits, float32 [rows, vocabulary], to those of the buffers."""
        found, weights, hidden, size = self._found, self._weights, self._buffers.hidden, self._found.embedding_size
        output, logits = weights.output_name(), self._buffers.logits
        last = EMBEDDING_OUT if size else output
        self._read(hidden, found.hidden, last, None if found.has_norms_of_sums else self._shared.norm(norm))
        if size:
            self._shared.products([(EMBEDDING_OUT, self._buffers.embedded)])
            self._read(self._buffers.embedded, size, output)
        self._shared.products([(output, logits)], scale=found.logit_scale)
        if found.logit_cap is not None:
            self._tape.cap(logits, panel_count(weights.matrix(output).rows) * PANEL_ROWS, found.logit_cap)

    def _read(self, source: Rows, size: int, name: str, norm: Norm | None = None) -> None:
        """Write what a matrix reads, normalised or as it is."""
        self._tape.begin_part(self._weights.stream_index(name))
        if norm is None:
            self._shared.read(source, size, name)
        else:
            self._shared.read_normalised(source, norm, name)

    def _layer_inputs(self) -> None:
        """Write what each layer adds of its token: an embedding of the layer's own, and a part of the token's."""
        found, tape, weights = self._found, self._tape, self._weights
        count, size = found.num_layers, found.layer_input
        self._read(self._buffers.hidden, found.hidden, LAYER_PROJECTION)
        target = self._buffers.layer_inputs.without(4 * size)
        self._shared.products([(LAYER_PROJECTION, target)], scale=1 / math.sqrt(found.hidden))
        half = math.sqrt(0.5)  # of both, times the root of their number
        weight = Vector.of(weights.required_vector("per_layer_proj_norm.weight").values[:size] * np.float32(half))
        tape.norm_heads(target, count, size, Norm(weight, found.epsilon))
        tape.embed(weights.table(LAYER_EMBEDDING), target, half * math.sqrt(size), is_added=True)
