"""One line of a terminal that a thread rewrites while something runs."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable

from onward.cli.interrupt import progress_line
from onward.cli.output.cells import cut
from onward.cli.output.terminal import columns

INTERVAL_SECONDS = 0.1
_CLEAR_LINE = "\r\x1b[K"


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
