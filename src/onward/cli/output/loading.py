"""Progress of slow work: its stage and the seconds so far, on one line of a terminal."""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from onward.cli.output.progress_line import ProgressLine

_PERCENT = re.compile(r"(.*): (\d+) %")
_BAR_CELLS = 20


def _ignore(stage: str) -> None:
    pass


def with_bar(stage: str) -> str:
    """Return the sentence of a stage; one that ends with percent has a bar before them."""
    found = _PERCENT.fullmatch(stage)
    if found is None:
        return stage
    full = int(found[2]) * _BAR_CELLS // 100
    return f"{found[1]} {'━' * full}{'╌' * (_BAR_CELLS - full)} {found[2]} %"


@contextmanager
def loading(elsewhere: Callable[[str], None] = _ignore) -> Iterator[Callable[[str], None]]:
    """Yield a function to call with one sentence per stage; the line is removed from the terminal at the end.

    Where stderr is not a terminal the sentences go to `elsewhere`.
    """
    if not sys.stderr.isatty():
        yield elsewhere
        return
    stages, started = ["Loading"], time.monotonic()
    line = ProgressLine(lambda: f"{with_bar(stages[-1])} … {time.monotonic() - started:.1f} s")
    try:
        yield stages.append
    finally:
        line.remove()
