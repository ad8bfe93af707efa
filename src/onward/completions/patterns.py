"""Finds flagged text: by RE2 patterns, or by a callable that the operator provides.

RE2 runs in linear time. Python's `re` backtracks: some patterns could block the server for minutes on some texts.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from onward.errors import SetupError

ENTRY_POINTS = "onward.content_filters"
"""The entry point group of callables."""
MAX_MATCH_LENGTH = 4096
"""Code points. A pattern that can match more counts as unbounded: its filter then decides at the end of the text."""

_PYTHON_ONLY_REPETITION = re.compile(r"\{(?:,|(?:\d+,)?0\d)")
"""`{,2}` and `{02}`: repetitions for Python, literal characters for RE2."""

MatchSpan = tuple[int, int]
"""Start and end (exclusive) in code points of a text."""
FindSpans = Callable[[str, int], Iterator[MatchSpan]]
"""Yields the flagged spans of a text that begin at or after a position, in order. Text before it is context."""


def compile_patterns(name: str, patterns: Sequence[str]) -> tuple[FindSpans, int | None]:
    """Return a function that finds matches of any of the patterns, and the length of the longest possible match.

    The length is None if there is no bound. Raises SetupError for patterns that are invalid or match the empty string,
    and where RE2 is not installed.
    """
    try:
        import re2
    except ImportError:
        raise SetupError(
            f"The content filter {name!r} has patterns, which need RE2: run pip install 'onward[filters]'."
        ) from None
    options = re2.Options()
    options.log_errors = False
    for pattern in patterns:
        try:
            compiled = re2.compile(pattern, options)
        except re2.error as problem:
            reason = problem.args[0].decode() if isinstance(problem.args[0], bytes) else str(problem)
            raise SetupError(f"The content filter {name!r} has an invalid RE2 pattern: {reason}.") from None
        if compiled.search("") is not None:
            raise SetupError(f"The content filter {name!r} has a pattern that matches the empty string: {pattern!r}.")
    joined = re2.compile("|".join(f"(?:{pattern})" for pattern in patterns), options)

    def find(text: str, start: int) -> Iterator[MatchSpan]:
        return (found.span() for found in joined.finditer(text, start))

    lengths = [max_match_length(pattern) for pattern in patterns]
    return find, None if None in lengths else max(length for length in lengths if length is not None)


def max_match_length(pattern: str) -> int | None:
    """Return an upper bound of the length of a match in code points; None if there is none, or it is unknown.

    The bound is computed by the parser of Python's `re`. For patterns that both engines accept, RE2's matches are not
    longer: a POSIX class such as [:alpha:] counts as more characters in Python. Braces that only Python parses as a
    repetition are the exception; they return None.
    """
    if _PYTHON_ONLY_REPETITION.search(pattern):
        return None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            length: int = _parser().parse(pattern).getwidth()[1]
    except (re.error, OverflowError, RecursionError):
        return None
    return length if length <= MAX_MATCH_LENGTH else None


def _parser() -> Any:
    return re._parser  # type: ignore[attr-defined]


def load_callable(name: str, entry_point: str) -> tuple[FindSpans, int | None]:
    """Return a function that finds spans with an entry point's callable, and the callable's attribute `longest`.

    The callable takes a text and returns its flagged spans. `longest` is the length of the longest possible match in
    code points; None if the callable has no such attribute. Raises SetupError if the entry point does not exist or
    cannot be loaded.
    """
    from importlib import metadata

    found = metadata.entry_points(group=ENTRY_POINTS, name=entry_point)
    if not found:
        raise SetupError(
            f"The content filter {name!r} uses the entry point {entry_point!r}, but no installed package has an entry "
            f"point of this name in the group {ENTRY_POINTS!r}."
        )
    try:
        function: Callable[[str], Iterable[MatchSpan]] = next(iter(found)).load()
    except (ImportError, AttributeError) as problem:
        raise SetupError(f"The content filter {name!r} cannot be loaded: {problem}.") from None
    longest: int | None = getattr(function, "longest", None)
    return _sorted_spans(function), longest


def _sorted_spans(function: Callable[[str], Iterable[MatchSpan]]) -> FindSpans:
    """Return a function that sorts the callable's spans, and skips empty ones and those before the position."""

    def find(text: str, start: int) -> Iterator[MatchSpan]:
        return iter(sorted(span for span in function(text) if start <= span[0] < span[1] <= len(text)))

    return find
