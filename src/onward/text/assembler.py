"""Token records in, released records out: one choice's text with its stops, hidden tokens and offsets.

A record (token, bytes, log-probability, alternatives, offset) travels whole through holding and release, so that
neither a stop nor a split character strands a log-probability.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from onward.text.stops import Match, StopFinder
from onward.text.utf8 import Utf8Decoder


@dataclass(slots=True)
class TokenRecord:
    """One token of a text. `offset` counts code points from the start of prompt and completion together to
    the token's first byte; a token that begins inside a character has that character's offset, one behind a character
    that stays unfinished comes after its U+FFFD."""

    token: int
    piece: bytes
    logprob: float
    top: tuple[tuple[int, float], ...]
    offset: int = 0


@dataclass(frozen=True, slots=True)
class TextRules:
    """What may end or hide text in the choices of a job.

    `min_tokens`: no stop is looked for in the text of the first so many tokens. `keep_terminators`: records of
    the tokens that ended the text are released too, though their text is not (echoed log-probabilities need an
    entry for every evaluated token, spec/completions §0.12).
    """

    stops: tuple[str, ...] = ()
    include_stop: bool = False
    skip_special: bool = True
    min_tokens: int = 0
    keep_terminators: bool = False


@dataclass(slots=True)
class Release:
    """Text that may be shown now, and the records that belong to it."""

    text: str = ""
    records: list[TokenRecord] = field(default_factory=list)


@dataclass(slots=True)
class _Held:
    record: TokenRecord
    end: int
    """Code points complete once this token was read."""
    complete: bool
    """Whether no part of a character was pending after this token."""


class Assembler:
    """Assembles the text of one choice. Single-threaded; the engine feeds it.

    `base` is the number of code points before the completion, `pending` the bytes of a character that the
    prompt left unfinished.
    """

    def __init__(self, rules: TextRules, base: int = 0, pending: bytes = b"") -> None:
        self._rules = rules
        self._base = base
        self._decoder = Utf8Decoder(pending)
        self._finder = StopFinder(rules.stops)
        self._decoded = 0
        self._shown = 0
        self._fed = 0
        self._held: deque[_Held] = deque()
        self.stopped = False
        """Whether a stop sequence has ended the text."""
        self.billed = 0
        """Tokens that count as completion tokens: all but those that only spell a stop or an end."""

    def feed(self, record: TokenRecord, *, special: bool) -> Release:
        """Take the next token; sets `record.offset`; give what may be shown now.

        Must not be called after `stopped` or `flush`.
        """
        visible = b"" if special and self._rules.skip_special else record.piece
        record.offset = self._base + self._decoded + self._decoder.before(visible)
        text = self._decoder.feed(visible)
        self._decoded += len(text)
        self._fed += 1
        self.billed += 1
        if not (self._rules.stops or self._held or self._decoder.pending):
            self._shown = self._decoded
            return Release(text, [record])
        self._held.append(_Held(record, self._decoded, not self._decoder.pending))
        if self._fed <= self._rules.min_tokens:
            return self._release(self._finder.skip(text))
        shown, match = self._finder.feed(text)
        if match is None:
            return self._release(shown)
        return self._stop_at(match, shown)

    def flush(self, terminator: TokenRecord | None = None) -> Release:
        """End the text: give all that was held. `terminator` is the record of the end token, if one was drawn;
        it has no text and is not billed."""
        release = self._release(self._finder.skip(""))
        release.records += [held.record for held in self._held]
        self._held.clear()
        if terminator is not None and self._rules.keep_terminators:
            terminator.offset = self._base + self._shown
            release.records.append(terminator)
        return release

    def _release(self, text: str) -> Release:
        self._shown += len(text)
        records: list[TokenRecord] = []
        while self._held and self._is_whole(self._held[0]):
            records.append(self._held.popleft().record)
        return Release(text, records)

    def _is_whole(self, held: _Held) -> bool:
        return held.end < self._shown or (held.end == self._shown and held.complete)

    def _stop_at(self, match: Match, shown: str) -> Release:
        """Cut at the match. A token that straddles the cut stays; those after it are not billed."""
        self.stopped = True
        cut = match.end if self._rules.include_stop else match.start
        text = shown + (self._finder.held[: match.end - match.start] if self._rules.include_stop else "")
        self._shown += len(text)
        records: list[TokenRecord] = []
        for held in self._held:
            if held.record.offset - self._base < cut:
                records.append(held.record)
                continue
            self.billed -= 1
            if self._rules.keep_terminators:
                held.record.offset = min(held.record.offset, self._base + cut)
                records.append(held.record)
        self._held.clear()
        return Release(text, records)
