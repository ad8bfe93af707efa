"""All rows of the parity table, in the order of the page."""

from __future__ import annotations

from . import rows_output, rows_prompt, rows_sampling, rows_values
from .table import Row

AREAS = (
    rows_prompt.AREA,
    rows_sampling.LENGTH,
    rows_sampling.STOP,
    rows_sampling.SAMPLING,
    rows_sampling.CHOICES,
    rows_output.AREA,
    rows_values.AREA,
)
ROWS: tuple[Row, ...] = tuple(row for area in AREAS for row in area.rows)
