"""Several hidden states on a tape (AltUp), and the product of two small matrices beside attention (LAuReL).

    s[0] = embedding                                            s[i] = W embedding, as large as s[0]
    for each layer:
        p = predicted(s)
        h = p[0]                                                as others begin
        h + h' + norm(W W h') + attention, over the root of 2   h' = norm(h)
        s = corrected(p, h)
        s[i] += own input                                       of s[0], for 0 < i
    h = mean of s[0] and, as large as it, W s[i]

How states are predicted and corrected is said by products with the tanh of a product with the normalised one that is
computed.
"""

from __future__ import annotations

import math

import numpy as np

from onward.checkpoints.architecture import AltUp
from onward.kernels.memory import Rows, Vector
from onward.kernels.operands import Norm
from onward.kernels.panels import panel_count
from onward.kernels.weight_types import PANEL_ROWS
from onward.runtimes.native.buffers import AltUpBuffers
from onward.runtimes.native.model_tape import ModelTape

ATTENTION_SCALE = math.sqrt(0.5)
"""By what the sum of what a layer reads, attention and the product beside it is multiplied."""
_LEAST = 1e-5
"""The mean square that a state is divided by at least, where it becomes as large as another one."""


class AltUpRecords:
    """Writes the records."""

    def __init__(self, shared: ModelTape, altup: AltUp, own: AltUpBuffers) -> None:
        self._shared, self._found, self._weights, self._tape = shared, shared.found, shared.weights, shared.tape
        self._count, self._rank = altup.count, altup.laurel_rank
        self._hidden, self._added, self._own = shared.buffers.hidden, shared.buffers.added, own
        self._as_large = Norm(Vector.of(np.ones(self._found.hidden, np.float32)), _LEAST)

    def begin(self) -> None:
        """Write all states of the embeddings."""
        states, size = self._own.states, self._found.hidden
        self._tape.quantise(self._hidden, size, states.state(0), "float32")
        for index in range(1, self._count):
            name, state = f"altup_proj.{index - 1}", states.state(index)
            self._tape.begin_part(self._weights.stream_index(name))
            self._shared.read(self._hidden, size, name)
            self._shared.products([(name, state)])
            self._tape.norm(state, self._as_large, state, "float32", reference=states.state(0))

    def predict(self, layer: int) -> None:
        """Write predictions of all states, and the first one as what a layer computes with."""
        states, predicted = self._own.states, self._own.predicted
        self._coefficients(layer, states.state(0), "altup_predict_coef")
        self._tape.altup(states, predicted, self._own.coefficients)
        self._tape.quantise(predicted.state(0), self._found.hidden, self._hidden, "float32")

    def beside_attention(self, layer: int) -> list[tuple[str, Rows]]:
        """Return the matrix that reads what attention reads, with where its product lies."""
        return [(f"blk.{layer}.laurel_l", self._own.low)]

    def add_beside_attention(self, layer: int) -> None:
        """Add what attention reads, and its product with two matrices, to the hidden values."""
        prefix = f"blk.{layer}."
        self._tape.norm(self._hidden, self._shared.norm(f"{prefix}attn_norm"), self._hidden, "float32", added_scale=1.0)
        self._shared.read(self._own.low, self._rank, f"{prefix}laurel_r")
        self._shared.products([(f"{prefix}laurel_r", self._added)])
        norm = self._shared.norm(f"{prefix}laurel_post_norm")
        self._tape.norm(self._added, norm, self._hidden, "float32", added_scale=1.0)

    def correct(self, layer: int) -> None:
        """Write all states, of their predictions and of what a layer has made of the first one."""
        self._coefficients(layer, self._hidden, "altup_correct_coef")
        self._tape.altup(self._own.predicted, self._own.states, self._own.coefficients, self._hidden)

    def read_first(self, layer: int, name: str) -> None:
        """Write the first state, each number times its own one, as a matrix reads it."""
        scale = self._weights.required_vector(f"blk.{layer}.altup_correct_scale.weight")
        self._shared.read(self._own.states.state(0), self._found.hidden, name, scale=scale)

    def add_to_others(self, norm: str) -> None:
        """Add what was made of a layer's own input, normalised, to all states but the first one."""
        for index in range(1, self._count):
            state = self._own.states.state(index)
            self._tape.norm(self._added, self._shared.norm(norm), state, "float32", added_scale=1.0)

    def finish(self) -> None:
        """Write the hidden values that logits are made of."""
        states, size = self._own.states, self._found.hidden
        self._tape.quantise(states.state(0), size, self._hidden, "float32")
        for index in range(1, self._count):
            name, product = f"altup_unembd_proj.{index - 1}", self._own.predicted.state(index)
            self._tape.begin_part(self._weights.stream_index(name))
            self._shared.read(states.state(index), size, name)
            self._shared.products([(name, product)])
            self._tape.norm(
                product, self._as_large, self._hidden, "float32", reference=states.state(0), added_scale=1.0,
                total_scale=1 / self._count if index == self._count - 1 else 1.0,
            )  # fmt: skip

    def _coefficients(self, layer: int, state: Rows, name: str) -> None:
        """Write the product of a matrix with what a router makes of a state."""
        prefix, modalities = f"blk.{layer}.", self._own.modalities
        router, matrix = f"{prefix}altup_router", f"{prefix}{name}"
        self._shared.read_normalised(state, self._shared.norm(f"{router}_norm"), router)
        self._shared.products([(router, modalities)], scale=1 / self._found.hidden)
        self._tape.cap(modalities, panel_count(self._count) * PANEL_ROWS, 1.0)
        self._shared.read(modalities, self._count, matrix)
        self._shared.products([(matrix, self._own.coefficients)])
