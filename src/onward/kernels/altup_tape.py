"""Records of several hidden states of each row on a tape, and of sparse gates, with all bounds checked; see altup."""

from __future__ import annotations

from dataclasses import dataclass

from onward.kernels.interpreter import ALTUP_CODE, SPARSIFY_CODE
from onward.kernels.memory import Rows
from onward.kernels.records import ALTUP, SPARSIFY
from onward.kernels.tape import UNIT_PIECE_NUMBERS, TapeBuilder, float_row_bytes


@dataclass(frozen=True, slots=True)
class AltUpStates:
    """Several hidden states of each row, side by side: `count` of `inputs` numbers, float32."""

    rows: Rows
    count: int
    inputs: int

    @property
    def part(self) -> int:
        """Bytes from one state of a row to the next one."""
        return float_row_bytes(self.inputs)

    def state(self, index: int) -> Rows:
        """Return the rows of one state."""
        return self.rows.without(index * self.part)


class AltUpTape(TapeBuilder):
    """Writes the records."""

    def altup(self, source: AltUpStates, target: AltUpStates, coefficients: Rows, computed: Rows | None = None) -> None:
        """Write predictions of hidden states, by coefficients [count, count], or, with `computed`, corrections of them,
        by coefficients [count]."""
        count, inputs = source.count, source.inputs
        for rows in (source.rows, target.rows):
            rows.require(self._rows, (count - 1) * source.part + float_row_bytes(inputs))
        coefficients.require(self._rows, 4 * (count * count if computed is None else count))
        if computed is not None:
            computed.require(self._rows, float_row_bytes(inputs))
        is_same = (target.count, target.inputs, target.rows.stride) == (count, inputs, source.rows.stride)
        if not is_same or not self._kernels.has_altup:
            raise ValueError("States become those of other sizes, or the kernels were compiled without AltUp.")
        self._write(
            ALTUP, ALTUP_CODE, source=source.rows, target=target.rows, stride=source.rows.stride, part=source.part,
            count=count, inputs=inputs, coefficients=coefficients, coefficient_stride=coefficients.stride,
            computed=computed, computed_stride=0 if computed is None else computed.stride,
            pieces=max(1, inputs // UNIT_PIECE_NUMBERS),
        )  # fmt: skip

    def sparsify(self, values: Rows, inputs: int, cutoff: float) -> None:
        """Replace float32 by what it exceeds its row's mean by, beyond so many standard deviations, or 0."""
        values.require(self._rows, float_row_bytes(inputs))
        if not self._kernels.has_sparse_gates:
            raise ValueError("The kernels were compiled without sparse gates.")
        self._write(SPARSIFY, SPARSIFY_CODE, values=values, stride=values.stride, inputs=inputs, cutoff=cutoff)
