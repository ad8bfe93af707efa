"""Text in terminal cells: wide characters take two, combining ones none."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator


def width(text: str) -> int:
    """Return the number of cells of a text without tabs, newlines and control characters."""
    return len(text) if text.isascii() else sum(map(_cells, text))


def pad(text: str, cells: int) -> str:
    """Return the text with spaces up to this width."""
    return text + " " * (cells - width(text))


def cut(text: str, cells: int) -> str:
    """Return the longest beginning that is at most this wide."""
    return next(wrap(text, cells), "")


def wrap(text: str, cells: int) -> Iterator[str]:
    """Yield the lines of a text, each at most this wide (but at least one character); tabs become spaces."""
    for line in text.expandtabs(8).split("\n"):
        start = used = 0
        for end, character in enumerate(line):
            used += _cells(character)
            if used > cells and end > start:
                yield line[start:end]
                start, used = end, _cells(character)
        yield line[start:]


def _cells(character: str) -> int:
    if unicodedata.combining(character) or unicodedata.category(character) in ("Mn", "Me", "Cf"):
        return 0
    return 2 if unicodedata.east_asian_width(character) in "WF" else 1
