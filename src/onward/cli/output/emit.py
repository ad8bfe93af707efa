"""Results of commands: a table for people, documents for programs."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any

import click

from onward.cli.output import cells
from onward.cli.output.formats import NO_MATCH, render, transform_matches
from onward.cli.output.terminal import style_of, visible, warn


def emit(output: Any, value: Any, as_text: Callable[[], str]) -> None:
    """Write one result. `output` is a session's Output; `as_text` renders the result for people."""
    plain = output.transform is None and not output.raw_strings
    if plain and (output.format == "text" or (output.format == "auto" and sys.stdout.isatty())):
        click.echo(as_text(), color=True)
        return
    if not transform_matches(value, output.transform):
        warn(NO_MATCH)
    text = render(
        value,
        format="json" if output.format == "text" else output.format,
        transform=output.transform,
        raw_strings=output.raw_strings,
        terminal=sys.stdout.isatty(),
        colour=style_of(sys.stdout).on,
    )
    click.echo(text, color=True)


def table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table with columns as wide as their widest cell and dimmed headings."""
    rows = [[visible(cell) for cell in row] for row in rows]
    widths = [max(cells.width(row[column]) for row in [headings, *rows]) for column in range(len(headings))]

    def line(row: Sequence[str]) -> str:
        return "  ".join(cells.pad(cell, width) for cell, width in zip(row, widths, strict=True)).rstrip()

    return "\n".join([style_of(sys.stdout).dim(line(headings)), *map(line, rows)])


def bytes_in_words(count: int) -> str:
    """Return a size such as `12 B`, `3.4 kB` or `56.7 MB`, in powers of 1000."""
    size = float(count)
    for unit in ("B", "kB", "MB", "GB"):
        if size < 1000:
            return f"{size:.0f} B" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.1f} TB"
