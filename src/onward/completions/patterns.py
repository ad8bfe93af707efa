"""How flagged text is found: RE2 patterns in linear time, or a callable of the operator's own.

Python's `re` backtracks: one clever pattern and one unlucky text could hold the server for minutes. RE2 cannot.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from importlib import metadata
from typing import Any

import re2

from onward.errors import SetupError

ENTRY_POINTS = "onward.content_filters"
"""The group of entry points that callables are looked up in."""
WIDEST = 4096
"""Code points; a longest match beyond this is taken as none, and texts are then judged whole."""

_NO_REPEAT = re.compile(r"\{(?:,|(?:\d+,)?0\d)")
"""What begins like `{,2}` or `{02}`: how often, for Python; these very characters, for RE2."""

Span = tuple[int, int]
"""Code points of a text, end exclusive."""
Find = Callable[[str, int], Iterator[Span]]
"""The flagged spans of a text that begin at or after a position, in order. Text before it is context only."""


def compile_patterns(name: str, patterns: Sequence[str]) -> tuple[Find, int | None]:
    """A finder for any of the patterns, and the length of its longest match (None: it has no bound).

    Raises SetupError for a pattern that RE2 does not know, or that matches nothing at all everywhere.
    """
    options = re2.Options()
    options.log_errors = False
    for pattern in patterns:
        try:
            compiled = re2.compile(pattern, options)
        except re2.error as problem:
            words = problem.args[0].decode() if isinstance(problem.args[0], bytes) else str(problem)
            raise SetupError(f"The content filter {name!r} has a pattern that RE2 cannot read: {words}.") from None
        if compiled.search("") is not None:
            raise SetupError(f"The content filter {name!r} has a pattern that matches empty text: {pattern!r}.")
    joined = re2.compile("|".join(f"(?:{pattern})" for pattern in patterns), options)

    def find(text: str, start: int) -> Iterator[Span]:
        return (found.span() for found in joined.finditer(text, start))

    widths = [longest_match(pattern) for pattern in patterns]
    return find, None if None in widths else max(width for width in widths if width is not None)


def longest_match(pattern: str) -> int | None:
    """An upper bound of what a pattern can match, in code points; None where it has none or is not understood.

    Python's own parser tells it. What both engines accept is as wide for RE2, or narrower: a character class in
    brackets, which Python does not know, counts as two. Not so where only Python reads braces as a repetition.
    """
    if _NO_REPEAT.search(pattern):
        return None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            width: int = _parser().parse(pattern).getwidth()[1]
    except (re.error, OverflowError, RecursionError):
        return None
    return width if width <= WIDEST else None


def _parser() -> Any:
    return re._parser  # type: ignore[attr-defined]


def load_callable(name: str, entry_point: str) -> tuple[Find, int | None]:
    """A finder for an entry point's callable, and its attribute `longest` (None where it has none).

    The callable takes a text and gives the flagged spans. Raises SetupError when there is none of this name.
    """
    found = metadata.entry_points(group=ENTRY_POINTS, name=entry_point)
    if not found:
        raise SetupError(
            f"The content filter {name!r} asks for the entry point {entry_point!r}, which no installed package "
            f"offers in the group {ENTRY_POINTS!r}."
        )
    try:
        function: Callable[[str], Iterable[Span]] = next(iter(found)).load()
    except (ImportError, AttributeError) as problem:
        raise SetupError(f"The content filter {name!r} cannot be loaded: {problem}.") from None
    longest: int | None = getattr(function, "longest", None)
    return spans_finder(function), longest


def spans_finder(function: Callable[[str], Iterable[Span]]) -> Find:
    """A callable that gives spans, as a finder. What begins before the position, or is empty, is passed over."""

    def find(text: str, start: int) -> Iterator[Span]:
        return iter(sorted(span for span in function(text) if start <= span[0] < span[1] <= len(text)))

    return find
