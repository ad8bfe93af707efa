"""Matches the tokens of a choice against its grammar, and says which may come next. Wraps llguidance."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from onward.constraints.choice import TOO_SLOW, Outcome
from onward.constraints.errors import GrammarError
from onward.constraints.grammar import LIMITS, parser_limits
from onward.constraints.reasons import shown_reason
from onward.constraints.tokens import LibraryTokens, byte_tokens

ALL = np.uint32(0xFFFFFFFF)
"""A word of a mask that allows everything."""
MAX_TOKEN_SECONDS = 0.2
"""Processor time for the masks after one token, from which a request is refused."""
MAX_FORCED_TOKENS = 16
"""Of a text that must come next, so many tokens are looked at together."""


class TokenTrie:
    """The tokens of a vocabulary as the library needs them, with a virtual one after the last: its bit in a mask says
    whether the text may end. Immutable, safe from every thread. Takes about 20 bytes per byte of the vocabulary.
    """

    def __init__(self, tokens: LibraryTokens) -> None:
        self.vocab_size = tokens.vocab_size
        self.num_words = -(-(tokens.vocab_size + 1) // 32)
        """Length of the library's masks: those of `sampling.masks`, and one more where the virtual token needs it."""
        self._library = tokens.library

    def compile(self, grammar: str, limits: dict[str, Any] = LIMITS) -> Matcher:
        """Return a matcher before its first token. Takes milliseconds, without the interpreter lock; a hostile grammar
        takes up to a second. Raises GrammarError, also where it exceeds these limits."""
        from llguidance import LLMatcher

        library = LLMatcher(self._library, grammar, log_level=0, limits=parser_limits(limits))
        matcher = Matcher(library, self.vocab_size)
        library.compute_bitmask()  # fails where the text that is forced at the beginning exceeds a limit
        if matcher.error:
            raise GrammarError(matcher.error)
        return matcher


class Matcher:
    """The state of one choice in its grammar. Used on one thread at a time."""

    __slots__ = ("library", "vocab_size")

    def __init__(self, library: Any, vocab_size: int) -> None:
        self.library = library
        self.vocab_size = vocab_size

    def copy(self) -> Matcher:
        """Return a matcher in the same state, which is independent of this one."""
        return Matcher(self.library.deep_copy(), self.vocab_size)

    @property
    def error(self) -> str:
        """Why no further token can be matched: the grammar has become too complex, for one. "" if all is well."""
        return shown_reason(self.library.get_error()) if self.library.is_error() else ""

    @property
    def has_failed(self) -> bool:
        """Whether there is an `error`."""
        return bool(self.library.is_error())

    @property
    def is_complete(self) -> bool:
        """Whether the text is valid and nothing can follow it."""
        return bool(self.library.is_stopped()) and not self.library.is_error()

    def has_ended(self) -> bool:
        """Return whether the text is valid and nothing can follow it, also where the library finds that out only by a
        mask. Takes as long as one."""
        if self.is_complete or not self.library.is_accepting():
            return self.is_complete
        mask = np.frombuffer(self.library.compute_bitmask(), np.uint32)
        return int(np.bitwise_count(mask).sum()) == 1  # the virtual token

    def consume(self, token: int) -> None:
        """Take a token that the choice has generated. One that the grammar does not allow makes an `error`."""
        self.library.consume_token(token)

    def count_valid(self, tokens: list[int]) -> int:
        """Return how many of these tokens, from the first on, spell what the grammar allows next."""
        return int(self.library.validate_tokens(tokens)) if tokens else 0

    def forced_tokens(self) -> list[int]:
        """Return the tokens that must come next: where only one text is possible, masks allow only the tokens that the
        tokenizer makes of it. None if several texts may follow, or if the last token depends on what follows it."""
        tokens: list[int] = self.library.compute_ff_tokens()
        return tokens


class UnlockedConsumer:
    """Takes tokens without the interpreter lock, which `Matcher.consume` holds: a token of a large grammar takes up to
    tens of milliseconds, for which other threads would stand still. Used on one thread."""

    def __init__(self) -> None:
        from llguidance import LLExecutor, LLMatcher

        self._executor = LLExecutor(1)
        self._failed = LLMatcher(byte_tokens().library, "start: /a/", log_level=0)
        """The library gives the lock back for two matchers or more: this one takes no token."""
        self._failed.consume_token(0)

    def consume(self, matcher: Matcher, tokens: Sequence[int]) -> None:
        """As `Matcher.consume`, for tokens in order."""
        for token in tokens:
            self._executor.consume_token_par([(matcher.library, token), (self._failed, 0)])


def what_follows(matcher: Matcher, ends: NDArray[np.uint32]) -> Outcome:
    """Return what may follow, and with it what must: computed on the calling thread, mostly without the interpreter
    lock. `ends`: as in `Wanted`; without any, the model cannot say that a text is complete. The outcome of a complete
    text has no masks."""
    started = time.thread_time()
    if is_complete(matcher, ends):
        return Outcome(np.empty((0, len(ends)), np.uint32), [], True)
    masks = [MaskBuffer.compute_here(matcher, ends)]
    found = [] if matcher.has_failed else matcher.forced_tokens()[:MAX_FORCED_TOKENS]
    forced: list[int] = []
    completes = False
    ahead = matcher.copy() if found else matcher
    for token in found:
        ahead.consume(token)
        completes = is_complete(ahead, ends)
        mask = masks[0] if completes else MaskBuffer.compute_here(ahead, ends)
        if ahead.has_failed:
            break  # found again when the token before it is taken
        forced.append(token)
        masks.append(mask)
    seconds = time.thread_time() - started
    error = matcher.error or (TOO_SLOW if seconds > MAX_TOKEN_SECONDS else "")
    return Outcome(np.concatenate(masks), forced, completes, error, seconds)


def is_complete(matcher: Matcher, ends: NDArray[np.uint32]) -> bool:
    """Return whether a text is complete. `ends`: as in `what_follows`."""
    return matcher.is_complete or (not ends.any() and matcher.has_ended())


Wanted = tuple[Matcher, list[int], NDArray[np.uint32]]
"""A matcher, the tokens of a draft, and the mask of the choice's end tokens."""


class MaskBuffer:
    """Masks for the tokens of a step: a row for the next token of each choice and after every token of its draft.

    The rows are uint32, as in `sampling.masks`; where the text may end, the choice's end tokens are allowed, too. A row
    after a token that the grammar does not allow has no meaning, and allows something.
    """

    def __init__(self, trie: TokenTrie) -> None:
        from llguidance import LLExecutor

        self._trie = trie
        self._executor = LLExecutor(1)
        self._rows: NDArray[np.uint32] = np.empty((16, trie.num_words), np.uint32)

    def compute(self, wanted: Sequence[Wanted]) -> list[NDArray[np.uint32]]:
        """Return a mask [1 + len(draft), words] for each that is wanted: views that are valid until the next call. Runs
        on any thread, mostly without the interpreter lock."""
        starts, total = [], 0
        for _, draft, _ in wanted:
            starts.append(total)
            total += 1 + len(draft)
        if total > len(self._rows):
            self._rows = np.empty((total * 2, self._trie.num_words), np.uint32)
        rows = self._rows[:total]
        rows[:] = ALL
        address, row_bytes = rows.ctypes.data, self._trie.num_words * 4
        plain = [(each.library, start) for (each, draft, _), start in zip(wanted, starts, strict=True) if not draft]
        drafted = [
            (each.library, start, draft) for (each, draft, _), start in zip(wanted, starts, strict=True) if draft
        ]
        if plain:
            self._executor.unsafe_compute_mask_ptr(plain, address, row_bytes, total)
        if drafted:
            self._executor.unsafe_compute_mask_ptr_with_draft_token(drafted, address, row_bytes, total)
        return [
            finished(rows[start : start + 1 + len(draft)], ends, self._trie.vocab_size)
            for (_, draft, ends), start in zip(wanted, starts, strict=True)
        ]

    @staticmethod
    def compute_here(matcher: Matcher, ends: NDArray[np.uint32]) -> NDArray[np.uint32]:
        """Return the mask of the next token, [1, words], computed on the calling thread."""
        row = np.frombuffer(matcher.library.compute_bitmask(), np.uint32)
        return finished(row[None, :].copy(), ends, matcher.vocab_size)


def finished(rows: NDArray[np.uint32], ends: NDArray[np.uint32], vocab_size: int) -> NDArray[np.uint32]:
    """Replace the bit of the virtual token by those of the end tokens."""
    word, bit = divmod(vocab_size, 32)
    virtual = np.uint32(1 << bit)
    may_end = rows[:, word] & virtual
    rows[:, word] &= ~virtual
    masks = rows[:, : len(ends)]
    for index, ending in enumerate(may_end):
        if ending:
            masks[index] |= ends
        if index and not masks[index].any():
            masks[index] = ALL
    return masks
