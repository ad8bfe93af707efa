"""All rows of the parity table, in the order of the page."""

from __future__ import annotations

from . import (
    rows_batches,
    rows_constraints,
    rows_ending,
    rows_errors,
    rows_filters,
    rows_front_ends,
    rows_output,
    rows_prediction,
    rows_prompt,
    rows_routes,
    rows_sampling,
    rows_stream,
    rows_team,
    rows_tokens,
    rows_usage,
    rows_values,
)
from .table import Row

AREAS = (
    rows_routes.SHAPE,
    rows_prompt.AREA,
    rows_ending.LENGTH,
    rows_ending.STOP,
    rows_sampling.SAMPLING,
    rows_sampling.CHOICES,
    rows_output.AREA,
    rows_tokens.TOKENS,
    rows_constraints.AREA,
    rows_prediction.AREA,
    rows_stream.AREA,
    rows_filters.AREA,
    rows_errors.AREA,
    rows_team.AREA,
    rows_batches.FILES,
    rows_batches.BATCHES,
    rows_usage.AREA,
    rows_routes.ROUTES,
    rows_values.AREA,
    rows_front_ends.FRONT_ENDS,
)
ROWS: tuple[Row, ...] = tuple(row for area in AREAS for row in area.rows)
ELSEWHERE: dict[int, tuple[str, ...]] = {
    80: ("tests/clients (openai for Python, Node; the Java rules)",),
    81: ("tests/clients/programs/lm_eval_scores.py",),
}
"""Golden cases that other tests cover, and these tests."""
