"""Records of layers with a recurrent state on a tape, with all bounds checked; see recurrence."""

from __future__ import annotations

from dataclasses import dataclass

from onward.kernels.interpreter import DELTA_CODE, SCAN_CODE, STATE_SPACE_CODE
from onward.kernels.memory import Rows, Vector
from onward.kernels.records import DELTA, SCAN, STATE_SPACE
from onward.kernels.recurrence import ring_bytes, scan_scratch_numbers
from onward.kernels.state_space import StateSpaceShape
from onward.kernels.tape import TapeBuilder
from onward.kernels.values import LANES

SCAN_PIECE_NUMBERS = 512
"""Of a row, that a thread convolves at a time."""


@dataclass(frozen=True, slots=True)
class DeltaGates:
    """What makes gates of a delta rule: rows of a number for each head, and what all rows have, the decays of all heads
    and then the biases."""

    alpha: Rows
    beta: Rows
    parameters: Vector


@dataclass(frozen=True, slots=True)
class Kept:
    """What a layer keeps of sequences: its part of each state, and of each row of the log of drafts."""

    states: Rows
    log: Rows


class RecurrentTape(TapeBuilder):
    """Writes the records."""

    def scan(self, values: Rows, width: int, weights: Vector, kept: Kept, bias: Vector | None = None) -> None:
        """Convolve rows of `width` numbers in place, by weights of the position furthest back first, `width` each."""
        values.require(self._rows, 4 * width)
        length, rest = divmod(weights.length, width)
        if width % LANES or not length or rest or (bias is not None and bias.length != width):
            raise ValueError(f"A convolution of {width} numbers has {weights.length} weights, or another bias.")
        self._require(kept, ring_bytes(width, length), width)
        pieces = max(1, width // SCAN_PIECE_NUMBERS)
        self._write(
            SCAN, SCAN_CODE, values=values, stride=values.stride, width=width, weights=weights, length=length,
            bias=bias, states=kept.states, state_stride=kept.states.stride, log=kept.log, pieces=pieces,
            longest_row=scan_scratch_numbers(width, pieces, length),
        )  # fmt: skip

    def delta(
        self, values: Rows, num_key_heads: int, num_heads: int, gates: DeltaGates, kept: Kept, target: Rows,
        *, is_tiled: bool,
    ) -> None:  # fmt: skip
        """Write what the delta rule returns, float32 [rows, heads * value size]. `values`: queries, keys and values of
        all heads; `is_tiled`: see records.DELTA."""
        shape = self._kernels.delta
        if shape is None or num_key_heads < 1 or num_heads % num_key_heads:
            raise ValueError(f"{num_heads} heads share {num_key_heads} of keys, or the kernels have no delta rule.")
        width = 2 * num_key_heads * shape.key_size + num_heads * shape.value_size
        values.require(self._rows, 4 * width)
        target.require(self._rows, 4 * num_heads * shape.value_size)
        for rows in (gates.alpha, gates.beta):
            rows.require(self._rows, 4 * num_heads)
        if gates.alpha.stride != gates.beta.stride or gates.parameters.length != 2 * num_heads:
            raise ValueError(f"The gates are not those of {num_heads} heads.")
        self._require(kept, num_heads * shape.head_bytes, width + 2 * num_heads)
        self._write(
            DELTA, DELTA_CODE, values=values, stride=values.stride, alpha=gates.alpha, beta=gates.beta,
            gate_stride=gates.alpha.stride, parameters=gates.parameters, states=kept.states,
            state_stride=kept.states.stride, log=kept.log, target=target, target_stride=target.stride,
            num_key_heads=num_key_heads, num_heads=num_heads, is_tiled=is_tiled, longest_row=shape.scratch_numbers,
        )  # fmt: skip

    def state_space(self, shape: StateSpaceShape, values: Rows, times: Rows, parameters: Vector, kept: Kept) -> None:
        """Replace x in rows of x, B and C, float32, by what a state space returns. `times`: dt of all heads;
        `parameters`: the bias of dt of all heads, A of all, D of all."""
        if not self._kernels.has_state_spaces or not shape.is_possible:
            raise ValueError(f"{shape} is not computed, or the kernels were compiled without state spaces.")
        values.require(self._rows, 4 * shape.width)
        times.require(self._rows, 4 * shape.num_heads)
        if values.stride != times.stride or parameters.length != 3 * shape.num_heads:
            raise ValueError(f"The times or the parameters are not those of {shape.num_heads} heads.")
        self._require(kept, shape.state_bytes, shape.width + shape.num_heads)
        self._write(
            STATE_SPACE, STATE_SPACE_CODE, values=values, times=times, stride=values.stride, num_heads=shape.num_heads,
            head_size=shape.head_size, state_size=shape.state_size, group_heads=shape.num_heads // shape.groups,
            parameters=parameters, states=kept.states, state_stride=kept.states.stride, log=kept.log,
            longest_row=shape.head_size * shape.state_size,
        )  # fmt: skip

    def _require(self, kept: Kept, state_bytes: int, logged_numbers: int) -> None:
        if not self._kernels.has_states:
            raise ValueError("The kernels were compiled without recurrent states.")
        kept.states.require(1, state_bytes)
        kept.log.require(1, 4 * logged_numbers)
