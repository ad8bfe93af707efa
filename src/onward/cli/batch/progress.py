"""Progress of a batch: its counts, a bar with tokens per second and the time left, and a summary line at the end."""

from __future__ import annotations

import sys
import time
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

from onward.cli.output.progress import shown_line, time_left, with_bar
from onward.cli.output.terminal import dotted, pluralize


@dataclass(slots=True)
class Counts:
    """How many lines of a file are in which state; `total` is 0 until the file has been read.

    `answered`, `rejected` (by the source) and `unsent` (not a valid request) include earlier runs: `finished_before`,
    of which `answered_before`. `unanswered` lines failed on the server and are in neither file. `tokens` counts the
    completion tokens of this run.
    """

    total: int = 0
    finished_before: int = 0
    answered_before: int = 0
    answered: int = 0
    rejected: int = 0
    unsent: int = 0
    tokens: int = 0
    unanswered: int = 0

    @property
    def failed(self) -> int:
        return self.rejected + self.unsent

    @property
    def finished(self) -> int:
        """How many lines are finished, in this run or before."""
        return self.answered + self.failed


def shown_bar(counts: Counts) -> AbstractContextManager[None]:
    """Show a progress bar on a terminal while the context lasts."""
    started = time.monotonic()
    return shown_line(lambda width: bar(counts, time.monotonic() - started, width))


def bar(counts: Counts, seconds: float, width: int) -> str:
    """Return a bar with the finished lines, tokens per second, failures, and the time left at this run's pace."""
    finished, before = counts.finished, counts.finished_before
    left = time_left(finished - before, counts.total - before, seconds)
    words = [f"{finished:,}/{counts.total:,}", format_speed(counts.tokens, seconds), *_failed_counts(counts), left]
    return with_bar("", finished, counts.total, " ".join(filter(None, words)), width)


def format_speed(tokens: int, seconds: float) -> str:
    """Return `1,234 tok/s`; empty without tokens or before any time has passed."""
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
    print(dotted(parts, sys.stderr), file=sys.stderr, flush=True)


def print_unfinished(counts: Counts) -> None:
    """Print one line to stderr, after the error that ended a run early."""
    parts = [f"{counts.answered:,} of {pluralize(counts.total, 'line')} completed", *_failed_counts(counts)]
    if counts.failed:
        parts.append(f"{counts.total - counts.finished:,} left")
    print(f"{', '.join(parts)}; run the same command again to continue.", file=sys.stderr, flush=True)
