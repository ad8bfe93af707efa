"""Results as text, in each output format: documents for programs, tables for terminals."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, TextIO

import click

from onward.cli.output.gjson import MISSING, find
from onward.cli.output.terminal import Style, columns, pad, style_of, text_width, visible, warn, wrap
from onward.cli.session import Output

_TOKENS = re.compile(r'(?P<text>"(?:\\.|[^"\\])*")(?P<colon>:)?|(?P<word>true|false|null)|(?P<number>-?\d[\d.eE+-]*)')
_KEY, _TEXT, _NUMBER, _WORD = "34;1", "32", "36", "35"
BOX_COLUMNS = 100
"""Width of a box where there is no terminal."""
MIN_VALUE_COLUMNS = 10
FORMULA_STARTS = ("=", "+", "-", "@", "\t", "\r")
"""A spreadsheet computes a cell that begins with one of these; an apostrophe in front makes it text."""
NO_MATCH = "--transform matched nothing; printing the whole document"


def transform_matches(value: Any, transform: str | None) -> bool:
    """Return whether the transform selects something; True without a transform."""
    return transform is None or find(value, transform) is not MISSING


def render(
    value: Any,
    *,
    format: str,
    raw: str | None = None,
    transform: str | None = None,
    raw_strings: bool = False,
    terminal: bool = False,
    colour: bool = False,
) -> str:
    """Return one document as text without a final newline.

    `raw` is the JSON as received, for the format of that name. A transform that matches nothing is ignored.
    """
    if transform is not None:
        found = find(value, transform)
        if found is not MISSING:
            value, raw = found, None
    if raw_strings and isinstance(value, str):
        return visible(value) if terminal else value
    text = _FORMATS[format](value, raw, colour)
    return visible(text) if terminal and not colour else text


def rendered(value: Any, output: Output, stream: TextIO, raw: str | None = None) -> str:
    """Return one document as text for a stream, in the format that the flags of a command choose."""
    return render(
        value,
        format=output.format,
        raw=raw,
        transform=output.transform,
        raw_strings=output.raw_strings,
        terminal=stream.isatty(),
        colour=style_of(stream).on,
    )


def _json(value: Any, _: str | None, colour: bool) -> str:
    text = json.dumps(value, indent=2, ensure_ascii=False)
    return coloured(visible(text)) if colour else text


def _json_line(value: Any, _: str | None, colour: bool) -> str:
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    return coloured(visible(text)) if colour else text


def _raw(value: Any, raw: str | None, colour: bool) -> str:
    return _json_line(value, None, False) if raw is None else raw


def _yaml(value: Any, _: str | None, colour: bool) -> str:
    from onward.cli.request.yaml12 import dump

    return dump(value).removesuffix("\n")


def _text(value: Any, _: str | None, colour: bool) -> str:
    """Return only the texts; several texts get the headings of OpenAI's old command line."""
    choices = value.get("choices") if isinstance(value, dict) else None
    if not isinstance(choices, list):
        return value if isinstance(value, str) else _json(value, None, colour)
    if len(choices) == 1:
        return str(choices[0].get("text", "")).removesuffix("\n")
    return "\n".join(
        f"===== Completion {choice.get('index', 0)} =====\n{str(choice.get('text', '')).removesuffix(chr(10))}"
        for choice in choices
    )


def _pretty(value: Any, _: str | None, colour: bool) -> str:
    """Return a box of keys and values, one row per leaf; long values are wrapped to the width of the terminal."""
    leaves = [(visible(path), leaf) for path, leaf in _leaves(value, "")]
    texts = [visible(leaf if isinstance(leaf, str) else json.dumps(leaf, ensure_ascii=False)) for _, leaf in leaves]
    available = columns(sys.stdout) if colour else BOX_COLUMNS
    path_width = max(text_width(path) for path, _ in leaves)
    room = max(MIN_VALUE_COLUMNS, available - path_width - len("│  │  │"))
    wrapped = [list(wrap(text, room)) for text in texts]
    value_width = max(text_width(line) for lines in wrapped for line in lines)
    rows = []
    for (path, _), lines in zip(leaves, wrapped, strict=True):
        for shown, line in zip([path, *[""] * (len(lines) - 1)], lines, strict=True):
            key = Style(colour)(pad(shown, path_width), _KEY)
            rows.append(f"│ {key} │ {pad(line, value_width)} │")
    over, under = "─" * (path_width + 2), "─" * (value_width + 2)
    return "\n".join([f"╭{over}┬{under}╮", *rows, f"╰{over}┴{under}╯"])


def _leaves(value: Any, path: str) -> list[tuple[str, Any]]:
    items: list[tuple[str, Any]]
    if isinstance(value, dict) and value:
        items = list(value.items())
    elif isinstance(value, list) and any(isinstance(item, (dict, list)) for item in value):
        items = [(str(index), item) for index, item in enumerate(value)]
    else:
        return [(path, value)]
    return [leaf for key, item in items for leaf in _leaves(item, f"{path}.{key}" if path else str(key))]


def coloured(text: str) -> str:
    """Return JSON with colours for keys, strings, numbers and literals."""

    def paint(found: re.Match[str]) -> str:
        if found["text"]:
            code = _KEY if found["colon"] else _TEXT
            return f"\x1b[{code}m{found['text']}\x1b[0m{found['colon'] or ''}"
        return f"\x1b[{_WORD if found['word'] else _NUMBER}m{found[0]}\x1b[0m"

    return _TOKENS.sub(paint, text)


_FORMATS = {
    "auto": _json,
    "json": _json,
    "jsonl": _json_line,
    "raw": _raw,
    "yaml": _yaml,
    "pretty": _pretty,
    "text": _text,
}


def emit(output: Output, value: Any, as_text: Callable[[], str]) -> None:
    """Write one result; `as_text` renders it for people."""
    plain = output.transform is None and not output.raw_strings
    if plain and (output.format == "text" or (output.format == "auto" and sys.stdout.isatty())):
        click.echo(as_text(), color=True)
        return
    if not transform_matches(value, output.transform):
        warn(NO_MATCH)
    output = replace(output, format="json") if output.format == "text" else output
    click.echo(rendered(value, output, sys.stdout), color=True)


def table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table with columns as wide as their widest cell and dimmed headings."""
    rows = [[visible(cell) for cell in row] for row in rows]
    widths = [max(text_width(row[column]) for row in [headings, *rows]) for column in range(len(headings))]

    def line(row: Sequence[str]) -> str:
        return "  ".join(pad(cell, width) for cell, width in zip(row, widths, strict=True)).rstrip()

    return "\n".join([style_of(sys.stdout).dim(line(headings)), *map(line, rows)])


def utc_time(ms: int) -> str:
    """Return Unix milliseconds as a date and time in UTC."""
    return datetime.fromtimestamp(ms / 1000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def amount(value: float) -> str:
    """Return an amount of money, which is stored in millionths: never as 1.3e-05."""
    return f"{value:.6f}".rstrip("0").rstrip(".")


def text_cell(text: str | None) -> str:
    """Return the text of a CSV cell so that no spreadsheet takes it for a formula."""
    text = text or ""
    return f"'{text}" if text.startswith(FORMULA_STARTS) else text
