"""Incremental search for stop strings: text that may be the beginning of one is held back."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Match:
    """A stop string found at code points `start` to `end` (exclusive) of all text fed so far."""

    start: int
    end: int


class StopFinder:
    """Searches for several stop strings at once.

    The match that is complete first wins; of those that end at the same character, the one that starts first. The
    result depends on the text alone, not on how it is split into tokens (behaviour §2.11).
    """

    def __init__(self, stops: tuple[str, ...]) -> None:
        self._stops = stops
        self._max_stop_length = max((len(stop) for stop in stops), default=0)
        self.held = ""
        """Text held back: a possible beginning of a stop string, or, after a match, the text from its start on."""
        self._num_emitted = 0

    def feed(self, text: str) -> tuple[str, Match | None]:
        """Return the text that cannot be part of a stop string, and the match if one is complete.

        With a match, the text ends where the match starts, and nothing more may be fed.
        """
        if not self._stops:
            self._num_emitted += len(text)
            return text, None
        window = self.held + text
        found = self._first_match(window)
        if found is None:
            start = self._partial_match_start(window)
            safe, self.held = window[:start], window[start:]
            self._num_emitted += len(safe)
            return safe, None
        base = self._num_emitted
        safe = window[: found.start]
        self._num_emitted += len(safe)
        self.held = window[found.start :]
        return safe, Match(base + found.start, base + found.end)

    def skip(self, text: str) -> str:
        """Return all text, including text held back, without searching it for stop strings."""
        safe = self.held + text
        self.held = ""
        self._num_emitted += len(safe)
        return safe

    def _first_match(self, window: str) -> Match | None:
        best: Match | None = None
        for stop in self._stops:
            start = window.find(stop)
            if start < 0:
                continue
            end = start + len(stop)
            if best is None or (end, start) < (best.end, best.start):
                best = Match(start, end)
        return best

    def _partial_match_start(self, window: str) -> int:
        """Return the start of the longest suffix of `window` that is a proper prefix of a stop string, else its end."""
        for start in range(max(0, len(window) - self._max_stop_length + 1), len(window)):
            suffix = window[start:]
            if any(stop.startswith(suffix) for stop in self._stops):
                return start
        return len(window)
