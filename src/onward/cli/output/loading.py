"""Progress of slow work: a line on a terminal that is rewritten in place."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from onward.cli.interrupt import progress_line

INTERVAL_SECONDS = 0.1


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
    line = _Line()
    try:
        yield line.show
    finally:
        line.remove()


class _Line:
    """The current stage and the seconds so far, rewritten on stderr by a thread."""

    def __init__(self) -> None:
        self._stage = "Loading"
        self._started = time.monotonic()
        self._done = threading.Event()
        self._writer = threading.Thread(target=self._rewrite, daemon=True)
        self._writer.start()

    def show(self, stage: str) -> None:
        self._stage = stage

    def remove(self) -> None:
        self._done.set()
        self._writer.join()
        self._write("")

    def _rewrite(self) -> None:
        while not self._done.wait(INTERVAL_SECONDS):
            self._write(f"{self._stage} … {time.monotonic() - self._started:.1f} s")

    @staticmethod
    def _write(text: str) -> None:
        with progress_line:
            sys.stderr.write(f"\r\x1b[K{text}")
            sys.stderr.flush()
