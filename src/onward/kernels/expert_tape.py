"""Records of mixtures of experts on a tape, with all bounds checked; see expert_operations."""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from onward.kernels.activations import ACTIVATIONS, ActivationName
from onward.kernels.expert_operations import MAX_EXPERTS
from onward.kernels.interpreter import COMBINE_CODE, GATHER_CODE, GROUP_CODE, ROUTE_CODE, WEIGH_CODE
from onward.kernels.memory import Rows, Vector, address
from onward.kernels.operands import Matrix
from onward.kernels.panels import panel_count
from onward.kernels.products import OUT_BYTES, ProductKind
from onward.kernels.records import COMBINE, EXPERT_PRODUCT, GATHER, GROUP, ROUTE, ROUTING, ROUTING_WORDS, WEIGH
from onward.kernels.tape import MAX_CLAIM_BYTES, TapeBuilder, float_row_bytes

PIECE_BYTES = 49_152
"""Weights of an expert that are multiplied at a time, about."""
MIN_PIECES = 4
"""Pieces per thread that a matrix of an expert is cut into at least, while its panels last."""


@dataclass(frozen=True, slots=True)
class LayerExperts:
    """The experts of one layer, int64 [experts]: `places`, where each one's weights are, 0 for those that are not in
    memory; `uses` and `steps`, in how many steps each was used, and in which one last. Each has `num_bytes` of weights.

    `fetch`: the address of a C function that is called with `layer` where some are used that are not in memory.
    """

    layer: int
    num_bytes: int
    places: NDArray[np.int64]
    uses: NDArray[np.int64]
    steps: NDArray[np.int64]
    fetch: int


class Routing:
    """Which of `count` experts up to `rows` rows use, `used` each: written by one record, read by those that follow."""

    def __init__(self, rows: int, count: int, used: int) -> None:
        if not 0 < used <= count <= MAX_EXPERTS:
            raise ValueError(f"{used} of {count} experts cannot be used.")
        self.rows, self.count, self.used = rows, count, used
        self.chosen, self.places, self.rows_at = (np.zeros(rows * used, np.int64) for _ in range(3))
        self.weights = np.zeros(rows * used, np.float32)
        self.begins, self.active = (np.zeros(count, np.int64) for _ in range(2))
        self.words = np.zeros(ROUTING_WORDS, np.int64)
        ROUTING.set(
            self.words, num_active=0, chosen=self.chosen, weights=self.weights, begins=self.begins,
            active=self.active, places=self.places, rows=self.rows_at,
        )  # fmt: skip

    def of_layer(self) -> Routing:
        """Return the same memory with a number of active experts of its own, for one layer of several: `claim` needs it
        to stay what it was for a thread that comes late to the layer, while others are at the next."""
        other = copy(self)
        other.words = self.words.copy()
        return other

    @property
    def address(self) -> int:
        return address(self.words)

    @property
    def used_experts(self) -> NDArray[np.int64]:
        """The experts that the last step used, ascending."""
        return self.active[: int(self.words[ROUTING.offset("num_active") // 8])]


class ExpertTape(TapeBuilder):
    """Writes the records."""

    def route(
        self,
        logits: Rows,
        routing: Routing,
        experts: LayerExperts,
        *,
        is_normalised: bool,
        scale: float,
        scales: Vector | None = None,
        is_sigmoid: bool = False,
        bias: Vector | None = None,
        groups: int = 1,
        used_groups: int = 1,
        is_by_logit: bool = False,
    ) -> None:
        """Choose experts by logits, float32 [rows, experts], which may change, and put what is used in order of
        experts. Their weights are multiplied by `scale`, and each by its own one of `scales`. `bias`: added to what
        they are chosen by; `groups`: of experts, of which only `used_groups` are used; `is_by_logit`: weights are
        sigmoids, by which experts are not chosen."""
        size, rest = divmod(routing.count, groups)
        if (
            rest
            or size < (2 if is_sigmoid and groups > 1 else 1)
            or not routing.used <= size * used_groups <= size * groups
        ):
            raise ValueError(f"{routing.used} of {routing.count} experts are not in {used_groups} of {groups} groups.")
        if is_by_logit and not (is_sigmoid and bias is None and groups == 1):
            raise ValueError("Weights of experts that are chosen by logits are sigmoids, without a bias or groups.")
        if bias is not None and bias.length != routing.count:
            raise ValueError(f"A bias of {bias.length} numbers cannot be that of {routing.count} experts.")
        if scales is not None and scales.length != routing.count:
            raise ValueError(f"{routing.count} experts have {scales.length} scales.")
        logits.require(self._rows, 4 * routing.count)
        self._require_routing(routing)
        self._write(
            ROUTE, ROUTE_CODE, logits=logits, stride=logits.stride, count=routing.count, used=routing.used,
            chosen=routing.chosen, weights=routing.weights, is_normalised=is_normalised, scale=scale, scales=scales,
            is_sigmoid=is_sigmoid, bias=bias, groups=groups, used_groups=used_groups, is_by_logit=is_by_logit,
        )  # fmt: skip
        if {len(each) for each in (experts.places, experts.uses, experts.steps)} != {routing.count}:
            raise ValueError(f"A layer has {len(experts.places)} experts instead of {routing.count}.")
        self._write(
            GROUP, GROUP_CODE, used=routing.used, count=routing.count, routing=routing, experts=experts.places,
            uses=experts.uses, steps=experts.steps, fetch=experts.fetch, layer=experts.layer,
        )  # fmt: skip

    def _require_routing(self, routing: Routing) -> None:
        if routing.rows < self._rows:
            raise ValueError(f"{self._rows} rows use experts, but there is room for {routing.rows}.")

    def gather(self, source: Rows, inputs: int, target: Rows, form: ActivationName, routing: Routing) -> None:
        """Write a copy of each row for each expert that it uses, in order of experts."""
        row_bytes = ACTIVATIONS[form].row_bytes(inputs)
        self._require_routing(routing)
        source.require(self._rows, row_bytes)
        target.require(self._rows * routing.used, row_bytes)
        self._write(
            GATHER, GATHER_CODE, rows=routing.rows_at, used=routing.used, source=source, source_stride=source.stride,
            target=target, target_stride=target.stride, row_bytes=row_bytes,
        )  # fmt: skip

    def expert_products(
        self,
        parts: Sequence[tuple[Matrix, int, Rows, NDArray[np.float32] | None]],
        sources: dict[ActivationName, Rows],
        forms: Sequence[ActivationName],
        experts: LayerExperts,
        routing: Routing,
    ) -> None:
        """Multiply rows in order of experts with matrices of their experts: (shape and type, where its panels begin in
        an expert's weights, target, biases [experts, whole panels])."""
        self._require_routing(routing)
        uses = self._rows * routing.used
        for index, ((weights, offset, target, bias), form) in enumerate(zip(parts, forms, strict=True)):
            source, panels = sources[form], panel_count(weights.rows)
            source.require(uses, ACTIVATIONS[form].row_bytes(weights.padded_inputs))
            target.require(uses, panels * OUT_BYTES)
            if offset + panels * weights.panel_bytes > experts.num_bytes:
                raise ValueError(f"{panels} panels from {offset} on are not within {experts.num_bytes} bytes.")
            if bias is not None and bias.shape != (routing.count, 16 * panels):
                raise ValueError(f"Biases have the shape {bias.shape}, for {weights.rows} rows.")
            piece = max(1, min(PIECE_BYTES // weights.panel_bytes, panels // (MIN_PIECES * self._threads)))
            self._write(
                EXPERT_PRODUCT, self._kernels.expert_product_code(ProductKind(weights.type, form)),
                has_barrier=index == len(parts) - 1, experts=experts.places, offset=offset,
                panel_bytes=weights.panel_bytes, blocks=weights.blocks, num_panels=panels, source=source,
                source_stride=source.stride, target=target, target_stride=target.stride, bias=bias,
                bias_stride=panels * OUT_BYTES, routing=routing, piece=piece,
                run=max(1, MAX_CLAIM_BYTES // (piece * weights.panel_bytes)),
            )  # fmt: skip

    def weigh(self, gate: Rows, up: Rows, inputs: int, routing: Routing) -> None:
        """Multiply rows in order of experts by their weights, which then are 1: products of what experts read."""
        row_bytes = float_row_bytes(inputs)
        self._require_routing(routing)
        for rows in (gate, up):
            rows.require(self._rows * routing.used, row_bytes)
        if gate.stride != up.stride:
            raise ValueError("Gates of experts and what they are multiplied with must have rows of one length.")
        self._write(
            WEIGH, WEIGH_CODE, routing=routing, used=routing.used, gate=gate, up=up, stride=gate.stride,
            row_bytes=row_bytes,
        )  # fmt: skip

    def combine(
        self,
        source: Rows,
        inputs: int,
        routing: Routing,
        target: Rows,
        *,
        scale: float,
        shared: Rows | None = None,
        gates: Rows | None = None,
        is_added: bool = True,
    ) -> None:
        """Add to `target`, or write there, what each row's experts returned, times their weights, and a shared
        expert's row, times the sigmoid of the first number of a row of `gates`, if there are any."""
        row_bytes = float_row_bytes(inputs)
        self._require_routing(routing)
        source.require(self._rows * routing.used, row_bytes)
        target.require(self._rows, row_bytes)
        if shared is not None:
            shared.require(self._rows, row_bytes)
        if gates is not None:
            gates.require(self._rows, 4)
        self._write(
            COMBINE, COMBINE_CODE, source=source, source_stride=source.stride, routing=routing, used=routing.used,
            row_bytes=row_bytes, target=target, target_stride=target.stride, scale=scale, shared=shared,
            shared_stride=0 if shared is None else shared.stride, gates=gates,
            gate_stride=0 if gates is None else gates.stride, is_added=is_added,
        )  # fmt: skip
