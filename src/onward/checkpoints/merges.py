"""SentencePiece's scores as a list of merges."""

from __future__ import annotations

from typing import Any

from onward.checkpoints.token_kinds import NORMAL, UNUSED, USER_DEFINED

_USABLE = frozenset({NORMAL, USER_DEFINED, UNUSED})
MAX_SPLIT_CHARACTERS = 512
"""Longer tokens are not split into pairs: no known vocabulary has one, and the work grows with the square."""


def merges_of_scores(tokens: list[Any], kinds: list[Any], scores: list[Any]) -> list[list[str]]:
    """Return all pairs of tokens that make a third one, those of higher scores first.

    SentencePiece merges, of all neighbours whose union is a token, the pair whose union has the highest score. BPE
    merges the pair that comes first in its list: the same, if the list is sorted by the union's score. Pairs of one
    union are sorted by their ids.
    """
    usable = {text: token for token, (text, kind) in enumerate(zip(tokens, kinds, strict=True)) if kind in _USABLE}
    found: list[tuple[float, int, int, str, str]] = []
    for text, token in usable.items():
        if not 1 < len(text) <= MAX_SPLIT_CHARACTERS or kinds[token] == USER_DEFINED:
            continue
        for cut in range(1, len(text)):
            left, right = text[:cut], text[cut:]
            if left in usable and right in usable:
                found.append((-scores[token], usable[left], usable[right], left, right))
    found.sort(key=lambda pair: pair[:3])
    return [[left, right] for *_, left, right in found]
