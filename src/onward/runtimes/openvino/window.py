"""Which steps suit OpenVINO, and how many tokens one call of the graph may have, so that all calls use the same
kernels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from onward.engine.model import Row, StepShape

STEP_SHAPE = StepShape(
    block_tokens=32,  # the CPU plug-in's KV block, whatever else is asked for
    min_prefill_tokens=8,  # never a single token: that is the decode kernel, which has other bits
    tile_tokens=64,
    max_prefill_tokens=512,
    imperceptible_seconds=0.010,
    change_fraction=0.5,
)
"""OpenVINO's facts about steps on a CPU, which the engine schedules by."""
BLOCK_TOKENS = STEP_SHAPE.block_tokens
MIN_PREFILL_TOKENS = STEP_SHAPE.min_prefill_tokens


@dataclass(frozen=True, slots=True)
class Window:
    """Steps of fewer than `min_tokens` are padded; those of more than `max_tokens` take several calls.

    `max_tokens` is 0 (no limit) or at least two blocks.
    """

    min_tokens: int = 2
    max_tokens: int = 0

    @property
    def label(self) -> str:
        """The form in which check results are stored.

        `Window(least=…, most=…)` is kept although the fields have other names, because fingerprints contain it.
        """
        return f"Window(least={self.min_tokens}, most={self.max_tokens})"

    def split(self, rows: Sequence[Row]) -> list[Sequence[Row]]:
        """Return `rows` as the row segments of successive calls, each of at most `max_tokens` tokens.

        A row that does not fit is cut at a block boundary, wherever it starts: prefill chunks may start and end inside
        blocks. A row of several tokens never leaves a segment of one token, which would use the decode kernel.
        """
        if not self.max_tokens or sum(len(row.tokens) for row in rows) <= self.max_tokens:
            return [rows]
        calls: list[list[Row]] = [[]]
        room = self.max_tokens
        for row in rows:
            rest: Row | None = row
            while rest is not None:
                head, tail = _cut(rest, room)
                if head is None:
                    calls.append([])
                    room = self.max_tokens
                    continue
                calls[-1].append(head)
                room -= len(head.tokens)
                rest = tail
        return list(calls)


def _cut(row: Row, room: int) -> tuple[Row | None, Row | None]:
    """Return the segment of `row` that fits into `room` tokens, and the rest."""
    length = len(row.tokens)
    if length <= room:
        return row, None
    taken = room - (row.start + room) % BLOCK_TOKENS
    if length - taken == 1:
        taken -= BLOCK_TOKENS
    if taken < 2:
        return None, row
    left = length - taken
    return (
        Row(row.sequence, row.tokens[:taken], row.start, row.blocks, max(0, row.outputs - left)),
        Row(row.sequence, row.tokens[taken:], row.start + taken, row.blocks, min(row.outputs, left)),
    )
