"""A sign of life while models load: a moving line on a terminal, log lines elsewhere."""

from __future__ import annotations

import logging
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

log = logging.getLogger("onward.server")
INTERVAL_SECONDS = 0.1


@contextmanager
def loading() -> Iterator[Callable[[str], None]]:
    """Gives a function that takes a sentence for each stage. The terminal's line leaves no trace."""
    if not sys.stderr.isatty():
        yield log.info
        return
    line = _Line()
    try:
        yield line.show
    finally:
        line.remove()


class _Line:
    """The current stage and the seconds so far, rewritten on stderr by a thread of its own."""

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
        sys.stderr.write(f"\r\x1b[K{text}")
        sys.stderr.flush()
