"""Layers with a state on a tape: a delta rule, or a state space, after a short convolution.

W (norm(rule(convolution(W h'))) * silu(W h'))
W norm(space(convolution(W h')) * silu(W h'))
"""

from __future__ import annotations

import numpy as np

from onward.checkpoints.architecture import DeltaNet, StateSpace
from onward.kernels.memory import Rows, Vector
from onward.kernels.operands import Norm
from onward.kernels.recurrence import ring_bytes
from onward.kernels.recurrence_tape import DeltaGates, Kept
from onward.kernels.state_space import StateSpaceShape
from onward.runtimes.native.model_tape import ModelTape


class StateRecords:
    """Writes the records."""

    def __init__(self, shared: ModelTape) -> None:
        self._shared, self._found, self._weights = shared, shared.found, shared.weights
        self._tape, self._buffers = shared.tape, shared.buffers

    def inputs(self, layer: int) -> list[tuple[str, Rows]]:
        """Return the matrices of a layer that read its input, and where their products go; [] if it has no state."""
        prefix = f"blk.{layer}.ssm_"
        if self._found.state_space_of(layer) is not None:
            return [(f"{prefix}in", self._buffers.mixed)]
        if self._found.delta_of(layer) is None:
            return []
        assert self._buffers.delta is not None
        buffers = self._buffers.delta
        return [
            (f"{prefix}qkv", buffers.mixed), (f"{prefix}gate", buffers.gates), (f"{prefix}alpha", buffers.alpha),
            (f"{prefix}beta", buffers.beta),
        ]  # fmt: skip

    def write(self, layer: int, kept: Kept) -> None:
        """Write what a layer's last matrix reads."""
        delta, space = self._found.delta_of(layer), self._found.state_space_of(layer)
        if delta is not None:
            self._delta(layer, delta, kept)
        if space is not None:
            self._state_space(layer, space, kept)

    def _joined(self, prefix: str, *names: str) -> Vector:
        """Return vectors, one after the other."""
        parts = [self._weights.required_vector(f"{prefix}{name}") for name in names]
        return Vector.of(np.concatenate([part.values[: part.length] for part in parts]))

    def _norm(self, name: str) -> Norm:
        return Norm(self._weights.required_vector(f"{name}.weight"), self._found.epsilon)

    def _delta(self, layer: int, delta: DeltaNet, kept: Kept) -> None:
        """Write a layer's delta rule, in the form that its output reads."""
        assert self._buffers.delta is not None
        buffers, tape, weights, prefix = self._buffers.delta, self._tape, self._weights, f"blk.{layer}.ssm_"
        tape.scan(buffers.mixed, delta.width, weights.by_input(f"{prefix}conv1d.weight"), kept)
        gates = DeltaGates(buffers.alpha, buffers.beta, self._joined(prefix, "a", "dt.bias"))
        tape.delta(
            buffers.mixed, delta.num_key_heads, delta.num_heads, gates,
            _without_ring(kept, ring_bytes(delta.width, delta.length)), buffers.returned, is_tiled=delta.is_tiled,
        )  # fmt: skip
        tape.norm_heads(buffers.returned, delta.num_heads, delta.value_size, self._norm(f"{prefix}norm"))
        self._shared.read_unit(buffers.gates, buffers.returned, delta.values, f"{prefix}out", "silu")

    def _state_space(self, layer: int, space: StateSpace, kept: Kept) -> None:
        """Write a layer's state space, in the form that its output reads."""
        tape, weights, prefix = self._tape, self._weights, f"blk.{layer}.ssm_"
        gate, mixed = self._buffers.mixed, self._buffers.mixed.without(4 * space.inner)
        taps, bias = weights.by_input(f"{prefix}conv1d.weight"), weights.vector(f"{prefix}conv1d.bias")
        tape.scan(mixed, space.width, taps, kept, bias)
        parameters = self._joined(prefix, "dt.bias", "a", "d")
        own = _without_ring(kept, ring_bytes(space.width, space.length))
        shape = StateSpaceShape(space.num_heads, space.head_size, space.state_size, space.groups)
        tape.state_space(shape, mixed, mixed.without(4 * space.width), parameters, own)
        if not weights.has(f"{prefix}norm.weight"):
            self._shared.read_unit(gate, mixed, space.inner, f"{prefix}out", "silu")
            return
        tape.unit(gate, mixed, space.inner, mixed, "float32", "silu")
        norm = self._norm(f"{prefix}norm")
        if space.norm_groups > 1:
            tape.norm_heads(mixed, space.norm_groups, space.inner // space.norm_groups, norm)
            self._shared.read(mixed, space.inner, f"{prefix}out")
        else:
            self._shared.read_normalised(mixed, norm, f"{prefix}out")


def _without_ring(kept: Kept, size: int) -> Kept:
    return Kept(kept.states.without(size), kept.log)
