"""What the writers of a model's parts share: its tape, and records by the names of matrices, each of which reads
activations in one form, or in several."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from onward.checkpoints.architecture import Architecture
from onward.kernels.activations import ActivationName
from onward.kernels.altup_tape import AltUpTape
from onward.kernels.expert_tape import ExpertTape
from onward.kernels.memory import Rows, Vector
from onward.kernels.operands import Matrix, Norm
from onward.kernels.recurrence_tape import RecurrentTape
from onward.runtimes.native.buffers import Buffers
from onward.runtimes.native.weights import Weights, expert_names, matrix_names

Products = Sequence[tuple[str, Rows]]
"""Matrices by name, and where their products go."""


class DecoderTape(AltUpTape, ExpertTape, RecurrentTape):
    """Writes the records of every operation that a model may need."""


class ModelTape:
    """`inputs`: where what matrices read is written, by its form; products are of what is there."""

    def __init__(self, found: Architecture, weights: Weights, tape: DecoderTape, buffers: Buffers) -> None:
        self.found, self.weights, self.tape, self.buffers = found, weights, tape, buffers
        readers = [*matrix_names(found, weights), *expert_names(found)]
        self.inputs = {form: buffers.inputs(form) for name in readers for form in weights.forms(name)}

    def norm(self, name: str) -> Norm:
        """Return a norm of the architecture's kind."""
        found, weights = self.found, self.weights
        if not found.has_norm_weights:
            return Norm(Vector.of(np.ones(found.hidden, np.float32)), found.epsilon, is_centred=found.norm == "layer")
        weight = weights.required_vector(f"{name}.weight")
        return Norm(weight, found.epsilon, weights.vector(f"{name}.bias"), found.norm == "layer")

    def read(self, source: Rows, size: int, *readers: str, scale: Vector | None = None) -> None:
        """Write rows, times a scale, as these matrices read them."""
        for form in self._forms(readers):
            self.tape.quantise(source, size, self.inputs[form], form, scale)

    def read_normalised(self, source: Rows, norm: Norm, *readers: str) -> None:
        """Write normalised rows as these matrices read them."""
        for form in self._forms(readers):
            self.tape.norm(source, norm, self.inputs[form], form)

    def read_unit(
        self, gate: Rows | None, up: Rows, size: int, reader: str, activation: str, parameters: Vector | None = None
    ) -> None:
        """Write activation(gate) * up, or activation(up), as a matrix reads it; see TapeBuilder.unit."""
        for form in self.weights.forms(reader):
            self.tape.unit(gate, up, size, self.inputs[form], form, activation, parameters=parameters)

    def _forms(self, readers: Sequence[str]) -> list[ActivationName]:
        return list(dict.fromkeys(form for reader in readers for form in self.weights.forms(reader)))

    def products(self, parts: Products, *, is_added: bool = False, scale: float = 1.0) -> None:
        """Write products, times a scale, or add them, with what an adapter changes of them."""
        weights = self.weights
        pieces = [
            (*piece, weights.vector(f"{name}.bias"), weights.activations(name))
            for name, target in parts
            for piece in self._pieces(name, weights.matrix(name), target)
        ]
        self.tape.products(
            [(matrix, target, bias) for matrix, target, _, bias, _ in pieces],
            self.inputs,
            [form for *_, form in pieces],
            scales=[scale * factor for _, _, factor, _, _ in pieces], is_added=is_added,
        )  # fmt: skip
        for name, target in parts:
            self._change(name, target, scale)

    def _pieces(self, name: str, matrix: Matrix, target: Rows) -> list[tuple[Matrix, Rows, float]]:
        """Return a matrix by what its rows' products are multiplied by: rows, where these go, and the number."""
        factors = self.found.multipliers.get(name.rpartition(".")[2])
        if factors is None:
            return [(matrix, target, 1.0)]
        pieces, first = [], 0
        for rows, factor in factors:
            pieces.append((matrix.part(first, rows), target.without(4 * first), factor))
            first += rows
        return pieces

    def _change(self, name: str, target: Rows, scale: float) -> None:
        """Add an adapter's change of a product: scale * B (A x), in float32, each row as alone."""
        change = self.weights.change(name)
        if change is None:
            return
        between = self.buffers.low(change.low.rows)
        self.tape.products(
            [(change.low, between, None)], {"float32": self.inputs["float32"]}, ["float32"], scales=[1.0]
        )
        pieces = self._pieces(name, change.high, target)
        self.tape.products(
            [(matrix, to, None) for matrix, to, _ in pieces], {"float32": between}, ["float32"] * len(pieces),
            scales=[change.scale * scale * factor for *_, factor in pieces], is_added=True,
        )  # fmt: skip
