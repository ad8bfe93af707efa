"""The rules by which SentencePiece replaces characters (`precompiled_charsmap`): a trie of the texts that are replaced,
as darts-clone's double array, and the texts that replace them.

NFKC has 225,000 rules, so they are looked up where they are. Nothing is believed: what lies beyond the array is no
rule.
"""

from __future__ import annotations

import re
import struct
import sys
from array import array

MAX_KEY_CHARACTERS = 16
"""Of a text that is replaced. The longest one of NFKC has four."""
MAX_TEXT_BYTES = 256
"""Of a text that replaces another. The longest one of NFKC has 33."""
_LABEL, _HAS_VALUE, _VALUE = 0x8000_00FF, 1 << 8, 0x7FFF_FFFF
_ASCII = 128


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


def _offset(unit: int) -> int:
    """Return how far the children of a node are, to be combined with a byte by exclusive or."""
    return (unit >> 10) << ((unit & (1 << 9)) >> 6)
