"""Progress of slow work: its stage and the seconds so far, on one line of a terminal."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from onward.cli.output.progress_line import ProgressLine


def _ignore(stage: str) -> None:
    pass


@contextmanager
def loading(elsewhere: Callable[[str], None] = _ignore) -> Iterator[Callable[[str], None]]:
    """Yield a function to call with one sentence per stage; the line is removed from the terminal at the end.

    Where stderr is not a terminal the sentences go to `elsewhere`.
    """
    if not sys.stderr.isatty():
        yield elsewhere
        return
    stages, started = ["Loading"], time.monotonic()
    line = ProgressLine(lambda: f"{stages[-1]} … {time.monotonic() - started:.1f} s")
    try:
        yield stages.append
    finally:
        line.remove()
