"""A decoder's step as a tape, one record per operation: the whole of the model, in the order of its paper.

    h = embedding[token]
    for each layer:
        q, k, v = W h' + b                            h' = norm(h)
        h += W attention(rotate(q), rotate(k), v)
        h += W (activation(W h') * W h')              h' = norm(h)
    logits = W norm(h)                                of the rows whose logits are wanted

Some layers have a short convolution in attention's place: h += W convolution(W h').

Where architectures depart from it, Architecture says: norms after layers instead of before them, parallel layers,
windows, other positions, scales. Which norms and biases there are, the tensors say.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from onward.checkpoints.architecture import Architecture
from onward.checkpoints.mixtures import EXPERT_PARTS
from onward.kernels.activations import ACTIVATIONS, ActivationName
from onward.kernels.attention_shape import AttentionShape
from onward.kernels.maths import LOG2_E
from onward.kernels.memory import Rows
from onward.kernels.panels import panel_count
from onward.kernels.products import OUT_BYTES
from onward.kernels.tape import Norm, TapeBuilder, float_row_bytes
from onward.kernels.weight_types import PANEL_ROWS
from onward.runtimes.native.mixture import ExpertRecords
from onward.runtimes.native.positions import Positions
from onward.runtimes.native.weights import EMBEDDING, POSITION_EMBEDDING, Weights


@dataclass(frozen=True)
class Cache:
    """What each layer keeps of positions, keys and values mostly: rows of blocks."""

    layers: Sequence[Rows]

    @classmethod
    def within(cls, blocks: Rows, sizes: Sequence[int]) -> Cache:
        """Return the layers of blocks that have all of them side by side, of these sizes."""
        return cls([blocks.without(sum(sizes[:layer])) for layer in range(len(sizes))])


def kept_bytes(found: Architecture, shape: AttentionShape) -> list[int]:
    """Return the bytes of each layer in a KV block."""
    convolved = shape.kept_bytes(found.hidden)
    return [convolved if layer in found.convolution_layers else shape.block_bytes for layer in range(found.num_layers)]


def matrix_names(found: Architecture, weights: Weights) -> Iterator[str]:
    """Yield the names of all matrices that a decoder multiplies with."""
    parts = (
        "attn_q", "attn_k", "attn_v", "attn_output", "shortconv.in_proj", "shortconv.out_proj",
        "ffn_gate", "ffn_up", "ffn_down", "ffn_gate_inp",
        "ffn_gate_inp_shexp", "ffn_gate_shexp", "ffn_up_shexp", "ffn_down_shexp",
    )  # fmt: skip
    for layer in range(found.num_layers):
        yield from (name for part in parts if weights.has((name := f"blk.{layer}.{part}") + ".weight"))
    yield weights.output_name()


def expert_names(found: Architecture) -> Iterator[str]:
    """Yield the names of all tensors of experts."""
    for layer in sorted(found.mixture.layers) if found.mixture else ():
        yield from (f"blk.{layer}.ffn_{part}_exps" for part in EXPERT_PARTS)


class Buffers:
    """The memory between the operations of a step of up to `rows` rows. Tapes of one model share it: no two of them
    are walked at once."""

    def __init__(self, found: Architecture, weights: Weights, rows: int) -> None:
        self._rows = rows
        self._longest = max(weights.matrix(name).padded_inputs for name in matrix_names(found, weights))
        self.hidden = self.floats(found.hidden)
        self.added = self.floats(found.hidden) if found.has_norms_after else self.hidden
        queries, keys = found.num_heads * found.head_size, found.num_kv_heads * found.head_size
        self.queries, self.keys, self.values = self.floats(queries), self.floats(keys), self.floats(keys)
        padded = -(-found.head_size // 16) * 16
        self.rotated = Rows.exactly(rows, 4 * found.num_heads * padded)
        self.attended = self.floats(queries)
        self.convolved = self.floats(3 * found.hidden if found.convolution_layers else 0)
        inner = max(found.feed_forward, found.mixture.shared_feed_forward if found.mixture else 0)
        self.gate, self.up = self.floats(inner), self.floats(inner)
        output = weights.matrix(weights.output_name())
        self.logits = Rows.allocate(rows, panel_count(output.rows) * OUT_BYTES)
        self._inputs: dict[ActivationName, Rows] = {}
        self._low: dict[int, Rows] = {}

    def floats(self, numbers: int) -> Rows:
        """Return new rows of float32."""
        return Rows.allocate(self._rows, float_row_bytes(numbers))

    def inputs(self, form: ActivationName) -> Rows:
        """Return what products read, in a form of activations."""
        if form not in self._inputs:
            self._inputs[form] = Rows.allocate(self._rows, ACTIVATIONS[form].row_bytes(self._longest))
        return self._inputs[form]

    def low(self, rank: int) -> Rows:
        """Return what an adapter's first matrices make of a row. Those of as many panels share it: products write whole
        panels, and what is behind them stays zero."""
        panels = panel_count(rank)
        if panels not in self._low:
            self._low[panels] = self.floats(panels * PANEL_ROWS)
        return self._low[panels]


class Decoder:
    """Writes the tape."""

    def __init__(
        self,
        found: Architecture,
        weights: Weights,
        tape: TapeBuilder,
        buffers: Buffers,
        experts: ExpertRecords | None = None,
    ) -> None:
        """`experts`: writes the layers that have some, if there are any."""
        self._found, self._weights, self._tape, self._buffers = found, weights, tape, buffers
        self._experts = experts
        readers = [*matrix_names(found, weights), *expert_names(found)]
        self._inputs = {form: buffers.inputs(form) for name in readers for form in weights.forms(name)}
        self._hidden, self._added, self._attended = buffers.hidden, buffers.added, buffers.attended
        self._queries, self._keys, self._values = buffers.queries, buffers.keys, buffers.values
        self._rotated, self._gate, self._up = buffers.rotated, buffers.gate, buffers.up

    def write(self, positions: Positions, cache: Cache) -> None:
        """Write all records. The logits, float32 [rows, vocabulary], are those of the buffers."""
        found, weights = self._found, self._weights
        self._tape.embed(weights.table(EMBEDDING), self._hidden, found.embedding_scale)
        if found.rope is None:
            self._tape.embed(weights.table(POSITION_EMBEDDING), self._hidden, of_positions=True, is_added=True)
        for layer in range(found.num_layers):
            self._tape.begin_part(weights.stream_index(self._mixer_output(layer)))
            self._block(layer, positions, cache.layers[layer])
        output, logits = weights.output_name(), self._buffers.logits
        self._tape.begin_part(weights.stream_index(output))
        self._read("output_norm", [output], of_logit_rows=True)
        self._products([(output, logits)], of_logit_rows=True, scale=found.logit_scale)
        if found.logit_cap is not None:
            self._tape.cap(logits, panel_count(weights.matrix(output).rows) * PANEL_ROWS, found.logit_cap)

    def _block(self, layer: int, positions: Positions, cache: Rows) -> None:
        prefix = f"blk.{layer}."
        is_convolution = layer in self._found.convolution_layers
        projections = [
            (f"{prefix}attn_q", self._queries), (f"{prefix}attn_k", self._keys), (f"{prefix}attn_v", self._values)
        ]  # fmt: skip
        if is_convolution:
            projections = [(f"{prefix}shortconv.in_proj", self._buffers.convolved)]
        feeds = [(f"{prefix}ffn_gate", self._gate), (f"{prefix}ffn_up", self._up)]
        feeds = [part for part in feeds if self._weights.has(f"{part[0]}.weight")]
        self._read(f"{prefix}attn_norm", [name for name, _ in projections])
        self._products(projections)
        if self._found.is_parallel:  # the feed-forward layer reads before attention's result is added
            if self._weights.has(f"{prefix}ffn_norm.weight"):
                self._read(f"{prefix}ffn_norm", [name for name, _ in feeds])
            else:
                self._read(f"{prefix}attn_norm", [name for name, _ in feeds])
            self._products(feeds)
        if is_convolution:
            self._convolve(layer, cache)
        else:
            self._attend(layer, positions, cache)
        self._add(self._mixer_output(layer), f"{prefix}post_attention_norm")
        if self._experts is not None and self._weights.has(f"{prefix}ffn_gate_inp.weight"):
            self._mixture(self._experts, layer)
            return
        if not self._found.is_parallel:
            self._read(f"{prefix}ffn_norm", [name for name, _ in feeds])
            self._products(feeds)
        self._down(f"{prefix}ffn_down", self._gate if len(feeds) > 1 else None)
        self._add(f"{prefix}ffn_down", f"{prefix}post_ffw_norm")

    def _down(self, name: str, gate: Rows | None) -> None:
        """Write what a feed-forward layer's last product reads."""
        for form in self._weights.forms(name):
            inputs = self._weights.matrix(name).inputs
            self._tape.unit(gate, self._up, inputs, self._inputs[form], form, self._found.activation)

    def _mixture(self, experts: ExpertRecords, layer: int) -> None:
        """Write a layer of experts."""
        prefix = f"blk.{layer}.ffn_"
        router = f"{prefix}gate_inp"
        products = [(router, experts.logits)]
        has_shared, has_gate = (self._weights.has(f"{prefix}{part}.weight") for part in ("up_shexp", "gate_inp_shexp"))
        if has_shared:
            products += [(f"{prefix}gate_shexp", self._gate), (f"{prefix}up_shexp", self._up)]
        if has_gate:
            products.append((f"{prefix}gate_inp_shexp", experts.shared_gates))
        self._read(f"{prefix}norm", [name for name, _ in products] + [f"{prefix}gate_exps", f"{prefix}up_exps"])
        self._products(products)
        experts.write(layer, self._inputs)
        if has_shared:
            self._down(f"{prefix}down_shexp", self._gate)
            self._products([(f"{prefix}down_shexp", experts.shared)])
        experts.combine(
            self._hidden, experts.shared if has_shared else None, experts.shared_gates if has_gate else None
        )

    def _mixer_output(self, layer: int) -> str:
        """Return the name of the last matrix of a layer's attention, or of what it has in its place."""
        return f"blk.{layer}.{'shortconv.out_proj' if layer in self._found.convolution_layers else 'attn_output'}"

    def _convolve(self, layer: int, cache: Rows) -> None:
        """Write a layer's convolution, in the form that its output reads."""
        width, source = self._found.hidden, self._buffers.convolved
        taps = self._weights.by_input(f"blk.{layer}.shortconv.conv.weight")
        self._tape.keep(source, width, cache)
        for form in self._weights.forms(self._mixer_output(layer)):
            self._tape.convolve(source, width, taps, cache, self._inputs[form], form)

    def _attend(self, layer: int, positions: Positions, cache: Rows) -> None:
        """Write what a layer attends to, in the form that its output reads."""
        found, tape = self._found, self._tape
        self._norm_heads(f"blk.{layer}.attn_q_norm", self._queries, found.num_heads)
        self._norm_heads(f"blk.{layer}.attn_k_norm", self._keys, found.num_kv_heads)
        has_window = layer in found.window_layers
        tables, growth = positions.of_layer(layer)
        scale = found.attention_scale or 1.0 / math.sqrt(found.head_size)
        tape.rotate(self._queries, self._keys, self._values, self._rotated, tables, cache, scale * LOG2_E, growth)
        sinks = self._weights.vector(f"blk.{layer}.attn_sinks.weight")
        window = found.window if has_window else None
        tape.attend(self._rotated, cache, self._attended, window, sinks=sinks, cap=found.attention_cap)
        for form in self._weights.forms(f"blk.{layer}.attn_output"):
            tape.quantise(self._attended, found.num_heads * found.head_size, self._inputs[form], form)

    def _norm_heads(self, name: str, values: Rows, num_heads: int) -> None:
        """Normalise queries or keys where there is a norm for them: per head, or over all heads where it is as long. A
        layer norm as long as all heads has the weights of each, one after the other (StableLM)."""
        if not self._weights.has(f"{name}.weight"):
            return
        norm = self._norm(name)
        if norm.weight.length == self._found.head_size or norm.is_centred:
            self._tape.norm_heads(values, num_heads, norm)
        else:
            self._tape.norm(values, norm, values, "float32")

    def _norm(self, name: str) -> Norm:
        weights, found = self._weights, self._found
        weight = weights.required_vector(f"{name}.weight")
        return Norm(weight, found.epsilon, weights.vector(f"{name}.bias"), found.norm == "layer")

    def _read(self, norm: str, readers: Sequence[str], *, of_logit_rows: bool = False) -> None:
        """Write the hidden values, normalised unless the architecture reads them as they are, in each form that one of
        the readers needs."""
        for form in dict.fromkeys(form for reader in readers for form in self._weights.forms(reader)):
            target = self._inputs[form]
            if of_logit_rows or self._found.has_norms_before:
                self._tape.norm(self._hidden, self._norm(norm), target, form, of_logit_rows=of_logit_rows)
            else:
                self._tape.quantise(self._hidden, self._found.hidden, target, form)

    def _add(self, name: str, norm_after: str) -> None:
        """Add a product, normalised where the architecture says so, to the hidden values."""
        scale = self._found.residual_scale
        if not self._found.has_norms_after:
            self._products([(name, self._hidden)], is_added=True, scale=scale)
            return
        self._products([(name, self._added)])
        self._tape.norm(self._added, self._norm(norm_after), self._hidden, "float32", added_scale=scale)

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
        for name, target in parts:
            self._change(name, target, of_logit_rows=of_logit_rows, scale=scale)

    def _change(self, name: str, target: Rows, *, of_logit_rows: bool, scale: float) -> None:
        """Add an adapter's change of a product: scale * B (A x), in float32, each row as alone."""
        change = self._weights.change(name)
        if change is None:
            return
        between = self._buffers.low(change.low.rows)
        sides = [(change.low, between, self._inputs["float32"]), (change.high, target, between)]
        for matrix, to, source in sides:
            is_last = matrix is change.high
            self._tape.products(
                [(matrix, to, None)], {"float32": source}, ["float32"], is_added=is_last,
                of_logit_rows=of_logit_rows, scale=change.scale * scale if is_last else 1.0,
            )  # fmt: skip
