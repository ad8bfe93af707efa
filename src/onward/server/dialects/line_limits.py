"""llama-server's limits for editors, which look at lines: the least indentation, and a time (server-context.cpp)."""

from __future__ import annotations


class LineLimits:
    """Says where one choice's text ends by `n_indent` and `t_max_predict_ms`; 0 turns either off."""

    def __init__(self, min_indent: int, max_seconds: float) -> None:
        self._min_indent = min_indent
        self._max_seconds = max_seconds
        self._indent: int | None = None
        """Width of the current line's indentation so far; None once it has ended, and on the first line."""
        self.has_new_line = False

    def feed(self, text: str, decode_seconds: float) -> tuple[str, bool]:
        """Return the text up to the limit, and whether it was reached.

        A line that is indented by too little is cut behind its indentation. `decode_seconds` have passed since the
        first token; the time limit counts only once there is a line break.
        """
        end = self._shallow_line(text) if self._min_indent else None
        if end is not None:
            text = text[:end]
        self.has_new_line = self.has_new_line or "\n" in text
        is_late = self.has_new_line and 0 < self._max_seconds < decode_seconds
        return text, end is not None or is_late

    def _shallow_line(self, text: str) -> int | None:
        """Return where the first line that is indented by too little begins, after its indentation."""
        for position, character in enumerate(text):
            if self._indent is not None:
                if character in " \t":
                    self._indent += 1
                    continue
                if self._indent < self._min_indent:
                    return position
            self._indent = 0 if character == "\n" else None
        return None
