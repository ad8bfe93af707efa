"""Content filters: flagged text never leaves the server, in one piece or in chunks.

A filter sees one choice's completion as it grows. Text is held back until no match can begin in it any more: for
as long as the longest match, or to the end where a filter has none. So what is flagged depends on the text alone,
not on how it was cut into tokens or chunks, and a stream shows what the whole answer shows.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from onward.completions.patterns import Find, Span, compile_patterns, load_callable
from onward.engine.events import Piece
from onward.protocol.response import FinishReason
from onward.text.assembler import TokenRecord
from onward.values import ContentFilterSetting

Action = Literal["stop", "omit"]


@dataclass(frozen=True, slots=True)
class ContentFilter:
    """One filter. `longest` is the length of its longest match in code points, None where there is no bound."""

    name: str
    action: Action
    find: Find
    longest: int | None


class ContentFilters:
    """All filters of a server. Each judges the text as if it were alone; what any of them flags is flagged."""

    def __init__(self, filters: Sequence[ContentFilter] = ()) -> None:
        self.all = tuple(filters)
        lengths = [each.longest for each in self.all]
        self.longest = None if None in lengths else max((length for length in lengths if length), default=0)

    def __bool__(self) -> bool:
        return bool(self.all)

    def hide(self, text: str) -> bool:
        """Whether a text holds anything flagged, taken by itself."""
        return any(True for each in self.all for _ in each.find(text, 0))


def make_filters(settings: Sequence[ContentFilterSetting]) -> ContentFilters:
    """The filters that an operator configured. Raises SetupError."""
    return ContentFilters([_make_filter(setting) for setting in settings])


def _make_filter(setting: ContentFilterSetting) -> ContentFilter:
    if setting.entry_point is not None:
        find, longest = load_callable(setting.name, setting.entry_point)
    else:
        find, longest = compile_patterns(setting.name, setting.patterns)
    return ContentFilter(setting.name, setting.action, find, longest)


@dataclass(slots=True)
class Screened:
    """A Piece after the filters: what may be shown. `ending` may now be "content_filter"."""

    job: int
    choice: int
    text: str
    records: list[TokenRecord]
    billed: int
    ending: FinishReason | None


class Screen:
    """Applies the filters to one choice. `base` is the number of code points before its completion.

    After a match whose action is "stop" the choice has `ended`: text and records go up to the match, tokens are
    billed to its end, and further pieces must not be fed. A match whose action is "omit" is left out, its records
    too, and the choice ends as content_filter when it ends. A record that reaches into a match goes with it.
    """

    def __init__(self, filters: ContentFilters, base: int) -> None:
        self._filters = filters
        self._base = base
        self._window = ""
        """Text from code point `_start` on: one decided character as context, then all that is undecided."""
        self._start = 0
        self._decided = 0
        self._positions = [0] * len(filters.all)
        self._flagged: list[Span] = []
        """Those that text or records yet to come may touch; `_forget` folds the others into `_omitted`."""
        self._omitted = self._forgotten = 0
        self._any = False
        self._stop: Span | None = None
        self._records: deque[TokenRecord] = deque()
        self._billed = 0

    @property
    def ended(self) -> bool:
        """Whether a filter has ended the choice."""
        return self._stop is not None

    def feed(self, piece: Piece) -> Screened:
        """What of the choice may be shown after this piece of it."""
        self._window += piece.text
        self._records += piece.records
        final = piece.ending is not None
        self._scan(self._limit(final))
        text = self._show(self._limit(final) if self._stop is None else self._stop[0])
        records = self._release_records(final or self.ended)
        self._forget()
        ended = final or self.ended
        ending: FinishReason | None = "content_filter" if ended and self._any else piece.ending
        billed = piece.billed if final and not self.ended else min(piece.billed, self._billed)
        return Screened(piece.job, piece.choice, text, records, billed, ending)

    def _limit(self, final: bool) -> int:
        """Code points before which every beginning of a match is known: the longest match that begins there, and
        one code point after it, have been fed."""
        end = self._start + len(self._window)
        if final:
            return end
        if self._filters.longest is None:
            return self._decided
        return max(self._decided, end - self._filters.longest)

    def _scan(self, limit: int) -> None:
        """Find the matches that begin before `limit`, each filter's where it left off."""
        for index, each in enumerate(self._filters.all):
            if self._positions[index] >= limit:
                continue
            for found in each.find(self._window, self._positions[index] - self._start):
                start, end = self._start + found[0], self._start + found[1]
                if start >= limit:
                    break
                self._positions[index] = end
                self._any = True
                self._flagged.append((start, end))
                if each.action == "stop" and (self._stop is None or start < self._stop[0]):
                    self._stop = (start, end)
            self._positions[index] = max(self._positions[index], limit)

    def _show(self, limit: int) -> str:
        """The text up to `limit` that nothing flags; forgets the window before it."""
        shown: list[str] = []
        for start, end in sorted(self._flagged):
            if start >= limit:
                break
            shown.append(self._slice(self._decided, start))
            self._decided = max(self._decided, min(end, limit))
        shown.append(self._slice(self._decided, limit))
        self._decided = max(self._decided, limit)
        context = max(self._start, self._decided - 1)
        self._window = self._window[context - self._start :]
        self._start = context
        return "".join(shown)

    def _slice(self, start: int, end: int) -> str:
        return self._window[start - self._start : max(start, end) - self._start]

    def _release_records(self, ended: bool) -> list[TokenRecord]:
        """The records of decided text that touch no flagged span, at their places in the shown text.

        A token's end is where the next one begins, so the last one waits for the next, or for the end.
        """
        released: list[TokenRecord] = []
        while self._records:
            begin = self._records[0].offset - self._base
            end = max(begin + 1, self._start + len(self._window))  # the last one may reach as far as all text does
            if len(self._records) > 1:
                end = self._records[1].offset - self._base
            if not ended and (len(self._records) == 1 or end > self._decided or begin == self._decided):
                break
            record = self._records.popleft()
            self._billed += self._stop is None or begin < self._stop[1]
            if self._stop is not None and begin >= self._stop[0]:
                continue
            if not any(start <= begin < stop or begin < start < end for start, stop in self._flagged):
                released.append(replace(record, offset=record.offset - self._omitted_before(begin)))
        return released

    def _omitted_before(self, position: int) -> int:
        """Code points before `position` that are not shown, whichever filters flagged them."""
        omitted, reached = self._omitted, self._forgotten
        for start, stop in sorted(self._flagged):
            if start < position:
                omitted += max(0, min(stop, position) - max(start, reached))
                reached = max(reached, stop)
        return omitted

    def _forget(self) -> None:
        """Keep only a count of the spans that lie before all undecided text and all held records."""
        oldest = self._decided
        if self._records:
            oldest = min(oldest, self._records[0].offset - self._base)
        self._flagged.sort()
        past = 0
        for start, stop in self._flagged:
            if stop > oldest:
                break
            self._omitted += max(0, stop - max(start, self._forgotten))
            self._forgotten = max(self._forgotten, stop)
            past += 1
        del self._flagged[:past]
