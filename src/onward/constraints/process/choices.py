"""The grammars and choices of the disposable process that has a model's vocabulary."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable

import numpy as np
from numpy.typing import NDArray

from onward.constraints.errors import GrammarError
from onward.constraints.matcher import MaskBuffer, Matcher, TokenTrie, what_follows
from onward.constraints.process.messages import Advanced, CompiledGrammar
from onward.constraints.tokens import LibraryTokens
from onward.sampling.masks import pack_mask


class Choices:
    """Compiled grammars and the states of choices in them, by the numbers of the other side. Used on one thread.

    `encode` returns the tokens of a text.
    """

    def __init__(self, token_bytes: list[bytes], control: frozenset[int], encode: Callable[[str], list[int]]) -> None:
        tokens = LibraryTokens(len(token_bytes), token_bytes.__getitem__, control.__contains__, encode)
        self._trie = TokenTrie(tokens)
        self._grammars: dict[int, tuple[Matcher, NDArray[np.uint32]]] = {}
        self._choices: dict[int, Matcher] = {}

    def compile(self, number: int, grammar: str, end_tokens: list[int]) -> CompiledGrammar:
        """Compile a grammar, and compute the masks of a choice without tokens."""
        started = time.thread_time()
        try:
            matcher = self._trie.compile(grammar)
        except GrammarError as error:
            return CompiledGrammar(b"", str(error))
        ends = pack_mask(frozenset(end_tokens), self._trie.vocab_size)
        masks = MaskBuffer.compute_here(matcher, ends)
        if matcher.error:
            return CompiledGrammar(b"", matcher.error)
        self._grammars[number] = matcher, ends
        return CompiledGrammar(masks.tobytes(), "", time.thread_time() - started)

    def advance(self, choice: int, grammar: int, tokens: list[int]) -> Advanced:
        """Take tokens of a choice, which begins with them if it is new, and compute the next masks."""
        first, ends = self._grammars[grammar]
        matcher = self._choices.get(choice)
        if matcher is None:
            matcher = self._choices[choice] = first.copy()
        for token in tokens:
            matcher.consume(token)
        follows = what_follows(matcher, ends)
        return Advanced(follows.masks.tobytes(), follows.forced, follows.completes, follows.error, follows.seconds)

    def forget(self, choices: Iterable[int], grammars: Iterable[int]) -> None:
        """Drop what is no longer needed."""
        for choice in choices:
            self._choices.pop(choice, None)
        for number in grammars:
            self._grammars.pop(number, None)
