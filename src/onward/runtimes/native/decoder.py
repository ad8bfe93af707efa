"""A decoder's step as a tape, one record per operation: the whole of the model, in the order of its paper.

    h = embedding[token]
    for each layer:
        q, k, v = W h' + b                            h' = norm(h)
        h += W attention(rotate(q), rotate(k), v)
        h += W (activation(W h') * W h')              h' = norm(h)
    logits = W norm(h)                                of the rows whose logits are wanted

Some layers have a short convolution in place of attention: h += W convolution(W h'). Others have a delta rule after a
convolution: h += W (norm(rule(convolution(W h'))) * silu(W h')), or a state space: h += W norm(space(…) * silu(W h')).

Where architectures depart from it, Architecture says: norms after layers instead of before them, parallel layers,
layers of one part, windows, other positions, scales, heads of two sizes, keys of another layer, inputs of their own,
several hidden states.
Which norms and biases there are, the tensors say.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from onward.checkpoints.architecture import Mixture
from onward.kernels.memory import Rows, Vector
from onward.kernels.operands import Norm
from onward.runtimes.native.altup_records import ATTENTION_SCALE, AltUpRecords
from onward.runtimes.native.attention_records import AttentionRecords
from onward.runtimes.native.buffers import Cache
from onward.runtimes.native.embedding_records import EmbeddingRecords
from onward.runtimes.native.mixture import ExpertRecords
from onward.runtimes.native.model_tape import ModelTape
from onward.runtimes.native.positions import Positions
from onward.runtimes.native.state_records import StateRecords


class Decoder:
    """Writes the tape."""

    def __init__(
        self, shared: ModelTape, positions: Positions, cache: Cache, experts: ExpertRecords | None = None
    ) -> None:
        """`experts`: writes the layers that have some, if there are any."""
        found, buffers = shared.found, shared.buffers
        self._shared, self._found, self._weights = shared, found, shared.weights
        self._tape, self._buffers = shared.tape, buffers
        self._cache, self._experts = cache, experts
        self._hidden, self._added = buffers.hidden, buffers.added
        self._states = StateRecords(shared)
        self._attention = AttentionRecords(shared, positions, cache)
        self._embeddings = EmbeddingRecords(shared)
        self._altup: AltUpRecords | None = None
        if found.altup is not None and buffers.altup is not None:
            self._altup = AltUpRecords(shared, found.altup, buffers.altup)
        self._first_of_rest = found.last_kept_layer + (found.last_kept_layer in cache.kept)

    def write_first(self) -> None:
        """Write what comes before the last layer of which later positions read something; it, too, if it has states."""
        self._embeddings.write_hidden()
        if self._altup is not None:
            self._altup.begin()
        for layer in range(self._first_of_rest):
            self._block(layer)

    def write_kept(self) -> None:
        """Write what later positions read of that layer, and nothing else, unless it has states."""
        layer = self._found.last_kept_layer
        if self._first_of_rest > layer:
            return
        self._begin(layer)
        kept = self._kept(layer)
        if self._altup is not None:
            self._altup.predict(layer)
        self._read(f"blk.{layer}.attn_norm", [name for name, _ in kept])
        self._shared.products(kept)
        if layer in self._found.convolution_layers:
            self._tape.keep(self._buffers.convolved, self._found.hidden, self._cache.layers[layer])
        else:
            self._attention.rotate(layer, has_queries=False)

    def write_rest(self, norm: str = "output_norm", target: Rows | None = None) -> None:
        """Write that layer and all that follow; `target`: where hidden states after the last norm are wanted."""
        for layer in range(self._first_of_rest, self._found.num_layers):
            self._block(layer)
        if self._altup is not None:
            self._altup.finish()
        if target is not None:
            self._tape.norm(self._hidden, self._shared.norm(norm), target, "float32")

    def write_output(self, norm: str = "output_norm") -> None:
        """Write the logits, float32 [rows, vocabulary], to those of the buffers."""
        self._embeddings.write_logits(norm)

    def _begin(self, layer: int) -> None:
        self._tape.begin_part(self._weights.stream_index(self._mixer_output(layer)))

    def _kept(self, layer: int) -> list[tuple[str, Rows]]:
        """Return the matrices whose products later positions read, with where these lie."""
        if layer in self._found.convolution_layers:
            return [(f"blk.{layer}.shortconv.in_proj", self._buffers.convolved)]
        parts = self._states.inputs(layer)
        if not self._found.has_attention(layer) or self._found.keys_of(layer) != layer:
            return parts
        return [*parts, *self._attention.keys(layer)]

    def _block(self, layer: int) -> None:
        found, prefix, norm = self._found, f"blk.{layer}.", f"blk.{layer}.attn_norm"
        self._begin(layer)
        feeds = self._inputs_of_unit(prefix, "", found.feed_forward_of(layer))
        mixture = found.mixture
        experts = self._experts if mixture is not None and layer in mixture.layers else None
        if self._altup is not None:
            self._altup.predict(layer)
        if layer not in found.mixerless_layers:
            projections = self._kept(layer)
            if found.has_attention(layer):
                projections = [*self._attention.queries(layer), *projections]
            if self._altup is not None:
                projections += self._altup.beside_attention(layer)
            self._read(norm, [name for name, _ in projections])
            self._shared.products(projections)
            if self._altup is not None:
                self._altup.add_beside_attention(layer)
            if found.has_two_norms or not found.is_parallel:
                norm = f"{prefix}ffn_norm"
            if found.is_parallel and mixture is not None and experts is not None:
                self._mixture(experts, mixture, layer, norm)  # attention has what it reads already
            elif found.is_parallel:  # the feed-forward layer reads before attention's result is added
                self._read(norm, [name for name, _ in feeds])
                self._shared.products(feeds)
            self._mix(layer)
        if mixture is not None and experts is not None:
            if mixture.is_beside_dense:
                self._dense_and_experts(experts, layer, feeds)
            elif not found.is_parallel:
                self._mixture(experts, mixture, layer, norm)
        elif found.is_feeding(layer):
            if not found.is_parallel:
                self._read(norm, [name for name, _ in feeds])
                self._shared.products(feeds)
            numbers = found.xielu[layer] if found.xielu else ()
            self._down(f"{prefix}ffn_down", feeds, numbers, found.gate_cutoffs[layer] if found.gate_cutoffs else None)
            self._add(f"{prefix}ffn_down", f"{prefix}post_ffw_norm", self._output_scale(layer, has_input=False))
        if found.layer_input:
            self._add_input(layer)

    def _inputs_of_unit(self, prefix: str, end: str, size: int) -> list[tuple[str, Rows]]:
        """Return the matrices of a feed-forward layer, or of a shared expert, that read its input: a gate if it has
        one, and the other one, with where their products lie."""
        buffers = zip(("gate", "up"), self._buffers.units[size], strict=True) if size else ()
        named = [(f"{prefix}ffn_{part}{end}", rows) for part, rows in buffers]
        return [(name, rows) for name, rows in named if self._weights.has(f"{name}.weight")]

    def _mix(self, layer: int) -> None:
        """Write the addition of what a layer makes of several positions."""
        norm = f"blk.{layer}.post_attention_norm"
        if layer in self._found.convolution_layers:
            self._convolve(layer)
            self._add(self._mixer_output(layer), norm)
        if self._found.has_attention(layer):
            self._attention.rotate(layer)
            self._attention.attend(layer)
            self._add(self._mixer_output(layer), norm, 1.0 if self._altup is None else ATTENTION_SCALE)
        if layer in self._cache.kept:
            self._states.write(layer, self._cache.kept[layer])
            self._add(f"blk.{layer}.ssm_out", norm)

    def _output_scale(self, layer: int, *, has_input: bool) -> float:
        """Return by what a layer's result is multiplied when the last of its parts is added: its own input, or what
        its feed-forward layer returns."""
        if has_input != bool(self._found.layer_input):
            return 1.0
        scale = self._weights.vector(f"blk.{layer}.layer_output_scale.weight")
        return 1.0 if scale is None else float(scale.values[0])

    def _down(
        self,
        name: str,
        feeds: Sequence[tuple[str, Rows]],
        numbers: Sequence[float] = (),
        cutoff: float | None = None,
    ) -> None:
        """Write what a feed-forward layer's last product reads. `feeds`: its gate, if it has one, and the other one;
        `numbers`: its activation's own; `cutoff`: see Architecture.gate_cutoffs."""
        gate = feeds[0][1] if len(feeds) > 1 else None
        if gate is not None and cutoff is not None:
            self._tape.sparsify(gate, self._weights.matrix(name).inputs, cutoff)
        own = Vector.of(np.array(numbers, np.float32)) if numbers else None
        size = self._weights.matrix(name).inputs
        self._shared.read_unit(gate, feeds[-1][1], size, name, self._found.activation, own)

    def _add_input(self, layer: int) -> None:
        """Write the addition of a layer's own input, as far as a gate lets it through."""
        found, shared, prefix = self._found, self._shared, f"blk.{layer}."
        gate, size = self._buffers.layer_inputs, found.layer_input
        if self._altup is not None:
            self._altup.correct(layer)
            self._altup.read_first(layer, f"{prefix}inp_gate")
        else:
            shared.read(self._hidden, found.hidden, f"{prefix}inp_gate")
        shared.products([(f"{prefix}inp_gate", gate)])
        shared.read_unit(gate, gate.without(4 * size * (layer + 1)), size, f"{prefix}proj", found.activation)
        if self._altup is not None:
            shared.products([(f"{prefix}proj", self._added)])
            self._altup.add_to_others(f"{prefix}post_norm")
        else:
            self._add(f"{prefix}proj", f"{prefix}post_norm", self._output_scale(layer, has_input=True))

    def _dense_and_experts(self, experts: ExpertRecords, layer: int, feeds: Sequence[tuple[str, Rows]]) -> None:
        """Write a layer that has both, side by side. Its router reads rows with a norm of its own."""
        found, tape, prefix, added, total = self._found, self._tape, f"blk.{layer}.", self._added, self._buffers.sum
        self._read(f"{prefix}ffn_norm", [name for name, _ in feeds])
        self._shared.products(feeds)
        self._down(f"{prefix}ffn_down", feeds)
        self._shared.products([(f"{prefix}ffn_down", added)])
        tape.norm(added, self._shared.norm(f"{prefix}post_ffw_norm_1"), total, "float32")
        router = f"{prefix}ffn_gate_inp"
        scale = self._weights.required_vector(f"{router}.scale").values[: found.hidden] / np.sqrt(
            np.float32(found.hidden)
        )
        self._shared.read_normalised(self._hidden, Norm(Vector.of(scale), found.epsilon), router)
        self._shared.products([(router, experts.logits)])
        self._read(f"{prefix}pre_ffw_norm_2", [f"{prefix}ffn_gate_exps", f"{prefix}ffn_up_exps"])
        experts.write(layer, self._shared.inputs)
        experts.combine(added, None, None, is_added=False)
        tape.norm(added, self._shared.norm(f"{prefix}post_ffw_norm_2"), total, "float32", added_scale=1.0)
        self._add_normalised(total, f"{prefix}post_ffw_norm", self._output_scale(layer, has_input=False))

    def _mixture(self, experts: ExpertRecords, mixture: Mixture, layer: int, norm: str) -> None:
        """Write a layer of experts, which read what this norm makes."""
        prefix = f"blk.{layer}.ffn_"
        shared = self._inputs_of_unit(f"blk.{layer}.", "_shexp", mixture.shared_feed_forward)
        has_gate = self._weights.has(f"{prefix}gate_inp_shexp.weight")
        products = [(f"{prefix}gate_inp", experts.logits), *shared]
        if has_gate:
            products.append((f"{prefix}gate_inp_shexp", experts.shared_gates))
        self._read(norm, [name for name, _ in products] + [f"{prefix}{part}_exps" for part in mixture.inputs])
        self._shared.products(products)
        experts.write(layer, self._shared.inputs)
        if shared:
            self._down(f"{prefix}down_shexp", shared)
            self._shared.products([(f"{prefix}down_shexp", experts.shared)])
        parts = experts.shared if shared else None, experts.shared_gates if has_gate else None
        experts.combine(self._added, *parts, is_added=not self._found.has_norms_after)
        if self._found.has_norms_after:
            self._add_normalised(self._added, f"blk.{layer}.post_ffw_norm", 1.0)

    def _mixer_output(self, layer: int) -> str:
        """Return the name of the last matrix of a layer's attention, or of what it has in its place, if it has; else of
        a matrix that it has."""
        if layer in self._found.mixerless_layers:
            dense = f"blk.{layer}.ffn_down"
            return dense if self._weights.has(f"{dense}.weight") else f"blk.{layer}.ffn_gate_inp"
        if layer not in self._found.convolution_layers and not self._found.has_attention(layer):
            return f"blk.{layer}.ssm_out"
        return f"blk.{layer}.{'shortconv.out_proj' if layer in self._found.convolution_layers else 'attn_output'}"

    def _convolve(self, layer: int) -> None:
        """Write a layer's convolution, in the form that its output reads."""
        width, source, cache = self._found.hidden, self._buffers.convolved, self._cache.layers[layer]
        taps = self._weights.by_input(f"blk.{layer}.shortconv.conv.weight")
        self._tape.keep(source, width, cache)
        for form in self._weights.forms(self._mixer_output(layer)):
            self._tape.convolve(source, width, taps, cache, self._shared.inputs[form], form)

    def _read(self, norm: str, readers: Sequence[str]) -> None:
        """Write the hidden values, normalised unless the architecture reads them as they are, in each form that one of
        the readers needs."""
        if self._found.has_norms_before:
            self._shared.read_normalised(self._hidden, self._shared.norm(norm), *readers)
        else:
            self._shared.read(self._hidden, self._found.hidden, *readers)

    def _add(self, name: str, norm_after: str, total_scale: float = 1.0) -> None:
        """Add a product, normalised where the architecture says so, to the hidden values, and normalise the sum, or
        multiply it."""
        if not self._found.has_norms_after:
            self._shared.products([(name, self._hidden)], is_added=True, scale=self._found.residual_scale)
            if self._found.has_norms_of_sums:
                self._tape.norm(self._hidden, self._shared.norm(norm_after), self._hidden, "float32")
            return
        self._shared.products([(name, self._added)])
        self._add_normalised(self._added, norm_after, total_scale)

    def _add_normalised(self, added: Rows, norm: str, total_scale: float) -> None:
        scale = self._found.residual_scale
        self._tape.norm(
            added, self._shared.norm(norm), self._hidden, "float32", added_scale=scale, total_scale=total_scale
        )
