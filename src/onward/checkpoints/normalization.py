"""How SentencePiece rewrites a text before it cuts it into tokens (sentencepiece's normalizer.cc)."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass

from onward.checkpoints.character_map import CharacterMap

SPACE = "▁"
"""What stands for a space in the text of a token."""


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
        parts = [re.escape(text) for text in sorted(self._kept, key=len, reverse=True) if text]
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
