"""Progress of a batch on a terminal: a bar with tokens per second and the time left, then a summary line."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from onward.cli.batch.counts import Counts
from onward.cli.output.words import pluralize


class Progress:
    """A progress bar on stderr while it is open, if stderr is a terminal. `update` redraws it from `counts`."""

    def __init__(self, counts: Counts) -> None:
        self._counts = counts
        self._started = time.monotonic()
        self._bar: Any = None

    def __enter__(self) -> Self:
        if sys.stderr.isatty():
            self._bar = _bar()
            self._task = self._bar.add_task("", total=self._counts.total, completed=self._counts.finished, speed="")
            self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()

    def update(self) -> None:
        if self._bar is not None:
            speed = format_speed(self._counts.tokens, time.monotonic() - self._started)
            words = " ".join(filter(None, [speed, *_failed_counts(self._counts)]))
            self._bar.update(self._task, completed=self._counts.finished, speed=words)


def _bar() -> Any:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bar

    columns = (BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[speed]}"), TimeRemainingColumn())
    return Bar(*columns, console=Console(stderr=True), transient=True)


def format_speed(tokens: int, seconds: float) -> str:
    return f"{tokens / seconds:,.0f} tok/s" if tokens and seconds > 0 else ""


def _failed_counts(counts: Counts) -> list[str]:
    """Return the counts of lines without a result, with words."""
    failed = ((counts.rejected, "rejected"), (counts.unsent, "not sent"))
    return [f"{number:,} {state}" for number, state in failed if number]


def print_summary(counts: Counts, seconds: float, errors: Path) -> None:
    """Print one line to stderr: what this run did, and what is in the errors file."""
    answered = f"{pluralize(counts.answered - counts.answered_before, 'line')} completed"
    parts = [answered if counts.finished > counts.finished_before else "Nothing left to do"]
    if counts.finished_before:
        parts.append(f"{counts.finished_before:,} before")
    if counts.tokens:
        parts.append(f"{pluralize(counts.tokens, 'token')}, {format_speed(counts.tokens, seconds)}")
    if counts.failed:
        parts.append(f"{', '.join(_failed_counts(counts))}, see {errors}")
    print(" · ".join(parts), file=sys.stderr, flush=True)


def print_unfinished(counts: Counts) -> None:
    """Print one line to stderr, after the error that ended a run early."""
    parts = [f"{counts.answered:,} of {pluralize(counts.total, 'line')} completed", *_failed_counts(counts)]
    if counts.failed:
        parts.append(f"{counts.total - counts.finished:,} left")
    print(f"{', '.join(parts)}; run the same command again to continue.", file=sys.stderr, flush=True)
