"""How a step's attention is shared among threads: tiles of rows, and of long sequences tiles of segments too.

No plan changes a bit: whichever thread computes a segment, segments are merged in their order (see attention).
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from onward.kernels.attention_shape import SEGMENT_KEYS, AttentionShape
from onward.kernels.memory import untouched
from onward.kernels.records import ALL_SEGMENTS, TILE_BYTES

PIECES = 4
"""Pieces of work per thread at least, where the work can be cut."""
_MAX_PARTIAL_BYTES = 64 << 20
_MIN_TILE_ROWS = 8
_TILE_WORDS = TILE_BYTES // 8


class AttentionPlan:
    """Plans for steps of up to `rows` rows at the first `positions` positions, for layers of all `shapes`. Owns what
    kernels read of a plan, and the memory of segments that are not merged yet; one step at a time."""

    def __init__(self, shapes: Sequence[AttentionShape], rows: int, positions: int, threads: int) -> None:
        self._shapes, self._threads = shapes, threads
        self._heads = min(shape.num_kv_heads for shape in shapes)
        self._merged, self._slots = np.zeros(rows, np.int64), np.zeros(rows, np.int64)
        slot_bytes = max(shape.num_heads * shape.partial_bytes for shape in shapes)
        segments = -(-positions // SEGMENT_KEYS)
        wanted = PIECES * threads * _MIN_TILE_ROWS * segments
        self._num_slots = 0 if segments == 1 else max(segments, min(wanted, _MAX_PARTIAL_BYTES // slot_bytes))
        self._partials = untouched(self._num_slots * slot_bytes)
        self._tiles = np.zeros((rows + self._num_slots, _TILE_WORDS), np.int64)
        self.num_tiles, self.are_heads_together, self.num_merged = 0, False, 0

    def memory(self) -> dict[str, NDArray[Any]]:
        """Return what kernels read of a plan, by the names of CONTEXT."""
        return {"tiles": self._tiles, "merged": self._merged, "slots": self._slots, "partials": self._partials}

    @property
    def tiles(self) -> NDArray[np.int64]:
        """int64 [tiles, words of TILE]"""
        return self._tiles[: self.num_tiles]

    @property
    def merged(self) -> NDArray[np.int64]:
        """Rows that several tiles share, int64."""
        return self._merged[: self.num_merged]

    @property
    def partial_bytes(self) -> int:
        return self._partials.nbytes

    def make(self, tables: NDArray[np.int64], positions: NDArray[np.int64]) -> None:
        """Plan a step: `tables`, where each row's block table is, and `positions`, int64 [rows]."""
        cut = row_tiles(self._shapes, tables, positions, self._threads)
        ends = [int(positions[first]) + rows for first, rows in cut]
        segments = [-(-end // SEGMENT_KEYS) for end in ends]
        # with pieces enough for all threads, one has all heads of a tile, which read the same blocks
        self.are_heads_together = sum(segments) >= PIECES * self._threads
        self.num_merged = 0
        if self._threads == 1 or max(segments) == 1:
            self._tiles[: len(cut)] = [(first, rows, 0, ALL_SEGMENTS) for first, rows in cut]
            self.num_tiles = len(cut)
            return
        work = sum(rows * end for (_, rows), end in zip(cut, ends, strict=True))
        largest = work * (1 if self.are_heads_together else self._heads) // (PIECES * self._threads)
        tiles: list[tuple[int, int, int, int]] = []
        used = 0
        for (first, rows), count in zip(cut, segments, strict=True):
            parts = self._parts(count, largest // (rows * SEGMENT_KEYS))
            if len(parts) == 1 or used + rows * count > self._num_slots:
                tiles.append((first, rows, 0, ALL_SEGMENTS))
                continue
            tiles += [(first, rows, begin, end) for begin, end in parts]
            self._slots[first : first + rows] = used + count * np.arange(rows)
            self._merged[self.num_merged : self.num_merged + rows] = range(first, first + rows)
            self.num_merged += rows
            used += rows * count
        self._tiles[: len(tiles)] = tiles
        self.num_tiles = len(tiles)

    @staticmethod
    def _parts(segments: int, largest: int) -> list[tuple[int, int]]:
        """Cut this many segments into parts of nearly equal size, of at most `largest` segments, but at least one."""
        count = -(-segments // max(1, largest))
        return list(pairwise(segments * part // count for part in range(count + 1)))


def row_tiles(
    shapes: Sequence[AttentionShape], tables: NDArray[np.int64], positions: NDArray[np.int64], threads: int
) -> list[tuple[int, int]]:
    """Return first row and rows of each tile of a step: runs of one block table and of consecutive positions, cut so
    that every thread has some."""
    count = len(positions)
    heads, most = min(shape.num_kv_heads for shape in shapes), min(shape.tile_rows for shape in shapes)
    rows = min(most, max(_MIN_TILE_ROWS, count * heads // (PIECES * threads)))
    is_cut = (tables[1:] != tables[:-1]) | (positions[1:] != positions[:-1] + 1)
    starts = [0, *(np.flatnonzero(is_cut) + 1).tolist(), count]
    return [(first, min(rows, end - first)) for begin, end in pairwise(starts) for first in range(begin, end, rows)]
