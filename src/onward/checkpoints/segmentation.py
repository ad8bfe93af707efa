"""How SentencePiece cuts a text into tokens: by a unigram language model, or by BPE whose scores may be equal.

Both compute as the library's version 0.2.3 does, down to the rounding of sums, because equally good cuts are frequent:
a row of equal signs has many (sentencepiece's unigram_model.cc and bpe_model.cc).
"""

from __future__ import annotations

import heapq
import math
import re
from array import array
from collections.abc import Mapping
from typing import Protocol

_UNKNOWN_PENALTY = 10.0
_MAX_SUM = 100_000.0
"""Of logarithms, before they are counted from zero again."""
_SHIFT = 21
"""Bits of a character."""
Cut = tuple[int, str]
"""A token and the text that it stands for; -1: there is no token for it."""


class Segmenter(Protocol):
    """Cuts a normalised text into tokens."""

    def cuts(self, text: str) -> list[Cut]:
        """Return the tokens of a text, in order."""
        ...


class Unigram:
    """The most probable tokens of a text (Kudo 2018), by the Viterbi algorithm."""

    def __init__(self, scores: Mapping[str, tuple[int, float]], chosen: Mapping[str, int]) -> None:
        """`scores`: tokens by text with the logarithms of their probabilities; `chosen`: tokens that win always."""
        values = [score for _, score in scores.values()]
        self._unknown = _single(min(values, default=0.0) - _UNKNOWN_PENALTY)
        self._children: dict[int, int] = {}
        self._tokens = array("q", [-1])
        self._scores = array("d", [0.0])
        for text, (token, score) in scores.items():
            self._add(text, token, score)
        for text, token in chosen.items():
            self._add(text, token, _single(0.1 * (len(text.encode()) - 1)))

    def _add(self, text: str, token: int, score: float) -> None:
        """Add a token to the trie: children by node and character."""
        node = 0
        for character in text:
            key = node << _SHIFT | ord(character)
            node = self._children.setdefault(key, len(self._tokens))
            if node == len(self._tokens):
                self._tokens.append(-1)
                self._scores.append(0.0)
        self._tokens[node], self._scores[node] = token, score

    def cuts(self, text: str) -> list[Cut]:
        size, characters = len(text), list(map(ord, text))
        children, tokens, scores = self._children, self._tokens, self._scores
        sums = array("f", bytes(4 * (size + 1)))  # single precision: the library rounds each sum to it
        begins, chosen = [-1] * (size + 1), [-1] * (size + 1)
        farthest = 0
        for begin in range(size):
            if abs(sums[begin]) > _MAX_SUM:
                _start_again(sums, begins, begin, farthest)
            so_far, node, is_known = sums[begin], 0, False
            for end in range(begin + 1, size + 1):
                found = children.get(node << _SHIFT | characters[end - 1])
                if found is None:
                    break
                node = found
                if (token := tokens[node]) < 0:
                    continue
                is_known = is_known or end == begin + 1
                farthest = max(farthest, end)
                score = _single(so_far + scores[node])
                if begins[end] < 0 or score > sums[end]:
                    sums[end], begins[end], chosen[end] = score, begin, token
            if is_known:
                continue
            farthest = max(farthest, begin + 1)
            score = _single(so_far + self._unknown)
            if begins[begin + 1] < 0 or score > sums[begin + 1]:
                sums[begin + 1], begins[begin + 1], chosen[begin + 1] = score, begin, -1
        return _path(text, begins, chosen)


def _start_again(sums: array[float], begins: list[int], begin: int, farthest: int) -> None:
    """Make the sum at a position zero, and those behind it smaller by as much, which keeps them precise."""
    excess = sums[begin]
    for place in range(begin, farthest + 1):
        if place == begin or begins[place] >= 0:
            sums[place] -= excess


def _path(text: str, begins: list[int], chosen: list[int]) -> list[Cut]:
    found: list[Cut] = []
    end = len(text)
    while end > 0:
        found.append((chosen[end], text[begins[end] : end]))
        end = begins[end]
    found.reverse()
    return found


def _single(value: float) -> float:
    """Return a number rounded to single precision."""
    return array("f", [value])[0] if math.isfinite(value) else value


class BytePairs:
    """Merges, of all neighbours whose union is a token, the pair of the highest score, the first one of equals."""

    def __init__(
        self, scores: Mapping[str, tuple[int, float]], chosen: Mapping[str, int], unused: Mapping[str, float]
    ) -> None:
        """`chosen`: tokens that are found first and never merged; `unused`: scores of texts that are merged, but stand
        for what they were merged from."""
        self._ids = {text: token for text, (token, _) in scores.items()} | dict(chosen)
        self._scores = {text: score for text, (_, score) in scores.items()} | dict(unused) | dict.fromkeys(chosen, 0.0)
        self._chosen = frozenset(chosen)
        self._unused = frozenset(unused)
        parts = [re.escape(text) for text in sorted(chosen, key=len, reverse=True)]
        self._symbols = re.compile("|".join([*parts, "."]), re.DOTALL)

    def cuts(self, text: str) -> list[Cut]:
        symbols: list[str] = self._symbols.findall(text)
        merged = _Merging(symbols, self._scores, self._chosen)
        merged.run()
        return [cut for symbol in symbols if symbol for cut in self._of(symbol, merged.parts)]

    def _of(self, symbol: str, parts: Mapping[str, tuple[str, str]]) -> list[Cut]:
        if symbol not in self._unused or symbol not in parts:
            return [(self._ids.get(symbol, -1), symbol)]
        return [cut for part in parts[symbol] for cut in self._of(part, parts)]


class _Merging:
    """The merging of one text. `symbols` are changed in place; those that became part of others are empty."""

    def __init__(self, symbols: list[str], scores: Mapping[str, float], frozen: frozenset[str]) -> None:
        self.parts: dict[str, tuple[str, str]] = {}
        """What each union was last proposed from."""
        self._symbols, self._scores, self._frozen = symbols, scores, frozen
        self._before = list(range(-1, len(symbols) - 1))
        self._after = [*range(1, len(symbols)), -1]
        self._pairs: list[tuple[float, int, int, int]] = []

    def run(self) -> None:
        symbols = self._symbols
        for index in range(1, len(symbols)):
            self._propose(index - 1, index)
        while self._pairs:
            _, left, right, size = heapq.heappop(self._pairs)
            if not symbols[left] or not symbols[right] or len(symbols[left]) + len(symbols[right]) != size:
                continue
            symbols[left] += symbols[right]
            symbols[right] = ""
            following = self._after[left] = self._after[right]
            if following >= 0:
                self._before[following] = left
            self._propose(self._before[left], left)
            self._propose(left, following)

    def _propose(self, left: int, right: int) -> None:
        if left < 0 or right < 0 or self._symbols[left] in self._frozen or self._symbols[right] in self._frozen:
            return
        union = self._symbols[left] + self._symbols[right]
        if (score := self._scores.get(union)) is not None:
            heapq.heappush(self._pairs, (-score, left, right, len(union)))
            self.parts[union] = self._symbols[left], self._symbols[right]
