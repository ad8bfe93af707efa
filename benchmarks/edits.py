"""Texts that are copied with changes: a Python file and prose, and what an editor does to them.

`data/before.py.txt` is a file of this repository (src/onward/text/stops.py as it once was), `data/prose.txt` the
beginning of Oscar Wilde's "The Happy Prince" (1888, public domain).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

DATA = Path(__file__).parent / "data"
CODE = (DATA / "before.py.txt").read_text(encoding="utf-8")
PROSE = (DATA / "prose.txt").read_text(encoding="utf-8")

_PIECE = re.compile(r"\n\s*| ?[A-Za-z]{1,10}| ?\d{1,3}| ?[^\sA-Za-z\d]{1,2}|\s")
"""About how tokenizers of today's models cut code and prose: a word with the space before it, a line break with the
indentation behind it, punctuation by ones and twos."""


@dataclass(frozen=True, slots=True)
class Edit:
    """A text before and after a change of one kind."""

    name: str
    instruction: str
    before: str
    after: str


class Words:
    """Numbers for pieces of text, in order of appearance: the token ids of one benchmark run."""

    def __init__(self, first: int, end: int) -> None:
        """Ids are first … end - 1."""
        self._first, self._end = first, end
        self._ids: dict[str, int] = {}

    def ids(self, text: str) -> tuple[int, ...]:
        """ValueError when the ids run out."""
        found = tuple(self._ids.setdefault(piece, self._first + len(self._ids)) for piece in _PIECE.findall(text))
        if self._first + len(self._ids) > self._end:
            raise ValueError("more distinct pieces of text than token ids")
        return found


def _replaced(text: str, *changes: tuple[str, str]) -> str:
    """`text` with every occurrence of each first string replaced by the second. ValueError when there is none."""
    for old, new in changes:
        if old not in text:
            raise ValueError(f"nothing to edit: {old!r}")
        text = text.replace(old, new)
    return text


_NEW_METHOD = '''
    def reset(self, stops: tuple[str, ...] | None = None) -> str:
        """Forget all text fed so far, and look for other strings from now on; gives what was still held."""
        held, self._held = self._held, ""
        self._released = 0
        if stops is not None:
            self._stops = stops
            self._longest = max((len(stop) for stop in stops), default=0)
        return held
'''
_BEFORE_METHOD = "\n    def skip(self, text: str) -> str:"


def code_edits() -> list[Edit]:
    """Edits of CODE, from the sparsest to the densest."""
    told = _replaced(CODE, ("the one that starts first.", "the longest of them."))
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
        Edit("a docstring changed", "Say that of several matches the longest wins.", CODE, told),
        Edit("a method put in", "Add a method that forgets all text.", CODE, inserted),
        Edit("a field removed", "Remove the count of released characters.", CODE, without),
        Edit("a variable renamed", "Rename the variable window to buffer.", CODE, renamed),
        Edit("reworked", "Rename needles and matches, and add a reset method.", CODE, reworked),
    ]


def prose_edit() -> Edit:
    """PROSE with another hero, and a copy-editor's changes."""
    after = _replaced(
        PROSE,
        ("Happy Prince", "Golden Prince"),
        ("Swallow", "Sparrow"),
        ("said", "answered"),
        (" very ", " "),
        ("; ", ". "),
    )
    return Edit("prose corrected", "Correct this story.", PROSE, after)
