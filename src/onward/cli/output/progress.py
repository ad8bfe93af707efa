"""Progress of slow work on one line of a terminal, which a thread rewrites while the work runs."""

from __future__ import annotations

import re
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from onward.cli.interrupt import progress_line
from onward.cli.output.terminal import columns, cut

INTERVAL_SECONDS = 0.1
_CLEAR_LINE = "\r\x1b[K"

_PERCENT = re.compile(r"(.*): (\d+) %")
_BAR_CELLS = 20


class ProgressLine:
    """Writes `text()` to stderr every 0.1 s, cut to the width of the terminal, until it is removed."""

    def __init__(self, text: Callable[[], str]) -> None:
        self._text = text
        self._removed = threading.Event()
        self._writer = threading.Thread(target=self._rewrite, daemon=True)
        self._writer.start()

    def draw(self) -> None:
        """Write the line now."""
        self._write(cut(self._text(), columns(sys.stderr) - 1))

    def remove(self) -> None:
        """Clear the line and end the thread."""
        self._removed.set()
        self._writer.join()
        self._write("")

    def _rewrite(self) -> None:
        while not self._removed.wait(INTERVAL_SECONDS):
            self.draw()

    @staticmethod
    def _write(text: str) -> None:
        with progress_line:
            sys.stderr.write(_CLEAR_LINE + text)
            sys.stderr.flush()


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
