"""README section of `benchmarks.abuse`."""

from __future__ import annotations

from typing import Any

ARMS = ("before", "now")


def abuse_section(figures: dict[str, Any]) -> list[str]:
    """Return the delays during each request as Markdown lines; with an older version, before → now."""
    lines = [
        f"Large bodies have {figures['bytes'] / 1e6:.1f} MB; after {figures['limit']:.0f} s the client of the abusive "
        "request leaves.",
        "",
        "| beside | longest delay of `/health`, ms | of a stream, ms | memory added, MiB | status | its answer, s "
        "| others refused |",
        "|---|--:|--:|--:|--:|--:|--:|",
    ]
    for name, arms in figures["requests"].items():
        found = [arms[arm] for arm in ARMS if arm in arms]
        cells = [
            name,
            _arrow([f"{each['health_ms']:,.0f}" for each in found]),
            _arrow([f"{each['stream_ms']:,.0f}" for each in found]),
            _arrow(["–" if each["memory"] is None else f"{each['memory'] / 2**20:,.0f}" for each in found]),
            _arrow([str(each["status"] or "none") for each in found]),
            _arrow([f"{each['seconds']:.1f}" for each in found]),
            _arrow([f"{each['num_refused']:,}" for each in found]),
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def _arrow(cells: list[str]) -> str:
    return " → ".join(cells)
