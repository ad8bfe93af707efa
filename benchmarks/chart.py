"""Small line charts as SVG, for light and dark pages, without a plotting library."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

WIDTH, HEIGHT = 420, 260
LEFT, RIGHT, TOP, BOTTOM = 52, 24, 34, 64
"""Size of a panel and of the margins around its plot, in pixels."""

STYLE = """
  text { font: 12px system-ui, sans-serif; fill: #57606a }
  .title { font-weight: 600; font-size: 13px; fill: #24292f }
  .grid { stroke: #d0d7de; stroke-width: 1 }
  .line { fill: none; stroke-width: 2; stroke-linejoin: round }
  .s0 { stroke: #0969da } .s1 { stroke: #bc4c00 } .s2 { stroke: #1a7f37 }
  circle.s0 { fill: #0969da } circle.s1 { fill: #bc4c00 } circle.s2 { fill: #1a7f37 }
  @media (prefers-color-scheme: dark) {
    text { fill: #9198a1 } .title { fill: #f0f6fc } .grid { stroke: #3d444d }
    .s0 { stroke: #4493f8 } .s1 { stroke: #f0883e } .s2 { stroke: #3fb950 }
    circle.s0 { fill: #4493f8 } circle.s1 { fill: #f0883e } circle.s2 { fill: #3fb950 }
  }
"""
MAX_SERIES = 3
MAX_MARKED_POINTS = 40
"""Lines with at least as many points are drawn without dots."""


@dataclass(frozen=True, slots=True)
class Series:
    """One line. Points are (x, y), sorted by x; if there are few, each is marked with a dot."""

    name: str
    points: Sequence[tuple[float, float]]


@dataclass(frozen=True, slots=True)
class Panel:
    """One plot of at most MAX_SERIES lines. Axes start at 0; `log_x` has powers of two as ticks, `log_y` powers of
    ten."""

    title: str
    x_label: str
    series: Sequence[Series]
    log_x: bool = False
    log_y: bool = False


@dataclass(frozen=True, slots=True)
class Axis:
    """A mapping from values to pixels. `ticks` are the labelled values; the lowest and highest end the axis."""

    ticks: Sequence[float]
    begin: float
    end: float
    log: bool

    def pixel(self, value: float) -> float:
        low, high, at = self.ticks[0], self.ticks[-1], value
        if self.log:
            low, high, at = math.log(low), math.log(high), math.log(max(at, self.ticks[0]))
        return self.begin + (at - low) / (high - low) * (self.end - self.begin)


def chart(panels: Sequence[Panel]) -> str:
    """Return an SVG of the panels side by side. Raises ValueError for a panel without points or with too many lines."""
    width = WIDTH * len(panels)
    groups = "\n".join(
        f'<g transform="translate({index * WIDTH} 0)">\n{_draw(panel)}\n</g>' for index, panel in enumerate(panels)
    )
    names = escape("; ".join(panel.title for panel in panels))
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {HEIGHT}" width="{width}" height="{HEIGHT}" '
        f'role="img">\n<title>{names}</title>\n<style>{STYLE}</style>\n{groups}\n</svg>\n'
    )


def _draw(panel: Panel) -> str:
    points = [point for series in panel.series for point in series.points]
    if not points or len(panel.series) > MAX_SERIES:
        raise ValueError(f"{panel.title}: a panel needs points and at most {MAX_SERIES} lines")
    across = Axis(_ticks([x for x, _ in points], 2 if panel.log_x else 0), LEFT, WIDTH - RIGHT, panel.log_x)
    up = Axis(_ticks([y for _, y in points], 10 if panel.log_y else 0), HEIGHT - BOTTOM, TOP, panel.log_y)
    parts = [_text(LEFT - 40, 18, panel.title, "start", "title")]
    for tick in up.ticks:
        y = up.pixel(tick)
        parts.append(f'<path class="grid" d="M{LEFT} {y:.1f}H{WIDTH - RIGHT}"/>')
        parts.append(_text(LEFT - 6, y + 4, _number(tick), "end"))
    parts += [_text(across.pixel(tick), HEIGHT - BOTTOM + 16, _number(tick), "middle") for tick in across.ticks]
    parts.append(_text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - BOTTOM + 32, panel.x_label, "middle"))
    for index, series in enumerate(panel.series):
        parts += _line(index, series, across, up)
    return "\n".join(parts + _legend(panel.series))


def _line(index: int, series: Series, across: Axis, up: Axis) -> list[str]:
    points = [f"{across.pixel(x):.1f} {up.pixel(y):.1f}" for x, y in series.points]
    elements = [f'<path class="line s{index}" d="M{"L".join(points)}"/>']
    if len(points) < MAX_MARKED_POINTS:
        for point in points:
            x, _, y = point.partition(" ")
            elements.append(f'<circle class="s{index}" cx="{x}" cy="{y}" r="2.5"/>')
    return elements


def _legend(series: Sequence[Series]) -> list[str]:
    """Return the legend below the axis; nothing for a single line."""
    if len(series) < 2:
        return []
    step = (WIDTH - LEFT) / len(series)
    parts = []
    for index, each in enumerate(series):
        x = LEFT - 20 + index * step
        parts.append(f'<path class="line s{index}" d="M{x:.1f} {HEIGHT - 14}h16"/>')
        parts.append(_text(x + 22, HEIGHT - 10, each.name, "start"))
    return parts


def _text(x: float, y: float, content: str, anchor: str, kind: str = "") -> str:
    attribute = f' class="{kind}"' if kind else ""
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"{attribute}>{escape(content)}</text>'


def _ticks(values: Sequence[float], base: int) -> list[float]:
    """Return the ticks of an axis that covers `values`: powers of `base`, or round steps from zero if `base` is 0."""
    greatest = max(values)
    if base:
        least = min((value for value in values if value > 0), default=1.0)
        first = math.floor(math.log(least, base) + 1e-9)
        last = max(first + 1, math.ceil(math.log(max(greatest, least), base) - 1e-9))
        return [float(base) ** power for power in range(first, last + 1)]
    rough = max(greatest, 1e-9) / 5
    unit = 10.0 ** math.floor(math.log10(rough))
    step = next(unit * factor for factor in (1, 2, 2.5, 5, 10) if unit * factor >= rough * (1 - 1e-9))
    return [step * number for number in range(max(1, math.ceil(greatest / step - 1e-9)) + 1)]


def _number(value: float) -> str:
    if value >= 10_000:
        return f"{value / 1000:g}k"
    return f"{value:g}"
