"""All rows of the parity table, in the order of the page."""

from __future__ import annotations

from . import rows_values
from .table import Row

AREAS = (rows_values.AREA,)
ROWS: tuple[Row, ...] = tuple(row for area in AREAS for row in area.rows)
