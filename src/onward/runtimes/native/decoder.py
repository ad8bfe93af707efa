"""A decoder's step as a tape, one record per operation: the whole of the model, in the order of its paper.

h = embedding[token]
for each layer:
    q, k, v = W h' + b                            h' = norm(h)
    h += W attention(rotate(q), rotate(k), v)
    h += W (silu(W h') * W h')                    h' = norm(h)
logits = W norm(h)                                of the rows whose logits are wanted
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from onward.checkpoints.architecture import Architecture
from onward.kernels.activations import ACTIVATIONS, ActivationName
from onward.kernels.attention import LOG2E
from onward.kernels.memory import Rows
from onward.kernels.panels import panel_count
from onward.kernels.products import OUT_BYTES
from onward.kernels.tape import TapeBuilder, float_row_bytes
from onward.runtimes.native.positions import PositionTables
from onward.runtimes.native.weights import Weights


@dataclass(frozen=True)
class Cache:
    """Keys and values of each layer, rows of blocks."""

    layers: Sequence[Rows]


def matrix_names(found: Architecture, weights: Weights) -> Iterator[str]:
    """Yield the names of all matrices that a decoder multiplies with."""
    for layer in range(found.num_layers):
        for part in ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down"):
            yield f"blk.{layer}.{part}"
    yield weights.output_name()


class Decoder:
    """Writes the tape. `rows`: the most rows of a step. Keeps the memory between operations."""

    def __init__(self, found: Architecture, weights: Weights, tape: TapeBuilder, rows: int) -> None:
        self._found, self._weights, self._tape, self._rows = found, weights, tape, rows
        self._hidden = self._floats(found.hidden)
        self._inputs: dict[ActivationName, Rows] = {}
        sizes = [weights.matrix(name).padded_inputs for name in matrix_names(found, weights)]
        for form in {weights.activations(name) for name in matrix_names(found, weights)}:
            self._inputs[form] = Rows.allocate(rows, ACTIVATIONS[form].row_bytes(max(sizes)))
        queries, keys = found.num_heads * found.head_size, found.num_kv_heads * found.head_size
        self._queries, self._keys, self._values = self._floats(queries), self._floats(keys), self._floats(keys)
        padded = -(-found.head_size // 16) * 16
        self._rotated = Rows.exactly(rows, 4 * found.num_heads * padded)
        self._attended = self._floats(queries)
        width = weights.matrix("blk.0.ffn_up").rows
        self._gate, self._up = self._floats(width), self._floats(width)

    def _floats(self, numbers: int) -> Rows:
        return Rows.allocate(self._rows, float_row_bytes(numbers))

    def write(self, positions: PositionTables, cache: Cache) -> Rows:
        """Write all records; return the logits, float32 [rows, vocabulary]."""
        found, weights = self._found, self._weights
        self._tape.embed(weights.table(), self._hidden, found.embedding_scale)
        for layer in range(found.num_layers):
            self._attention(f"blk.{layer}.", positions, cache.layers[layer])
            self._feed_forward(f"blk.{layer}.")
        output = weights.output_name()
        panels = panel_count(weights.matrix(output).rows)
        logits = Rows.allocate(self._rows, panels * OUT_BYTES)
        self._norm("output_norm", [output], of_logit_rows=True)
        self._products([(output, logits)], of_logit_rows=True, scale=found.logit_scale)
        return logits

    def _attention(self, prefix: str, positions: PositionTables, cache: Rows) -> None:
        found, tape = self._found, self._tape
        parts = [(f"{prefix}attn_q", self._queries), (f"{prefix}attn_k", self._keys), (f"{prefix}attn_v", self._values)]
        self._norm(f"{prefix}attn_norm", [name for name, _ in parts])
        self._products(parts)
        scale = found.attention_scale or 1.0 / math.sqrt(found.head_size)
        tables = (positions.cosines, positions.sines)
        tape.rotate(self._queries, self._keys, self._values, self._rotated, tables, cache, scale * LOG2E)
        tape.attend(self._rotated, cache, self._attended)
        output = f"{prefix}attn_output"
        form = self._weights.activations(output)
        tape.quantise(self._attended, found.num_heads * found.head_size, self._inputs[form], form)
        self._products([(output, self._hidden)], is_added=True)

    def _feed_forward(self, prefix: str) -> None:
        parts = [(f"{prefix}ffn_gate", self._gate), (f"{prefix}ffn_up", self._up)]
        self._norm(f"{prefix}ffn_norm", [name for name, _ in parts])
        self._products(parts)
        down = f"{prefix}ffn_down"
        form = self._weights.activations(down)
        self._tape.unit(self._gate, self._up, self._weights.matrix(down).inputs, self._inputs[form], form)
        self._products([(down, self._hidden)], is_added=True)

    def _norm(self, name: str, readers: Sequence[str], *, of_logit_rows: bool = False) -> None:
        """Normalise the hidden values, in each form that one of the readers needs."""
        weight = self._weights.required_vector(f"{name}.weight")
        for form in dict.fromkeys(self._weights.activations(reader) for reader in readers):
            target, epsilon = self._inputs[form], self._found.epsilon
            self._tape.norm(self._hidden, weight, target, form, epsilon, of_logit_rows=of_logit_rows)

    def _products(
        self,
        parts: Sequence[tuple[str, Rows]],
        *,
        is_added: bool = False,
        of_logit_rows: bool = False,
        scale: float = 1.0,
    ) -> None:
        weights = self._weights
        self._tape.products(
            [(weights.matrix(name), target, weights.vector(f"{name}.bias")) for name, target in parts],
            self._inputs,
            [weights.activations(name) for name, _ in parts],
            is_added=is_added, of_logit_rows=of_logit_rows, scale=scale,
        )  # fmt: skip
