"""What a step begins and ends with on a tape: embeddings of tokens and positions, what each layer adds of its token,
and the logits of what the last layer returns."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import numpy as np

from onward.checkpoints.architecture import EMBEDDING_IN, EMBEDDING_OUT, Architecture
from onward.kernels.activations import ActivationName
from onward.kernels.memory import Rows, Vector
from onward.kernels.operands import Norm
from onward.kernels.panels import panel_count
from onward.kernels.tape import TapeBuilder
from onward.kernels.weight_types import PANEL_ROWS
from onward.runtimes.native.attention_records import norm_of
from onward.runtimes.native.buffers import Buffers
from onward.runtimes.native.weights import (
    EMBEDDING,
    LAYER_EMBEDDING,
    LAYER_PROJECTION,
    POSITION_EMBEDDING,
    Weights,
)


class EmbeddingRecords:
    """Writes the records. `inputs`: where what matrices read is written, by its form; `products`: writes products of
    what is there, times `scale`."""

    def __init__(
        self,
        found: Architecture,
        weights: Weights,
        tape: TapeBuilder,
        buffers: Buffers,
        inputs: Mapping[ActivationName, Rows],
        products: Callable[..., None],
    ) -> None:
        self._found, self._weights, self._tape, self._buffers = found, weights, tape, buffers
        self._inputs, self._products = inputs, products

    def write_hidden(self) -> None:
        """Write the hidden values that the first layer reads, and what each layer adds of its token."""
        found, weights, hidden, size = self._found, self._weights, self._buffers.hidden, self._found.embedding_size
        embedded = self._buffers.embedded if size else hidden
        self._tape.embed(weights.table(EMBEDDING), embedded, found.embedding_scale)
        if size:
            self._read(embedded, size, EMBEDDING_IN)
            self._products([(EMBEDDING_IN, hidden)])
        if found.rope is None:
            self._tape.embed(weights.table(POSITION_EMBEDDING), hidden, of_positions=True, is_added=True)
        if found.layer_input:
            self._layer_inputs()

    def write_logits(self, norm: str) -> None:
        """Write the logits, float32 [rows, vocabulary], to those of the buffers."""
        found, weights, hidden, size = self._found, self._weights, self._buffers.hidden, self._found.embedding_size
        output, logits = weights.output_name(), self._buffers.logits
        last = EMBEDDING_OUT if size else output
        self._read(hidden, found.hidden, last, None if found.has_norms_of_sums else norm_of(found, weights, norm))
        if size:
            self._products([(EMBEDDING_OUT, self._buffers.embedded)])
            self._read(self._buffers.embedded, size, output)
        self._products([(output, logits)], scale=found.logit_scale)
        if found.logit_cap is not None:
            self._tape.cap(logits, panel_count(weights.matrix(output).rows) * PANEL_ROWS, found.logit_cap)

    def _read(self, source: Rows, size: int, name: str, norm: Norm | None = None) -> None:
        """Write what a matrix reads, normalised or as it is."""
        self._tape.begin_part(self._weights.stream_index(name))
        for form in self._weights.forms(name):
            if norm is None:
                self._tape.quantise(source, size, self._inputs[form], form)
            else:
                self._tape.norm(source, norm, self._inputs[form], form)

    def _layer_inputs(self) -> None:
        """Write what each layer adds of its token: an embedding of the layer's own, and a part of the token's."""
        found, tape, weights = self._found, self._tape, self._weights
        count, size = found.num_layers, found.layer_input
        self._read(self._buffers.hidden, found.hidden, LAYER_PROJECTION)
        target = self._buffers.layer_inputs.without(4 * size)
        self._products([(LAYER_PROJECTION, target)], scale=1 / math.sqrt(found.hidden))
        half = math.sqrt(0.5)  # of both, times the root of their number
        weight = Vector.of(weights.required_vector("per_layer_proj_norm.weight").values[:size] * np.float32(half))
        tape.norm_heads(target, count, size, Norm(weight, found.epsilon))
        tape.embed(weights.table(LAYER_EMBEDDING), target, half * math.sqrt(size), is_added=True)
