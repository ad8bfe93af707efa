"""How many tokens one call of the graph may have, so that all calls go through the same kernels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from onward.engine.model import BLOCK_TOKENS, Row


@dataclass(frozen=True, slots=True)
class Window:
    """Steps of fewer than `least` tokens are padded, those of more than `most` are evaluated piece by piece.

    `most` is 0 (no limit) or at least two blocks.
    """

    least: int = 2
    most: int = 0

    def pieces(self, rows: Sequence[Row]) -> list[Sequence[Row]]:
        """`rows` in calls of at most `most` tokens, in order.

        A row that does not fit is cut where a block ends, wherever it began: a prompt's chunks may begin and end inside
        blocks. A row of several tokens leaves no piece of a single one: that would take the decode kernel.
        """
        if not self.most or sum(len(row.tokens) for row in rows) <= self.most:
            return [rows]
        pieces: list[list[Row]] = [[]]
        room = self.most
        for row in rows:
            rest: Row | None = row
            while rest is not None:
                head, rest_after = _cut(rest, room)
                if head is None:
                    pieces.append([])
                    room = self.most
                    continue
                pieces[-1].append(head)
                room -= len(head.tokens)
                rest = rest_after
        return list(pieces)


def _cut(row: Row, room: int) -> tuple[Row | None, Row | None]:
    """What of `row` fits into `room` tokens, and what is left of it."""
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
