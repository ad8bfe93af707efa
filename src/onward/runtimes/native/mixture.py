"""A layer of experts on a tape:

    chosen, weights = the best of the router's logits
    h += sum of weights[r] * W_down (activation(W_gate h') * W_up h') of expert chosen[r]        best first

Experts without a gate have activation(W_up h'). Where weights multiply what an expert reads, they multiply its first
products, W_gate h' and W_up h', instead of what it returns: that is the same.

Rows lie in order of experts in between, so that each expert's weights are read once per step.
"""

from __future__ import annotations

from collections.abc import Mapping
from copy import copy

from onward.checkpoints.architecture import Architecture
from onward.kernels.activations import ACTIVATIONS, ActivationName
from onward.kernels.expert_tape import ExpertTape
from onward.kernels.memory import Rows
from onward.kernels.panels import panel_count
from onward.kernels.products import OUT_BYTES
from onward.kernels.tape import float_row_bytes
from onward.runtimes.native.expert_cache import ExpertCache
from onward.runtimes.native.weights import Weights


class ExpertRecords:
    """Writes the records of layers of experts, `on` a tape. `rows`: the most rows of a step. Keeps the memory between
    operations."""

    def __init__(self, found: Architecture, weights: Weights, cache: ExpertCache, rows: int) -> None:
        mixture = found.mixture
        assert mixture is not None
        self._found, self._mixture, self._weights, self._cache = found, mixture, weights, cache
        self._tape: ExpertTape
        self.logits = Rows.allocate(rows, panel_count(mixture.count) * OUT_BYTES)
        """Of the router, which is to be computed before `write`."""
        self.shared = Rows.allocate(rows, float_row_bytes(found.hidden))
        self.shared_gates = Rows.allocate(rows, OUT_BYTES)
        """What an expert returns that all tokens use, and the logits of its gate: to be computed before `combine`."""
        self._uses = rows * mixture.used
        self._products_of = {part: self._floats(mixture.feed_forward) for part in mixture.inputs}
        self._results = self._floats(found.hidden)
        self._inputs: dict[ActivationName, Rows] = {}
        self._units: dict[ActivationName, Rows] = {}
        for name, (matrix, _) in cache.matrices.items():
            rows_of = self._units if name.endswith("ffn_down_exps") else self._inputs
            form = weights.activations(name)
            size = ACTIVATIONS[form].row_bytes(matrix.padded_inputs)
            if form not in rows_of or rows_of[form].stride < size:
                rows_of[form] = Rows.spread(self._uses, size)

    def on(self, tape: ExpertTape) -> ExpertRecords:
        """Return what writes the records to a tape. Whatever tape that is, they use the same memory."""
        other = copy(self)
        other._tape = tape
        return other

    def _floats(self, numbers: int) -> Rows:
        return Rows.allocate(self._uses, float_row_bytes(numbers))

    def write(self, layer: int, inputs: Mapping[ActivationName, Rows]) -> None:
        """Write what the experts of a layer return for `inputs`, normalised rows in each form of activations, which are
        read no more afterwards."""
        tape, mixture, cache, prefix = self._tape, self._mixture, self._cache, f"blk.{layer}.ffn_"
        experts, routing = cache.experts[layer], cache.routings[layer]
        down = f"{prefix}down_exps"
        products = [(f"{prefix}{part}_exps", target) for part, target in self._products_of.items()]
        tape.route(
            self.logits, routing, experts, is_normalised=mixture.is_normalised, scale=mixture.scale,
            scales=self._weights.vector(f"{down}.scale"), is_sigmoid=mixture.is_sigmoid,
            bias=self._weights.vector(f"blk.{layer}.exp_probs_b.bias"), groups=mixture.groups,
            used_groups=mixture.used_groups, is_by_logit=mixture.is_by_logit,
        )  # fmt: skip
        for form in {self._weights.activations(name): None for name, _ in products}:
            tape.gather(inputs[form], self._found.hidden, self._inputs[form], form, routing)
        self._products(products, self._inputs, layer)
        form = self._weights.activations(down)
        gate, up = self._products_of.get("gate"), self._products_of["up"]
        if mixture.weighs_inputs:
            tape.weigh(self._products_of["gate"], up, mixture.feed_forward, routing)
        tape.unit(gate, up, mixture.feed_forward, self._units[form], form, self._found.activation, mixture.used)
        self._products([(down, self._results)], self._units, layer)

    def combine(self, target: Rows, shared: Rows | None, gates: Rows | None, *, is_added: bool = True) -> None:
        """Add what the experts of the last layer return, and the shared one, to `target`, or write it there."""
        scale = self._found.residual_scale * self._mixture.result_scale
        self._tape.combine(
            self._results, self._found.hidden, self._cache.routing, target, scale=scale, shared=shared, gates=gates,
            is_added=is_added,
        )  # fmt: skip

    def _products(self, parts: list[tuple[str, Rows]], sources: dict[ActivationName, Rows], layer: int) -> None:
        matrices, experts, routing = self._cache.matrices, self._cache.experts[layer], self._cache.routings[layer]
        self._tape.expert_products(
            [(*matrices[name], target, self._weights.expert_biases(name)) for name, target in parts], sources,
            [self._weights.activations(name) for name, _ in parts], experts, routing,
        )  # fmt: skip
