"""The memory that a tape works in: between its operations, and the keys and values of all sequences."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from onward.checkpoints.architecture import AltUp, Architecture, DeltaNet, Heads, LatentAttention
from onward.kernels.activations import ACTIVATIONS, ActivationName
from onward.kernels.altup_tape import AltUpStates
from onward.kernels.attention_shape import AttentionShape
from onward.kernels.memory import Rows
from onward.kernels.panels import panel_count
from onward.kernels.products import OUT_BYTES
from onward.kernels.recurrence_tape import Kept
from onward.kernels.tape import float_row_bytes
from onward.kernels.weight_types import PANEL_ROWS
from onward.runtimes.native.weights import Weights, matrix_names


@dataclass(frozen=True)
class Cache:
    """Of each layer: the shape of its attention, and the keys and values that it attends to, or what else it keeps of
    positions: rows of blocks."""

    shapes: Sequence[AttentionShape]
    layers: Sequence[Rows]
    kept: Mapping[int, Kept]
    """Of layers that keep a state of each sequence."""


class HeadBuffers:
    """The memory of attention, for heads of some sizes."""

    def __init__(self, heads: Heads, rows: int, *, is_gated: bool) -> None:
        queries, attended = heads.num_heads * heads.head_size, heads.num_heads * heads.value_size
        keys = heads.num_kv_heads * max(heads.head_size, heads.value_size)
        self.queries, self.attended, self.keys, self.values = (
            Rows.allocate(rows, float_row_bytes(numbers)) for numbers in (queries, attended, keys, keys)
        )
        self.gates = Rows.allocate(rows, float_row_bytes(queries if is_gated else 0))
        padded = -(-heads.head_size // 16) * 16
        self.rotated = Rows.exactly(rows, 4 * heads.num_heads * padded)


class LatentBuffers:
    """The memory of what keys, values and queries are made of, and of what keys of all heads have in common."""

    def __init__(self, latent: LatentAttention, common: int, rows: int) -> None:
        self.keys, self.queries, self.common = (
            Rows.allocate(rows, float_row_bytes(numbers)) for numbers in (latent.rank, latent.query_rank, common)
        )


class DeltaBuffers:
    """The memory of a delta rule: queries, keys and values, what it returns and a gate of that, and gates of heads."""

    def __init__(self, delta: DeltaNet, rows: int) -> None:
        self.mixed, self.returned, self.gates, self.alpha, self.beta = (
            Rows.allocate(rows, float_row_bytes(numbers))
            for numbers in (delta.width, delta.values, delta.values, delta.num_heads, delta.num_heads)
        )


class AltUpBuffers:
    """The memory of several hidden states: as layers leave them, and as they are predicted; what says how, and how they
    are predicted or corrected; and numbers between two small matrices."""

    def __init__(self, altup: AltUp, hidden: int, rows: int) -> None:
        whole = altup.count * float_row_bytes(hidden)
        self.states, self.predicted = (AltUpStates(Rows.allocate(rows, whole), altup.count, hidden) for _ in range(2))
        self.modalities, self.coefficients, self.low = (
            Rows.allocate(rows, float_row_bytes(panel_count(numbers) * PANEL_ROWS))
            for numbers in (altup.count, altup.count * altup.count, altup.laurel_rank)
        )


class Buffers:
    """The memory between the operations of a step of up to `rows` rows. Tapes of one model share it: no two of them
    are walked at once."""

    def __init__(self, found: Architecture, weights: Weights, rows: int) -> None:
        self._rows = rows
        self._longest = max(weights.matrix(name).padded_inputs for name in matrix_names(found, weights))
        self.hidden = self.floats(found.hidden)
        self.embedded = self.floats(found.embedding_size)
        self.added = self.floats(found.hidden) if found.has_norms_after else self.hidden
        self.convolved = self.floats(3 * found.hidden if found.convolution_layers else 0)
        layers = range(found.num_layers)
        self.heads = {
            heads: HeadBuffers(heads, rows, is_gated=found.has_gated_attention)
            for heads in dict.fromkeys(map(found.heads_of, layers))
        }
        self.latent = LatentBuffers(found.latent, found.rope.size, rows) if found.latent and found.rope else None
        self.delta = None if found.delta is None else DeltaBuffers(found.delta, rows)
        space = found.state_space
        self.mixed = self.floats(space.inner + space.width + space.num_heads if space else 0)
        """Of a state space: a gate, what is convolved, and times."""
        inner = {found.mixture.shared_feed_forward if found.mixture else 0, *map(found.feed_forward_of, layers)} - {0}
        self.units = {size: (self.floats(size), self.floats(size)) for size in inner}
        """By inner size: a feed-forward layer's gate, and what it is multiplied with."""
        is_twofold = found.mixture is not None and found.mixture.is_beside_dense
        self.sum = self.floats(found.hidden) if is_twofold else self.hidden
        """What a layer's two results add up to, where there are two."""
        self.altup = None if found.altup is None else AltUpBuffers(found.altup, found.hidden, rows)
        self.layer_inputs = self.floats((found.num_layers + 1) * found.layer_input)
        """First the gate of the layer that is computed, then each layer's input."""
        output = weights.matrix(weights.output_name())
        self.logits = Rows.allocate(rows, panel_count(output.rows) * OUT_BYTES)
        self._inputs: dict[ActivationName, Rows] = {}
        self._low: dict[int, Rows] = {}

    @property
    def carried(self) -> list[Rows]:
        """What a layer reads of the layers before it, apart from keys and values."""
        return [self.hidden, self.layer_inputs, *([] if self.altup is None else [self.altup.states.rows])]

    def floats(self, numbers: int) -> Rows:
        """Return new rows of float32."""
        return Rows.allocate(self._rows, float_row_bytes(numbers))

    def inputs(self, form: ActivationName) -> Rows:
        """Return what products read, in a form of activations."""
        if form not in self._inputs:
            self._inputs[form] = Rows.spread(self._rows, ACTIVATIONS[form].row_bytes(self._longest))
        return self._inputs[form]

    def low(self, rank: int) -> Rows:
        """Return what an adapter's first matrices make of a row. Those of as many panels share it: products write whole
        panels, and what is beyond them stays zero."""
        panels = panel_count(rank)
        if panels not in self._low:
            self._low[panels] = self.floats(panels * PANEL_ROWS)
        return self._low[panels]
