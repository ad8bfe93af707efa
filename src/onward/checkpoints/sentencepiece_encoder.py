"""SentencePiece's own way from text to tokens, for models whose rules `tokenizers` does not follow exactly.

A text is cut by a unigram language model, or by BPE whose scores may be equal. Both compute as the library's version
0.2.3 does, down to the rounding of sums, because equally good cuts are frequent: a row of equal signs has many
(sentencepiece's unigram_model.cc and bpe_model.cc). Its versions round differently, which would change results: so the
library is not used here. It is the oracle of the tests.
"""

from __future__ import annotations

import heapq
import math
import re
from array import array
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Protocol

from onward.checkpoints.normalization import Normalizer, Rules, longest_of
from onward.checkpoints.sentencepiece import SentencePieces
from onward.checkpoints.types import BYTE, NORMAL, UNKNOWN, UNUSED, USER_DEFINED
from onward.checkpoints.vocabulary import require_few_characters
from onward.errors import CheckpointError
from onward.offload import breathe

_UNKNOWN_PENALTY = 10.0
_MAX_SUM = 100_000.0
"""Of logarithms, before they are counted from zero again."""
_SHIFT = 21
"""Bits of a character."""
_STRIDE = 128
"""After how many characters or pairs others may run: these loops take microseconds for each."""
EncodeText = Callable[[str], list[int]]
Cut = tuple[int, str]
"""A token and the text that it stands for; -1: there is no token for it."""

MAX_TOKEN_CHARACTERS = 512
"""Of a token of a unigram model: how far it is looked for at each character of a text."""


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
            if not begin % _STRIDE:
                breathe()
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
    """Make the sum at a position zero, and those after it smaller by as much, which keeps them precise."""
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
        self._symbols = re.compile(f"{longest_of(chosen)}|." if chosen else ".", re.DOTALL)

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
            if not index % _STRIDE:
                breathe()
            self._propose(index - 1, index)
        num_popped = 0
        while self._pairs:
            num_popped += 1
            if not num_popped % _STRIDE:
                breathe()
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


def needs_encoder(model: SentencePieces) -> bool:
    """Return whether a list of merges and the replacement of spaces would not do."""
    rules = model.rules
    if model.is_unigram or rules.replaced or rules.drops_spaces or (rules.kept and rules.has_space_before):
        return True
    normal = model.texts(NORMAL)
    texts = [text for text in normal if len(text) > 1]
    scores = Counter(model.scores[normal[text]] for text in texts)
    has_unknown_parts = not normal.keys() >= set().union(*texts)  # a merge is of two tokens
    return has_unknown_parts or len(scores) < len(texts) or any(len(text) > 1 for text in model.texts(UNUSED))


class SentencePieceEncoder:
    """Encodes texts without special tokens in them. Immutable, safe from every thread."""

    def __init__(self, model: SentencePieces, where: str) -> None:
        """`where` names the file in messages. Raises CheckpointError."""
        unknown = next(iter(model.texts(UNKNOWN).values()), None)
        if unknown is None:
            raise CheckpointError(f"{where} has no token for what is unknown: download it again.")
        self._unknown = unknown
        self._normalizer = Normalizer(model.rules)
        self._segmenter = _segmenter(model, where)
        self._bytes = _byte_tokens(model) if model.has_byte_tokens else {}

    def encode(self, text: str) -> list[int]:
        """Return the tokens of a text."""
        return list(self._tokens(self._segmenter.cuts(self._normalizer.normalized(text))))

    def _tokens(self, cuts: Iterable[Cut]) -> Iterable[int]:
        is_behind_unknown = False
        for token, text in cuts:
            is_unknown = token < 0 or token == self._unknown
            if is_unknown and self._bytes:
                yield from (self._bytes[byte] for byte in text.encode())
            elif not is_unknown:
                yield token
            elif not is_behind_unknown:  # a row of unknown characters is one token
                yield self._unknown
            is_behind_unknown = is_unknown


class Merging:
    """Encodes texts without special tokens in them, as llama.cpp does: tokens of any kind are merged, and what has none
    becomes bytes. Immutable, safe from every thread."""

    def __init__(self, scores: Mapping[str, tuple[int, float]], unknown: int, *, has_space_before: bool) -> None:
        """`scores`: all tokens by their text, with their scores. `unknown` stands for a byte that has no token."""
        self._pairs = BytePairs(scores, {}, {})
        self._normalizer = Normalizer(Rules(has_space_before=has_space_before))
        nothing = unknown, 0.0
        self._bytes = [scores.get(f"<0x{byte:02X}>", nothing)[0] for byte in range(256)]

    def encode(self, text: str) -> list[int]:
        """Return the tokens of a text."""
        found: list[int] = []
        for token, part in self._pairs.cuts(self._normalizer.normalized(text)):
            found += [token] if token >= 0 else [self._bytes[byte] for byte in part.encode()]
        return found


def around(literals: Mapping[str, int], encode: EncodeText, strips: Collection[str] = ()) -> EncodeText:
    """Return what encodes a text with literals in it, which are tokens; `encode` does what is between them. Those in
    `strips` absorb the white space after them."""
    if not literals:
        return encode
    pattern = re.compile(f"({longest_of(literals)})")

    def encode_all(text: str) -> list[int]:
        found: list[int] = []
        before = ""
        for index, part in enumerate(pattern.split(text)):
            breathe()
            if index % 2:
                found.append(literals[part])
            else:
                found += encode(part.lstrip() if before in strips else part)
            before = part
        return found

    return encode_all


def _segmenter(model: SentencePieces, where: str) -> Segmenter:
    normal = {text: (token, model.scores[token]) for text, token in model.texts(NORMAL).items()}
    chosen = model.texts(USER_DEFINED)
    if not model.is_unigram:
        return BytePairs(normal, chosen, {text: model.scores[token] for text, token in model.texts(UNUSED).items()})
    require_few_characters(model.tokens, where)
    if max(map(len, model.tokens)) > MAX_TOKEN_CHARACTERS:
        raise CheckpointError(f"{where} has longer tokens than any model needs: download it again.")
    return Unigram(normal, chosen)


def _byte_tokens(model: SentencePieces) -> dict[int, int]:
    """Return the token of each byte; {} where some are missing."""
    found = model.texts(BYTE)
    names = [f"<0x{byte:02X}>" for byte in range(256)]
    return {byte: found[name] for byte, name in enumerate(names)} if all(name in found for name in names) else {}
