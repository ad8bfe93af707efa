"""What a person sees of a running batch: a bar with tokens a second and the time left; one line at its end."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from onward.cli.show.words import counted

if TYPE_CHECKING:
    from onward.cli.batch.run import Done


class Progress:
    """A bar on stderr while it is open, when that is a terminal. `before` lines were done by earlier runs."""

    def __init__(self, total: int, before: int) -> None:
        self._total = total
        self._before = before
        self._started = time.monotonic()
        self._bar: Any = None

    def __enter__(self) -> Self:
        if sys.stderr.isatty():
            self._bar = _bar()
            self._task = self._bar.add_task("", total=self._total, completed=self._before, speed="")
            self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()

    def show(self, done: Done) -> None:
        if self._bar is not None:
            speed = speed_in_words(done.tokens, time.monotonic() - self._started)
            failed = f"{done.failed} failed" if done.failed else ""
            self._bar.update(self._task, completed=self._before + done.lines, speed=f"{speed} {failed}".strip())


def _bar() -> Any:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bar

    columns = (BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[speed]}"), TimeRemainingColumn())
    return Bar(*columns, console=Console(stderr=True), transient=True)


def speed_in_words(tokens: int, seconds: float) -> str:
    return f"{tokens / seconds:,.0f} tok/s" if tokens and seconds > 0 else ""


def summary(done: Done, seconds: float, errors: Path) -> None:
    """One line on stderr: what this run did, and what is in the errors file."""
    parts = [f"{counted(done.lines, 'line')} answered" if done.lines else "Nothing left to answer"]
    if done.before:
        parts.append(f"{done.before:,} before")
    if done.tokens:
        parts.append(f"{counted(done.tokens, 'token')}, {speed_in_words(done.tokens, seconds)}")
    if done.failed:
        parts.append(f"{done.failed:,} failed, see {errors}")
    print(" · ".join(parts), file=sys.stderr, flush=True)


def unfinished(done: Done) -> None:
    """One line on stderr, after the words of what ended a run before its end."""
    answered = f"{done.before + done.lines:,} of {counted(done.total, 'line')} answered"
    print(f"{answered}; run the same command again to go on.", file=sys.stderr, flush=True)
