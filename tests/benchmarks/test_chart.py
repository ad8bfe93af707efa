"""Charts are well-formed, inside their frame and to scale."""

from __future__ import annotations

import itertools
import re
import xml.etree.ElementTree as ElementTree

import pytest
from benchmarks.chart import BOTTOM, HEIGHT, LEFT, RIGHT, TOP, WIDTH, Panel, Series, chart
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from tests.examples import examples

values = st.floats(0, 1e7, allow_subnormal=False)
positive = st.floats(1e-3, 1e7)


def pixels(svg: str) -> list[list[tuple[float, float]]]:
    """Return the pixels of each line."""
    paths = re.findall(r'class="line s\d" d="M([-\d. L]+)"', svg)
    return [[(float(x), float(y)) for x, _, y in (point.partition(" ") for point in path.split("L"))] for path in paths]


@given(st.lists(st.tuples(positive, values), min_size=1, max_size=60), st.booleans(), st.booleans())
@hypothesis_settings(max_examples=examples(80))
def test_every_point_is_inside_the_plot(points: list[tuple[float, float]], log_x: bool, log_y: bool) -> None:
    svg = chart([Panel("a < b & c", "x", [Series("one", sorted(points))], log_x, log_y)])
    ElementTree.fromstring(svg)
    (line,) = pixels(svg)
    assert len(line) == len(points)
    assert all(LEFT - 0.1 <= x <= WIDTH - RIGHT + 0.1 and TOP - 0.1 <= y <= HEIGHT - BOTTOM + 0.1 for x, y in line)


def test_doubling_clients_is_one_step_on_a_logarithmic_axis() -> None:
    svg = chart([Panel("t", "clients", [Series("one", [(1, 10), (2, 20), (4, 30), (8, 40)])], log_x=True)])
    ((*line,),) = pixels(svg)
    across = [x for x, _ in line]
    steps = [later - earlier for earlier, later in itertools.pairwise(across)]
    assert steps == pytest.approx([(WIDTH - RIGHT - LEFT) / 3] * 3, abs=0.2)
    up = [y for _, y in line]
    assert up[0] - up[1] == pytest.approx(up[2] - up[3], abs=0.2) and up[0] > up[3]


def test_panels_are_side_by_side_and_lines_are_labelled() -> None:
    series = [Series("p50", [(0, 1), (2, 3)]), Series("p95", [(0, 2), (2, 6)])]
    svg = chart([Panel("first", "x", series), Panel("second", "x", series[:1])])
    assert f'viewBox="0 0 {2 * WIDTH} {HEIGHT}"' in svg
    assert svg.count(">p50<") == 1 and svg.count(">p95<") == 1


@pytest.mark.parametrize("series", [[], [Series("empty", [])], [Series("one", [(0, 0)])] * 4])
def test_a_panel_without_points_or_with_too_many_lines_is_refused(series: list[Series]) -> None:
    with pytest.raises(ValueError, match="a panel needs points"):
        chart([Panel("t", "x", series)])
