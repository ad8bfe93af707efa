"""Find the first stop sequence in text that arrives in pieces; hold what might become one."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Match:
    """A stop sequence found at `start` … `end` (code points, end exclusive) of all text fed so far."""

    start: int
    end: int


class StopFinder:
    """Looks for several stop sequences at once.

    The match that is complete first wins; of several that end at the same character, the one that starts first.
    So the result depends on the text alone, not on how it was cut into tokens (spec/completions §2.11).
    """

    def __init__(self, stops: tuple[str, ...]) -> None:
        self._stops = stops
        self._longest = max((len(stop) for stop in stops), default=0)
        self._held = ""
        self._released = 0

    def feed(self, text: str) -> tuple[str, Match | None]:
        """Give the text that is safe to show, and the match if one is complete.

        After a match the shown text ends where the match starts and nothing more may be fed.
        """
        if not self._stops:
            self._released += len(text)
            return text, None
        window = self._held + text
        found = self._first_match(window)
        if found is None:
            keep = self._possible_start(window)
            shown, self._held = window[:keep], window[keep:]
            self._released += len(shown)
            return shown, None
        base = self._released
        shown = window[: found.start]
        self._released += len(shown)
        self._held = window[found.start :]
        return shown, Match(base + found.start, base + found.end)

    def skip(self, text: str) -> str:
        """Give all text, held text included, without looking for stops in it."""
        shown = self._held + text
        self._held = ""
        self._released += len(shown)
        return shown

    @property
    def held(self) -> str:
        """Text that is not shown yet: a possible beginning of a stop, or, after a match, all from it on."""
        return self._held

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

    def _possible_start(self, window: str) -> int:
        """Where the longest tail of `window` begins that is a proper beginning of some stop."""
        for start in range(max(0, len(window) - self._longest + 1), len(window)):
            tail = window[start:]
            if any(stop.startswith(tail) for stop in self._stops):
                return start
        return len(window)
