"""Tables of cosines and sines by position, by exact means: the same bits on every machine, at any position.

An angle is a 64-bit fraction of a turn, so that it wraps by itself and no precision is lost at large positions. Cosine
and sine are polynomials of + and * in float64, which IEEE 754 fixes; the C library's differ between machines.
"""

from __future__ import annotations

from decimal import Decimal, localcontext

import numpy as np
from numpy.typing import NDArray

from onward.checkpoints.architecture import Architecture, QueryGrowth, Rope
from onward.checkpoints.rope_scaling import DECIMALS, PI, log
from onward.kernels.memory import Rows, untouched

_NO_ROTATION = 2
"""Dimensions that the kernels rotate, by no angle, in models without rotation."""
_STEP_POSITIONS = 512
"""Positions whose rows are filled at a time."""


class PositionTables:
    """Rows of cosines and of sines, float32 [positions, rotated / 2], which are filled when they are first needed.

    `rope` None: nothing rotates, by `size` dimensions. `growth`: of queries.
    """

    def __init__(self, rope: Rope | None, growth: QueryGrowth | None, context_length: int, size: int) -> None:
        row = 2 * size
        self.rows = tuple(Rows(untouched(context_length * row), context_length, row) for _ in range(2))
        self.growth = Rows(untouched(context_length * 4), context_length, 4) if growth and growth.amount else None
        """What queries are multiplied by, float32 [positions]."""
        self._growth = growth
        self._magnitude = 1.0 if rope is None else rope.magnitude
        self._turns = np.zeros(size // 2, np.uint64) if rope is None else turns_per_position(rope)
        self._filled = 0

    def fill(self, positions: int) -> None:
        """Have the rows of the first `positions` positions."""
        while self._filled < positions:
            end = min(self._filled + _STEP_POSITIONS, self.rows[0].count)
            both = cosines_and_sines(self._turns, self._filled, end)
            for rows, values in zip(self.rows, both, strict=True):
                table = rows.memory[: rows.count * rows.stride].view(np.float32).reshape(rows.count, -1)
                table[self._filled : end] = values * self._magnitude
            if self.growth is not None and self._growth is not None:
                table = self.growth.memory[: self.growth.count * 4].view(np.float32)
                table[self._filled : end] = growth_at(self._growth, self._filled, end)
            self._filled = end


class Positions:
    """The tables of an architecture's layers."""

    def __init__(self, found: Architecture, context_length: int) -> None:
        self._found, self._context = found, context_length
        self._tables: dict[int | None, PositionTables] = {}

    def rotated(self, layer: int) -> int:
        """Return how many dimensions of a head of a layer the kernels rotate."""
        rope = self._found.rope_of(layer) or self._found.rope
        return rope.size if rope else _NO_ROTATION

    def of_layer(self, layer: int) -> tuple[tuple[Rows, Rows], Rows | None]:
        """Return cosines and sines of a layer, and how its queries grow, if they do."""
        rope = self._found.rope_of(layer)
        key = None if rope is None else id(rope)
        if key not in self._tables:
            growth = self._found.growth_of(layer)
            self._tables[key] = PositionTables(rope, growth, self._context, self.rotated(layer))
        tables = self._tables[key]
        cosines, sines = tables.rows
        return (cosines, sines), tables.growth

    def fill(self, positions: int) -> None:
        """Have the rows of the first `positions` positions in all tables."""
        for tables in self._tables.values():
            tables.fill(positions)


def growth_at(growth: QueryGrowth, first: int, last: int) -> NDArray[np.float64]:
    """Return what queries are multiplied by at positions `first` to `last`."""
    lengths = (np.arange(first, last) + growth.offset) // growth.length
    values = [1 + growth.amount * log(1 + count) for count in range(int(lengths[0]), int(lengths[-1]) + 1)]
    found: NDArray[np.float64] = np.array(values)[lengths - lengths[0]]
    return found


def turns_per_position(rope: Rope) -> NDArray[np.uint64]:
    """Return by which fraction of a turn, times 2**64, each pair of dimensions rotates per position."""
    with localcontext(DECIMALS):
        base, scale = Decimal(rope.base).ln(), Decimal(rope.position_scale)
        factors = [Decimal(1)] * (rope.size // 2) if rope.factors is None else [Decimal(float(x)) for x in rope.factors]
        return np.array(
            [
                int((-base * 2 * pair / rope.size).exp() / scale / factor / (2 * PI) * 2**64 + Decimal("0.5")) % 2**64
                for pair, factor in enumerate(factors)
            ],
            np.uint64,
        )


def cosines_and_sines(
    turns: NDArray[np.uint64], first: int, last: int
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return cosines and sines at positions `first` to `last`, float64 [positions, pairs]."""
    angles = np.arange(first, last, dtype=np.uint64)[:, None] * turns[None]
    quarter = ((angles >> np.uint64(61)) + np.uint64(1)) >> np.uint64(1)  # the nearest quarter turn, 0 to 4
    turned = (angles - (quarter << np.uint64(62))).astype(np.int64).astype(np.float64)
    rest = turned * float(PI * 2 / 2**64)  # within an eighth of a turn
    square = rest * rest
    cosine, sine = _series(square, 0), rest * _series(square, 1)
    quarter &= np.uint64(3)
    cases: list[NDArray[np.bool_]] = [quarter == 0, quarter == 1, quarter == 2]
    return np.select(cases, [cosine, -sine, -cosine], sine), np.select(cases, [sine, cosine, -sine], -cosine)


def _series(square: NDArray[np.float64], first: int) -> NDArray[np.float64]:
    """Return Taylor's series of cos x (`first` 0) or of sin x / x (1), from x squared."""
    coefficients, term, n = [], Decimal(1), first
    for _ in range(11):
        coefficients.append(float(term))
        term, n = -term / ((n + 1) * (n + 2)), n + 2
    total = np.full_like(square, coefficients[-1])
    for coefficient in coefficients[-2::-1]:
        total = total * square + coefficient
    return total
