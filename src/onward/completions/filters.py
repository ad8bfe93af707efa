"""Content filters: flagged text never leaves the server, streamed or not.

A filter stream processes one choice's completion as it grows. Text is held back until no match can begin in it: by the
length of the longest possible match, or to the end of the text if a filter has no such bound. So what is flagged
depends on the text alone, not on how it is split into tokens or chunks, and streams equal complete responses.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from msgspec.structs import replace

from onward.completions.answer import Finish
from onward.completions.patterns import FindSpans, MatchSpan, compile_patterns, load_callable
from onward.completions.text_deltas import TextDelta
from onward.text.assembler import Alternative, TokenRecord
from onward.values import ContentFilterSetting

Action = Literal["stop", "omit"]


@dataclass(frozen=True, slots=True)
class ContentFilter:
    """One filter. `max_match_length` is the length of its longest possible match in code points, None if unbounded."""

    name: str
    action: Action
    find: FindSpans
    max_match_length: int | None


class ContentFilters:
    """All filters of a server. Filters are independent: text that any of them flags is flagged."""

    def __init__(self, filters: Sequence[ContentFilter] = ()) -> None:
        self.all = tuple(filters)
        lengths = [each.max_match_length for each in self.all]
        self.max_match_length = None if None in lengths else max((length for length in lengths if length), default=0)

    def __bool__(self) -> bool:
        return bool(self.all)

    def flag(self, text: str) -> bool:
        """Return whether any filter flags a part of `text`, taken on its own."""
        return any(True for each in self.all for _ in each.find(text, 0))

    def unflagged(self, alternatives: tuple[Alternative, ...]) -> tuple[Alternative, ...]:
        """Return the alternatives without those whose own text is flagged."""
        return tuple(each for each in alternatives if not self.flag(each[1].decode(errors="replace")))


def make_filters(settings: Sequence[ContentFilterSetting]) -> ContentFilters:
    """Return the configured filters. Raises SetupError for invalid patterns and entry points."""
    return ContentFilters([_make_filter(setting) for setting in settings])


def _make_filter(setting: ContentFilterSetting) -> ContentFilter:
    if setting.entry_point is not None:
        find, max_match_length = load_callable(setting.name, setting.entry_point)
    else:
        find, max_match_length = compile_patterns(setting.name, setting.patterns)
    return ContentFilter(setting.name, setting.action, find, max_match_length)


class FilterStream:
    """Applies the filters to one choice. `base` is the number of code points before its completion.

    After a match with action "stop" the choice has `ended`: its text and records end before the match, its completion
    tokens after it, and nothing more may be fed. A match with action "omit" is removed from the text, and the choice
    finishes with content_filter at its end. Records of tokens that overlap a match are removed.
    """

    def __init__(self, filters: ContentFilters, base: int) -> None:
        self._filters = filters
        self._base = base
        self._window = ""
        """Text from code point `_start` on: one decided character as context, then all undecided text."""
        self._start = 0
        self._decided = 0
        self._positions = [0] * len(filters.all)
        self._flagged: list[MatchSpan] = []
        """Spans that later text or records can overlap; `_forget` counts the others in `_omitted`."""
        self._omitted = self._forgotten = 0
        self._has_match = False
        self._stop: MatchSpan | None = None
        self._records: deque[TokenRecord] = deque()
        self._num_tokens = 0

    @property
    def ended(self) -> bool:
        """Whether a filter has ended the choice."""
        return self._stop is not None

    def feed(self, delta: TextDelta) -> TextDelta:
        """Add a delta of the choice and return what can be sent now, which may finish with content_filter.

        Raises what the operator's callables raise.
        """
        self._window += delta.text
        self._records += delta.records
        final = delta.finish is not None
        self._scan(self._limit(final))
        text = self._take_text(self._limit(final) if self._stop is None else self._stop[0])
        records = self._take_records(final or self.ended)
        self._forget()
        ended = final or self.ended
        finish = Finish("content_filter") if ended and self._has_match else delta.finish
        num_tokens = delta.num_completion_tokens
        if self.ended or not final:
            num_tokens = min(num_tokens, self._num_tokens)
        return TextDelta(delta.job, delta.choice, text, records, num_tokens, finish)

    def _limit(self, final: bool) -> int:
        """Return the code point before which the start of every match is known.

        For these, the longest possible match and one code point after it have been fed.
        """
        end = self._start + len(self._window)
        if final:
            return end
        if self._filters.max_match_length is None:
            return self._decided
        return max(self._decided, end - self._filters.max_match_length)

    def _scan(self, limit: int) -> None:
        """Find the matches that begin before `limit`. Each filter continues where it left off."""
        for index, each in enumerate(self._filters.all):
            if self._positions[index] >= limit:
                continue
            for found in each.find(self._window, self._positions[index] - self._start):
                start, end = self._start + found[0], self._start + found[1]
                if start >= limit:
                    break
                self._positions[index] = end
                self._has_match = True
                self._flagged.append((start, end))
                if each.action == "stop" and (self._stop is None or start < self._stop[0]):
                    self._stop = (start, end)
            self._positions[index] = max(self._positions[index], limit)

    def _take_text(self, limit: int) -> str:
        """Return the unflagged text up to `limit`, and remove it from the window."""
        parts: list[str] = []
        for start, end in sorted(self._flagged):
            if start >= limit:
                break
            parts.append(self._slice(self._decided, start))
            self._decided = max(self._decided, min(end, limit))
        parts.append(self._slice(self._decided, limit))
        self._decided = max(self._decided, limit)
        context = max(self._start, self._decided - 1)
        self._window = self._window[context - self._start :]
        self._start = context
        return "".join(parts)

    def _slice(self, start: int, end: int) -> str:
        return self._window[start - self._start : max(start, end) - self._start]

    def _take_records(self, ended: bool) -> list[TokenRecord]:
        """Return copies of the records of decided text that overlap no flagged span, with offsets in the sent text.

        A token ends where the next one begins, so the last record waits for the next token or the end.
        """
        taken: list[TokenRecord] = []
        while self._records:
            begin = self._records[0].offset - self._base
            end = max(begin + 1, self._start + len(self._window))  # the last token may extend to the end of the text
            if len(self._records) > 1:
                end = self._records[1].offset - self._base
            if not ended and (len(self._records) == 1 or end > self._decided or begin == self._decided):
                break
            record = self._records.popleft()
            self._num_tokens += self._stop is None or begin < self._stop[1]
            if self._stop is not None and begin >= self._stop[0]:
                continue
            if not any(start <= begin < stop or begin < start < end for start, stop in self._flagged):
                offset = record.offset - self._omitted_before(begin)
                kept = self._filters.unflagged(record.alternatives) if record.alternatives else ()
                taken.append(replace(record, offset=offset, alternatives=kept))
        return taken

    def _omitted_before(self, position: int) -> int:
        """Return how many code points before `position` are omitted, by any filter."""
        omitted, reached = self._omitted, self._forgotten
        for start, stop in sorted(self._flagged):
            if start < position:
                omitted += max(0, min(stop, position) - max(start, reached))
                reached = max(reached, stop)
        return omitted

    def _forget(self) -> None:
        """Replace spans before all undecided text and all held records by the count of their code points."""
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
