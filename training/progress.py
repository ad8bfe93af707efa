"""A progress bar on one line."""

from __future__ import annotations

import sys
import time

BAR_WIDTH = 24
SECONDS_BETWEEN_LINES = 30.0


class ProgressBar:
    """Rewrites one line on a terminal; elsewhere (a log file) prints a line every SECONDS_BETWEEN_LINES."""

    def __init__(self) -> None:
        self._on_terminal = sys.stderr.isatty()
        self._last_line = 0.0

    def show(self, progress: float, tokens: int, tokens_per_second: float, loss: float, seconds_left: float) -> None:
        """Print the bar and its figures."""
        now = time.monotonic()
        if not self._on_terminal and now - self._last_line < SECONDS_BETWEEN_LINES:
            return
        self._last_line = now
        filled = round(progress * BAR_WIDTH)
        line = (
            f"[{'#' * filled}{'.' * (BAR_WIDTH - filled)}] {progress:6.1%}  {tokens / 1e6:.2f}M tokens  "
            f"{tokens_per_second:,.0f} tokens/s  loss {loss:.3f}  {clock_text(seconds_left)} left"
        )
        print(f"\r{line} " if self._on_terminal else line, end="" if self._on_terminal else "\n", file=sys.stderr)
        sys.stderr.flush()

    def note(self, text: str) -> None:
        """Print a separate line."""
        print(f"\n{text}" if self._on_terminal else text, file=sys.stderr, flush=True)


def clock_text(seconds: float) -> str:
    """Return a duration as `h:mm:ss`."""
    if seconds == float("inf"):
        return "?"
    minutes, rest = divmod(int(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02d}:{rest:02d}"
