"""Assembles the text of one choice from its tokens: UTF-8 decoding, stop strings, special tokens and offsets.

A token's record (id, bytes, log probability, alternatives, offset) is held back and emitted as a whole, together with
its text. So a stop string or a character that spans tokens never separates a log probability from its token.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

import msgspec

from onward.text.decoding import Utf8Decoder
from onward.text.stops import Match, StopFinder

Alternative = tuple[int, bytes, float, int]
"""A token that was likely in some place: its id, bytes, log probability and rank there, from 1. A plain tuple, because
twenty may be made per token."""


class TokenRecord(msgspec.Struct):
    """One token of a text, with its log probability and the most likely tokens in its place, best first.

    `offset` is the number of code points from the start of prompt and completion to the token's first byte. A token
    that begins inside a character has that character's offset. A token after a character that is never completed
    comes after its U+FFFD.
    """

    token: int
    token_bytes: bytes
    logprob: float
    alternatives: tuple[Alternative, ...]
    offset: int = 0
    is_terminator: bool = False
    """Whether it comes after the end of the text (see `TextRules.keep_terminators`)."""


@dataclass(frozen=True, slots=True)
class TextRules:
    """What can end a choice of a job, and what its text leaves out.

    The text of the first `min_tokens` tokens is not searched for stops. With `keep_terminators`, the records of tokens
    after the end of the text are emitted too, without their text: echoed log probabilities need an entry for every
    computed token (behaviour §0.12).
    """

    stops: tuple[str, ...] = ()
    include_stop: bool = False
    skip_special: bool = True
    min_tokens: int = 0
    keep_terminators: bool = False


class Assembled(msgspec.Struct):
    """Text that can be emitted now, and the records that belong to it."""

    text: str = ""
    records: list[TokenRecord] = []


@dataclass(slots=True)
class _Held:
    record: TokenRecord
    end: int
    """Number of complete code points after this token."""
    is_complete: bool
    """Whether the text after this token ends with a complete character."""


class Assembler:
    """Assembles the text of one choice. Not thread-safe: the engine thread feeds it.

    `base` is the number of code points before the completion, `pending` the bytes of an incomplete character at the
    end of the prompt.
    """

    def __init__(self, rules: TextRules, base: int = 0, pending: bytes = b"") -> None:
        self._rules = rules
        self._base = base
        self._decoder = Utf8Decoder(pending)
        self._finder = StopFinder(rules.stops)
        self._num_decoded = 0
        self._num_emitted = 0
        self._num_fed_tokens = 0
        self._held: deque[_Held] = deque()
        self.stop: str | None = None
        """The stop string that has ended the text, if one has."""
        self.num_completion_tokens = 0
        """Tokens of the completion whose records were emitted: all but the end token and tokens that only spell a stop
        string. It never falls: of tokens that are held back, it is not known yet."""

    @property
    def stopped(self) -> bool:
        """Whether a stop string has ended the text."""
        return self.stop is not None

    def feed(self, record: TokenRecord, *, special: bool) -> Assembled:
        """Add the next token and return what can be emitted now. Sets `record.offset` and takes ownership of it.

        Must not be called after `flush`, or when `stopped`.
        """
        visible = b"" if special and self._rules.skip_special else record.token_bytes
        record.offset = self._base + self._num_decoded
        if self._decoder.pending:
            record.offset += self._decoder.num_chars_before(visible)
        text = self._decoder.feed(visible)
        self._num_decoded += len(text)
        self._num_fed_tokens += 1
        if not (self._rules.stops or self._held or self._decoder.pending):
            self._num_emitted = self._num_decoded
            self.num_completion_tokens += 1
            return Assembled(text, [record])
        self._held.append(_Held(record, self._num_decoded, not self._decoder.pending))
        if self._num_fed_tokens <= self._rules.min_tokens:
            return self._emit(self._finder.skip(text))
        safe, match = self._finder.feed(text)
        if match is None:
            return self._emit(safe)
        return self._stop_at(match, safe)

    def flush(self, terminator: TokenRecord | None = None) -> Assembled:
        """End the text and return everything that was held back.

        `terminator` is the record of the end token, if one was sampled. It has no text and is not a completion token.
        """
        delta = self._emit(self._finder.skip(""))
        delta.records += [held.record for held in self._held]
        self.num_completion_tokens += len(self._held)
        self._held.clear()
        if terminator is not None and self._rules.keep_terminators:
            terminator.offset = self._base + self._num_emitted
            terminator.is_terminator = True
            delta.records.append(terminator)
        return delta

    def _emit(self, text: str) -> Assembled:
        """Return `text` with the records of all tokens whose text has now been emitted completely."""
        self._num_emitted += len(text)
        records: list[TokenRecord] = []
        while self._held and self._is_emitted(self._held[0]):
            records.append(self._held.popleft().record)
        self.num_completion_tokens += len(records)
        return Assembled(text, records)

    def _is_emitted(self, held: _Held) -> bool:
        return held.end < self._num_emitted or (held.end == self._num_emitted and held.is_complete)

    def _stop_at(self, match: Match, safe: str) -> Assembled:
        """End the text at the match. A token across the cut is kept; those after it are not completion tokens."""
        found = self._finder.held[: match.end - match.start]
        self.stop = found
        cut = match.end if self._rules.include_stop else match.start
        text = safe + (found if self._rules.include_stop else "")
        self._num_emitted += len(text)
        records: list[TokenRecord] = []
        for held in self._held:
            if held.record.offset - self._base < cut:
                records.append(held.record)
                self.num_completion_tokens += 1
                continue
            if self._rules.keep_terminators:
                held.record.offset = min(held.record.offset, self._base + cut)
                held.record.is_terminator = True
                records.append(held.record)
        self._held.clear()
        return Assembled(text, records)
