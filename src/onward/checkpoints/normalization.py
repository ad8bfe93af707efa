"""How SentencePiece rewrites a text before it cuts it into tokens (sentencepiece's normalizer.cc).

The rules by which it replaces characters (`precompiled_charsmap`) are a trie of the texts that are replaced, as
darts-clone's double array, and the texts that replace them. NFKC has 225,000 rules, so they are looked up where they
are. Nothing is trusted: what lies beyond the array is not a rule.
"""

from __future__ import annotations

import re
import struct
import sys
from array import array
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from itertools import groupby

from onward.offload import breathe

MAX_KEY_CHARACTERS = 16
"""Of a text that is replaced. The longest one of NFKC has four."""
MAX_TEXT_BYTES = 256
"""Of a text that replaces another. The longest one of NFKC has 33."""
_LABEL, _HAS_VALUE, _VALUE = 0x8000_00FF, 1 << 8, 0x7FFF_FFFF
_ASCII = 128
_MAX_DEPTH = 64
"""Of groups in a regular expression, whose compiler is recursive. The deepest are of runs: Gemma's have 31."""

SPACE = "▁"
"""What stands for a space in the text of a token."""


class CharacterMap:
    """The rules. Immutable."""

    def __init__(self, content: bytes) -> None:
        """Raises ValueError for a broken map."""
        size = struct.unpack_from("<I", content)[0] if len(content) > 4 else 0
        self._texts = content[4 + size :]
        if size % 4 or size == 0 or not self._texts:
            raise ValueError("rules of normalisation that are cut off")
        self._units = array("I", content[4 : 4 + size])
        if sys.byteorder == "big":
            self._units.byteswap()

    def pattern(self) -> str:
        """Return a regular expression of what a replaced text may begin with; "" if nothing is replaced."""
        root = self._units[0]
        always, before_others = "", ""
        for byte in range(_ASCII):
            if (place := self._child(_offset(root), byte)) is None:
                continue
            unit = self._units[place]
            base = place ^ _offset(unit)
            is_whole = unit & _HAS_VALUE or any(self._child(base, other) is not None for other in range(1, _ASCII))
            always, before_others = (
                (always + chr(byte), before_others) if is_whole else (always, before_others + chr(byte))
            )
        parts = [f"[{re.escape(always)}\x80-\U0010ffff]"]
        return "|".join(parts + ([f"[{re.escape(before_others)}](?=[^\0-\x7f])"] if before_others else []))

    def longest(self, text: str, begin: int) -> tuple[int, str] | None:
        """Return how many characters the longest rule for what begins at a position replaces, and by what."""
        encoded = text[begin : begin + MAX_KEY_CHARACTERS].encode("utf-8", "replace")
        units = self._units
        base = _offset(units[0])
        length, value = 0, -1
        for index, byte in enumerate(encoded):
            place = self._child(base, byte)
            if place is None:
                break
            unit = units[place]
            base = place ^ _offset(unit)
            if (
                unit & _HAS_VALUE
                and base < len(units)
                and (index + 1 == len(encoded) or encoded[index + 1] & 0xC0 != 0x80)
            ):
                length, value = index + 1, units[base] & _VALUE
        return (len(encoded[:length].decode()), self._text(value)) if length else None

    def _child(self, base: int, byte: int) -> int | None:
        """Return where the child of a node for a byte is, None if there is none."""
        place = base ^ byte
        return place if place < len(self._units) and self._units[place] & _LABEL == byte else None

    def _text(self, begin: int) -> str:
        return self._texts[begin : begin + MAX_TEXT_BYTES].partition(b"\0")[0].decode("utf-8", "replace")


def longest_of(texts: Iterable[str]) -> str:
    """Return a regular expression that matches the longest of some texts, none of which is empty, at a place.

    It is a trie: in a list of thousands, as Gemma 3 has them, each would be tried at every place of what a stranger
    sends, and the interpreter's lock is held meanwhile.
    """
    return _longest_of(sorted(set(texts)), 0)


def _longest_of(texts: list[str], depth: int) -> str:
    """`texts` are sorted, and each is there once."""
    if depth == _MAX_DEPTH:
        return "|".join(re.escape(text) for text in sorted(texts, key=len, reverse=True))
    pairs = enumerate(zip(texts[0], texts[-1], strict=False))
    common = texts[0][: next((place for place, (one, other) in pairs if one != other), None)]
    rests = [text[len(common) :] for text in texts if text != common]
    if not rests:
        return re.escape(common)
    branches = [_longest_of(list(group), depth + 1) for _, group in groupby(rests, key=lambda rest: rest[0])]
    return f"{re.escape(common)}(?:{'|'.join(branches)}){'?' if len(rests) < len(texts) else ''}"


def _offset(unit: int) -> int:
    """Return how far the children of a node are, to be combined with a byte by exclusive or."""
    return (unit >> 10) << ((unit & (1 << 9)) >> 6)


@dataclass(frozen=True, slots=True)
class Rules:
    """What a model states about it."""

    replaced: CharacterMap | None = None
    """Texts and what replaces them: at each character, the longest one that begins there."""
    drops_spaces: bool = False
    """Whether spaces at both ends are dropped, and all but the first one between words."""
    has_space_before: bool = True
    """Whether a space is put before the text."""
    kept: Collection[str] = ()
    """Texts that no rule applies to: tokens that the makers of the model chose."""


class Normalizer:
    """Rewrites texts by rules. Immutable."""

    def __init__(self, rules: Rules) -> None:
        self._rules = rules
        self._kept = frozenset(rules.kept)
        kept = self._kept - {""}
        parts = [longest_of(kept)] if kept else []
        parts += [rules.replaced.pattern()] if rules.replaced else []
        parts += [" "] if rules.drops_spaces else []
        self._notable = re.compile("|".join(parts)) if parts else None

    def normalized(self, text: str) -> str:
        """Return the text as tokens have it, with ▁ for spaces."""
        if not text:
            return ""
        rules, found = self._rules, [" "] if self._rules.has_space_before else []
        is_behind_space = rules.drops_spaces
        for part in self._parts(text):
            breathe()
            kept = part.lstrip(" ") if is_behind_space else part
            if kept:
                found.append(kept)
                is_behind_space = rules.drops_spaces and kept.endswith(" ")
        whole = "".join(found).replace(" ", SPACE)
        return whole.rstrip(SPACE) if rules.drops_spaces else whole

    def _parts(self, text: str) -> Iterator[str]:
        """Yield the text in parts, after replacement: what a rule replaces, and what lies between, is one each."""
        position = 0
        while self._notable is not None and (match := self._notable.search(text, position)) is not None:
            if match.start() > position:
                yield text[position : match.start()]
            length, part = self._replacement(text, match)
            yield part
            position = match.start() + length
        if position < len(text):
            yield text[position:]

    def _replacement(self, text: str, match: re.Match[str]) -> tuple[int, str]:
        """Return how many characters are replaced where a match begins, and by what."""
        if match[0] in self._kept:
            return len(match[0]), match[0]
        found = self._rules.replaced.longest(text, match.start()) if self._rules.replaced else None
        return found or (1, text[match.start()])
