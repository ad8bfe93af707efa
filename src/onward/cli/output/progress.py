"""Progress of slow work on one line of a terminal, which a thread rewrites while the work runs."""

from __future__ import annotations

import re
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta

from onward.cli.interrupt import progress_line
from onward.cli.output.terminal import can_rewrite, columns, cut, drawable, text_width, visible

INTERVAL_SECONDS = 0.1
_CLEAR_LINE = "\r\x1b[K"

_PERCENT = re.compile(r"(.*): (\d+) %")
MAX_BAR_CELLS, MIN_BAR_CELLS = 40, 8


class ProgressLine:
    """Writes `text(width)` to stderr every 0.1 s, cut to the width of the terminal, until it is removed."""

    def __init__(self, text: Callable[[int], str]) -> None:
        self._text = text
        self._removed = threading.Event()
        self._writer = threading.Thread(target=self._rewrite, daemon=True)
        self._writer.start()

    def draw(self) -> None:
        """Write the line now."""
        width = columns(sys.stderr) - len("^C ")  # which a terminal echoes: it must not start another line
        self._write(cut(drawable(visible(self._text(width)), sys.stderr), width))

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


@contextmanager
def shown_line(text: Callable[[int], str]) -> Iterator[None]:
    """Show `text(width)` on stderr while the context lasts, if that is a terminal whose lines can be rewritten."""
    if not can_rewrite(sys.stderr):
        yield
        return
    line = ProgressLine(text)
    try:
        line.draw()
        yield
    finally:
        line.remove()


def with_bar(before: str, done: int, total: int, after: str, width: int) -> str:
    """Return a line with a bar, filled to `done` of `total`, between two texts, one of which may be empty. The bar
    takes the width that they leave; it is left out if there is no room."""
    room = width - sum(text_width(each) + 1 for each in (before, after) if each)
    cells = min(MAX_BAR_CELLS, room)
    full = cells * min(done, total) // max(1, total)
    drawn = "━" * full + "─" * (cells - full) if cells >= MIN_BAR_CELLS else ""
    return " ".join(filter(None, (before, drawn, after)))


def time_left(done: int, total: int, seconds: float) -> str:
    """Return `0:01:30 left`, given that `done` of `total` took this many seconds; empty before anything is done."""
    return f"{timedelta(seconds=round(seconds / done * (total - done)))} left" if done > 0 else ""


class _Stages:
    """The current stage of slow work, as one line: what it does, how much of it is done, and how long it has taken."""

    def __init__(self) -> None:
        self._started = time.monotonic()
        self._first: tuple[int, float] | None = None
        """The first percentage of this stage, and when it was reached."""
        self.enter("Loading")

    def enter(self, stage: str) -> None:
        """Enter a stage, or note how much of it is done where the sentence ends in `: 40 %`. May be called on any
        thread."""
        found = _PERCENT.fullmatch(stage)
        if found is None:
            self._first = None
        elif self._first is None:
            self._first = int(found[2]), time.monotonic()
        self._stage = stage

    def line(self, width: int) -> str:
        now, stage, first = time.monotonic(), self._stage, self._first
        seconds = f"… {now - self._started:.1f} s"
        found = _PERCENT.fullmatch(stage)
        if found is None:
            return f"{stage} {seconds}"
        percent = int(found[2])
        left = time_left(percent - first[0], 100 - first[0], now - first[1]) if first else ""
        return with_bar(found[1], percent, 100, ", ".join(filter(None, (f"{percent} % {seconds}", left))), width)


def _ignore(stage: str) -> None:
    pass


def _in_tenths(show: Callable[[str], None]) -> Callable[[str], None]:
    """Return a function that passes stages on, but only the first percentage of each tenth: each becomes a line."""
    tenth = -1

    def pass_on(stage: str) -> None:
        nonlocal tenth
        found = _PERCENT.fullmatch(stage)
        before, tenth = tenth, int(found[2]) // 10 if found else -1
        if found is None or tenth != before:
            show(stage)

    return pass_on


@contextmanager
def loading(elsewhere: Callable[[str], None] = _ignore) -> Iterator[Callable[[str], None]]:
    """Yield a function to call with one sentence per stage; the line is removed from the terminal at the end. A
    sentence that ends in `: 40 %` has a bar. One that ends with a full stop is a remark, which goes to `elsewhere`.

    Where stderr is not a terminal whose lines can be rewritten, all sentences go there.
    """
    if not can_rewrite(sys.stderr):
        yield _in_tenths(elsewhere)
        return
    stages = _Stages()

    def show(stage: str) -> None:
        if not stage.endswith("."):
            stages.enter(stage)
            return
        with progress_line:
            sys.stderr.write(_CLEAR_LINE)
            sys.stderr.flush()
            elsewhere(stage)

    line = ProgressLine(stages.line)
    try:
        yield show
    finally:
        line.remove()
