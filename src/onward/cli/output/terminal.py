"""Terminals: colours, remarks on stderr, text without control characters, and how many cells it takes."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import IO, Any, TextIO

DEFAULT_COLUMNS = 80
_ASCII_CELLS = str.maketrans({"━": "=", "─": "-", "…": "..."})
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")

MAX_EXCERPT_LENGTH = 40


def wants_colour(stream: IO[Any]) -> bool:
    """Return whether to write colours: NO_COLOR decides, then FORCE_COLOR, then whether it is a colour terminal."""
    if os.environ.get("NO_COLOR"):
        return False
    force = os.environ.get("FORCE_COLOR", "")
    if force:
        return force.lower() not in ("0", "false")
    return can_rewrite(stream)


def can_rewrite(stream: IO[Any]) -> bool:
    """Return whether lines can be rewritten: on a terminal, unless it is a dumb one, such as an editor's shell."""
    return stream.isatty() and os.environ.get("TERM") != "dumb"


def columns(stream: IO[Any]) -> int:
    """Return the width of the terminal; 80 where the stream is not a terminal or does not know."""
    try:
        return os.get_terminal_size(stream.fileno()).columns or DEFAULT_COLUMNS
    except (OSError, ValueError):
        return DEFAULT_COLUMNS


def visible(text: str) -> str:
    """Return the text with control characters other than newline and tab escaped (`\\x1b`), so that a model's text
    cannot control the terminal."""
    return _CONTROL.sub(lambda found: f"\\x{ord(found[0]):02x}", text)


def drawable(text: str, stream: TextIO) -> str:
    """Return a text as it appears in the stream's encoding, so that its width is known: where that lacks the cells of a
    bar, they are in ASCII; other characters that it lacks are escaped."""
    encoding = stream.encoding or "utf-8"
    try:
        text.encode(encoding)
    except UnicodeEncodeError:
        return text.translate(_ASCII_CELLS).encode(encoding, "backslashreplace").decode(encoding)
    return text


@dataclass(frozen=True, slots=True)
class Style:
    """Colours texts, or leaves them unchanged."""

    on: bool

    def __call__(self, text: str, code: str) -> str:
        return f"\x1b[{code}m{text}\x1b[0m" if self.on and text else text

    def dim(self, text: str) -> str:
        return self(text, "2")

    def bold(self, text: str) -> str:
        return self(text, "1")

    def red(self, text: str) -> str:
        return self(text, "31")

    def green(self, text: str) -> str:
        return self(text, "32")

    def yellow(self, text: str) -> str:
        return self(text, "33")


def style_of(stream: IO[Any]) -> Style:
    """Return the style for text written to the stream: coloured if `wants_colour`."""
    return Style(wants_colour(stream))


def warn(text: str) -> None:
    """Print a remark on stderr; on a terminal it replaces the progress line."""
    start = "\r\x1b[K" if can_rewrite(sys.stderr) else ""
    print(start + style_of(sys.stderr).dim(visible(text)), file=sys.stderr, flush=True)


def note(text: str, *, keeps_line: bool = False) -> None:
    """Print a dimmed remark on stderr if it is a terminal, in place of the progress line; `keeps_line`: below the
    current line, which has output."""
    if sys.stderr.isatty():
        start = "\n" if keeps_line else "\r\x1b[K" if can_rewrite(sys.stderr) else ""
        # with the end of its line: between two writes, the thread of the progress line would erase it
        sys.stderr.write(f"{start}{style_of(sys.stderr).dim(visible(text))}\n")
        sys.stderr.flush()


def dotted(parts: Iterable[str], stream: IO[Any]) -> str:
    """Join parts with dots: one line, but on a terminal as many as its width needs, without breaking a part."""
    width = columns(stream) if stream.isatty() else None
    lines = [""]
    for part in parts:
        longer = f"{lines[-1]} · {part}" if lines[-1] else part
        if width is not None and lines[-1] and text_width(longer) > width:
            lines.append(part)
        else:
            lines[-1] = longer
    return "\n".join(lines)


def text_width(text: str) -> int:
    """Return the number of cells of a text without tabs, newlines and control characters."""
    if text.isascii():
        return len(text)
    import wcwidth  # here: its tables take 20 ms, and few commands print more than ASCII

    return wcwidth.width(text)


def pad(text: str, cells: int) -> str:
    """Return the text with spaces up to this width."""
    return text + " " * (cells - text_width(text))


def cut(text: str, cells: int) -> str:
    """Return the longest beginning that is at most this wide."""
    return next(wrap(text, cells), "")


def wrap(text: str, cells: int) -> Iterator[str]:
    """Yield the lines of a text, each at most this wide (but at least one grapheme); tabs become spaces.

    wcwidth's own wrap breaks between words and drops spaces; the lines here joined are the text.
    """
    for line in text.expandtabs(8).split("\n"):
        start = end = used = 0
        for grapheme in _graphemes(line):
            width = text_width(grapheme)
            if used + width > cells and end > start:
                yield line[start:end]
                start, used = end, 0
            used, end = used + width, end + len(grapheme)
        yield line[start:]


def _graphemes(text: str) -> Iterable[str]:
    if text.isascii():
        return text
    import wcwidth

    return wcwidth.iter_graphemes(text)


def pluralize(number: int, noun: str) -> str:
    """Return `1 line` or `2,000 lines`; `noun` is singular and takes an s."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def excerpt(text: str) -> str:
    """Return the beginning of a text, for use in a sentence."""
    return visible(text if len(text) <= MAX_EXCERPT_LENGTH else text[:MAX_EXCERPT_LENGTH] + "…")
