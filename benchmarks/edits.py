"""Texts that are copied with changes: a Python file and prose, and edits of them.

`data/before.py.txt` is an old version of a file of this repository (src/onward/text/stops.py), `data/prose.txt` the
beginning of Oscar Wilde's "The Happy Prince" (1888, public domain).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

DATA = Path(__file__).parent / "data"
CODE = (DATA / "before.py.txt").read_text(encoding="utf-8")
PROSE = (DATA / "prose.txt").read_text(encoding="utf-8")

_TOKEN = re.compile(r"\n\s*| ?[A-Za-z]{1,10}| ?\d{1,3}| ?[^\sA-Za-z\d]{1,2}|\s")
"""Roughly how tokenizers of current models split code and prose: a word with the space before it, a line break with the
indentation after it, punctuation in ones and twos."""


@dataclass(frozen=True, slots=True)
class Edit:
    """A text before and after a change of one kind."""

    name: str
    instruction: str
    before: str
    after: str


class WordTokenizer:
    """Assigns token ids to words in order of appearance, for one benchmark run."""

    def __init__(self, first: int, end: int) -> None:
        """Ids are in first … end - 1."""
        self._first, self._end = first, end
        self._ids: dict[str, int] = {}

    def encode(self, text: str) -> tuple[int, ...]:
        """Return the ids of a text. Raises ValueError when the ids run out."""
        found = tuple(self._ids.setdefault(word, self._first + len(self._ids)) for word in _TOKEN.findall(text))
        if self._first + len(self._ids) > self._end:
            raise ValueError("more distinct words than token ids")
        return found


def _replaced(text: str, *changes: tuple[str, str]) -> str:
    """Return `text` with every first string of `changes` replaced by the second. Raises ValueError if one is absent."""
    for old, new in changes:
        if old not in text:
            raise ValueError(f"the text to edit does not contain {old!r}")
        text = text.replace(old, new)
    return text


_NEW_METHOD = '''
    def reset(self, stops: tuple[str, ...] | None = None) -> str:
        """Forget all text fed so far, and look for other strings from now on. Returns what was still held."""
        held, self._held = self._held, ""
        self._released = 0
        if stops is not None:
            self._stops = stops
            self._longest = max((len(stop) for stop in stops), default=0)
        return held
'''
_BEFORE_METHOD = "\n    def skip(self, text: str) -> str:"


def code_edits() -> list[Edit]:
    """Return edits of CODE, from the sparsest to the densest."""
    documented = _replaced(CODE, ("the one that starts first.", "the longest of them."))
    inserted = _replaced(CODE, (_BEFORE_METHOD, _NEW_METHOD + _BEFORE_METHOD))
    without = _replaced(
        CODE,
        ("        base = self._released\n", ""),
        ("Match(base + found.start, base + found.end)", "found"),
        ("        self._released += len(text)\n            return text, None", "        return text, None"),
        ("            self._released += len(shown)\n", ""),
        ("        self._released += len(shown)\n", ""),
        ("        self._released = 0\n", ""),
    )
    renamed = _replaced(CODE, ("window", "buffer"))
    reworked = _replaced(
        inserted,
        ("stops", "needles"),
        ("stop.", "needle."),
        ("stop)", "needle)"),
        ("for stop in", "for needle in"),
        ("_held", "_kept"),
        ("found", "match"),
        ("StopFinder", "Finder"),
        ("-> tuple[str, Match | None]", "-> Found"),
    )
    return [
        Edit("a docstring changed", "Say that of several matches the longest wins.", CODE, documented),
        Edit("a method put in", "Add a method that forgets all text.", CODE, inserted),
        Edit("a field removed", "Remove the count of released characters.", CODE, without),
        Edit("a variable renamed", "Rename the variable window to buffer.", CODE, renamed),
        Edit("reworked", "Rename needles and matches, and add a reset method.", CODE, reworked),
    ]


def prose_edit() -> Edit:
    """Return PROSE with another hero and a copy editor's changes."""
    after = _replaced(
        PROSE,
        ("Happy Prince", "Golden Prince"),
        ("Swallow", "Sparrow"),
        ("said", "answered"),
        (" very ", " "),
        ("; ", ". "),
    )
    return Edit("prose corrected", "Correct this story.", PROSE, after)
