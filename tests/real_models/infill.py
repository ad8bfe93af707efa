"""Lines of functions of the standard library to fill in, and a program that runs what a model wrote.

As a program (`python -m tests.real_models.infill`) it reads a hole and a line from standard input as JSON, runs
the function with that line next to the original, and exits with 0 if all results are equal.
"""

from __future__ import annotations

import ast
import copy
import importlib
import inspect
import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

MAX_SECONDS = 20
"""For one function on all its arguments, the start of Python included: a wrong line may loop."""


@dataclass(frozen=True, slots=True)
class Hole:
    """A line of a function to fill in, without its indentation, and arguments to call the function with."""

    module: str
    function: str
    line: str
    calls: tuple[tuple[Any, ...], ...]

    def source(self) -> tuple[str, str]:
        """Return the function before the line, indentation included, and after it, from its line break on.

        Raises LookupError if this version of Python has another function.
        """
        text = inspect.getsource(importlib.import_module(self.module))
        functions = (each for each in ast.parse(text).body if isinstance(each, ast.FunctionDef))
        found = next((each for each in functions if each.name == self.function), None)
        before, line, after = f"{ast.get_source_segment(text, found) if found else ''}\n".partition(f" {self.line}\n")
        if not line:
            raise LookupError(f"{self.module}.{self.function} has no line {self.line!r}")
        return f"{before} ", f"\n{after}"

    def run(self, line: str) -> list[Any]:
        """Return the result of the function with another line, and its arguments after the call."""
        before, after = self.source()
        module = importlib.import_module(self.module)
        names: dict[str, Any] = dict(vars(module))
        exec(compile(before + line + after, "<filled in>", "exec"), names)
        return _results(names[self.function], self.calls)


_Calls = tuple[tuple[Any, ...], ...]
_WORDS: _Calls = (["interview", "internet", "interval"],), (["a", "b"],), ([],), (["same", "same"],)
_COLOURS = (0.2, 0.4, 0.4), (1.0, 0.5, 0.25), (0.1, 0.1, 0.1), (0.0, 0.9, 0.3), (0.7, 0.1, 0.8)
_PATHS = ("/usr/lib/python",), ("file.txt",), ("/",), ("a/b/",), ("",)
_MARKUP = ("<a href='x'>Tom & \"Jerry\"</a>",), ("plain",), ("5 > 3 < 4 &amp;", False)
_YEARS = (1896, 1904), (1995, 2005), (2000, 2000), (2001, 2101), (1, 2000)

HOLES = (
    Hole("colorsys", "rgb_to_hsv", "maxc = max(r, g, b)", _COLOURS),
    Hole("colorsys", "rgb_to_hsv", "minc = min(r, g, b)", _COLOURS),
    Hole("colorsys", "rgb_to_hls", "l = sumc/2.0", _COLOURS),
    Hole("colorsys", "hls_to_rgb", "m1 = 2.0*l - m2", _COLOURS),
    Hole("colorsys", "hsv_to_rgb", "f = (h*6.0) - i", _COLOURS),
    Hole("colorsys", "hsv_to_rgb", "q = v*(1.0 - s*f)", _COLOURS),
    Hole("calendar", "leapdays", "y1 -= 1", _YEARS),
    Hole("calendar", "leapdays", "y2 -= 1", _YEARS),
    Hole("posixpath", "basename", "return p[i:]", _PATHS),
    Hole("posixpath", "basename", "i = p.rfind(sep) + 1", _PATHS),
    Hole("posixpath", "isabs", "return s.startswith(sep)", _PATHS),
    Hole("posixpath", "split", "head, tail = p[:i], p[i:]", _PATHS),
    Hole("genericpath", "commonprefix", "s1 = min(m)", _WORDS),
    Hole("genericpath", "commonprefix", "s2 = max(m)", _WORDS),
    Hole("genericpath", "commonprefix", "return s1[:i]", _WORDS),
    Hole("html", "escape", 's = s.replace("<", "&lt;")', _MARKUP),
    Hole("html", "escape", 's = s.replace(">", "&gt;")', _MARKUP),
    Hole("operator", "countOf", "count += 1", (([1, 2, 1], 1), ("banana", "a"), ([], 0))),
    Hole("operator", "indexOf", "return i", (([1, 2, 1], 2), ("banana", "n"))),
    Hole("heapq", "heappush", "heap.append(item)", (([1, 5, 3], 2), ([], 7), ([2, 4], 0))),
    Hole("heapq", "heapify", "n = len(x)", (([9, 4, 7, 1, 8],), ([2, 1],), ([],))),
    Hole("bisect", "bisect_left", "hi = len(a)", (([1, 3, 3, 8], 3), ([], 1), ([1, 2], 9))),
    Hole("difflib", "_calculate_ratio", "return 2.0 * matches / length", ((3, 8), (0, 0), (2, 4))),
    Hole("string", "capwords", "return (sep or ' ').join(map(str.capitalize, s.split(sep)))", (("the  old man",),)),
    Hole("email.utils", "unquote", "return str[1:-1]", (("<a@b>",), ("plain",))),
    Hole("textwrap", "fill", "w = TextWrapper(width=width, **kwargs)", (("one two three four five", 9), ("a", 3))),
    Hole("statistics", "mean", "raise StatisticsError('mean requires at least one data point')", (([1, 2, 6],), ([],))),
)


def is_right(number: int, line: str) -> bool:
    """Run HOLES[number] with a line in a process of its own."""
    command = [sys.executable, "-m", "tests.real_models.infill"]
    text = json.dumps({"number": number, "line": line})
    try:
        done = subprocess.run(command, input=text, text=True, capture_output=True, timeout=MAX_SECONDS, check=False)
    except subprocess.TimeoutExpired:
        return False
    return done.returncode == 0


def _results(function: Callable[..., Any], calls: tuple[tuple[Any, ...], ...]) -> list[Any]:
    found: list[Any] = []
    for call in calls:
        arguments = copy.deepcopy(call)
        try:
            found.append((function(*arguments), arguments))
        except Exception as error:
            found.append(type(error).__name__)
    return found


def main() -> None:
    given = json.load(sys.stdin)
    hole = HOLES[given["number"]]
    sys.exit(hole.run(given["line"]) != hole.run(hole.line))


if __name__ == "__main__":
    main()
