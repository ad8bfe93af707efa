"""What a person sees of a running batch: a bar with tokens a second and the time left; one line at its end."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from onward.cli.output.words import pluralize

if TYPE_CHECKING:
    from onward.cli.batch.run import Done


class Progress:
    """A bar on stderr while it is open, when that is a terminal. `show` tells what `done` counts by then."""

    def __init__(self, done: Done) -> None:
        self._done = done
        self._started = time.monotonic()
        self._bar: Any = None

    def __enter__(self) -> Self:
        if sys.stderr.isatty():
            self._bar = _bar()
            self._task = self._bar.add_task("", total=self._done.total, completed=self._done.lines, speed="")
            self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()

    def show(self) -> None:
        if self._bar is not None:
            speed = speed_in_words(self._done.tokens, time.monotonic() - self._started)
            words = " ".join(filter(None, [speed, *_failures(self._done)]))
            self._bar.update(self._task, completed=self._done.lines, speed=words)


def _bar() -> Any:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bar

    columns = (BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[speed]}"), TimeRemainingColumn())
    return Bar(*columns, console=Console(stderr=True), transient=True)


def speed_in_words(tokens: int, seconds: float) -> str:
    return f"{tokens / seconds:,.0f} tok/s" if tokens and seconds > 0 else ""


def _failures(done: Done) -> list[str]:
    """What became of the lines that have no answer and will get none."""
    counts = ((done.refused, "refused"), (done.unsent, "not sent"))
    return [f"{number:,} {words}" for number, words in counts if number]


def summary(done: Done, seconds: float, errors: Path) -> None:
    """One line on stderr: what this run did, and what is in the errors file."""
    answered = f"{pluralize(done.answered - done.answered_before, 'line')} answered"
    parts = [answered if done.lines > done.before else "Nothing left to answer"]
    if done.before:
        parts.append(f"{done.before:,} before")
    if done.tokens:
        parts.append(f"{pluralize(done.tokens, 'token')}, {speed_in_words(done.tokens, seconds)}")
    if done.failed:
        parts.append(f"{', '.join(_failures(done))}, see {errors}")
    print(" · ".join(parts), file=sys.stderr, flush=True)


def unfinished(done: Done) -> None:
    """One line on stderr, after the words of what ended a run before its end."""
    parts = [f"{done.answered:,} of {pluralize(done.total, 'line')} answered", *_failures(done)]
    if done.failed:
        parts.append(f"{done.total - done.lines:,} left")
    print(f"{', '.join(parts)}; run the same command again to go on.", file=sys.stderr, flush=True)
