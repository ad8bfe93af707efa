"""Tokens that grammars name: by id, `<[12]>`, or by their text, `<think>`."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Protocol

from onward.constraints.errors import GrammarError
from onward.constraints.lark import is_gbnf

_IDS = re.compile(r"<\[(\^?)(\*|[\d\s,-]+)\]>")
_RANGE = re.compile(r"\s*(\d{1,10})\s*(?:-\s*(\d{1,10})\s*)?")
_ONE = re.compile(r"<\[\d+\]>")

MAX_REFERENCES = 2_000
"""Maximum number of different ones in a grammar."""
_LIKE_ONE = re.compile(r"!?<[^<>\n]+>")

ReferenceTable = dict[str, tuple[str, str]]
"""By reference: the Lark that is written for it, or why it cannot be used."""

Range = tuple[int, int]
"""Ids from the first to the last."""


class Names(Protocol):
    """What is needed of a tokenizer (`engine.model.Tokenizer`)."""

    @property
    def size(self) -> int: ...

    def token_id(self, literal: str) -> int | None: ...

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]: ...


class References:
    """Writes references as ranges of ids, which mean the same wherever the grammar is compiled.

    "Any other token" and "any token" leave out end tokens, as in llama.cpp, and what has no token after the
    vocabulary.
    """

    def __init__(self, names: Names, vocab_size: int, end_tokens: frozenset[int]) -> None:
        self._names = names
        self._num_tokens = min(vocab_size, names.size)
        self._end_tokens = end_tokens

    def table(self, grammar: str) -> ReferenceTable:
        """Return what is to be written for everything in a grammar that looks like a reference. Raises GrammarError if
        that is too much."""
        found = dict.fromkeys(_LIKE_ONE.findall(grammar))
        if len(found) > MAX_REFERENCES:
            raise GrammarError(f"it names more than {MAX_REFERENCES} tokens; use ranges of ids such as <[5-7]>")
        write = self._of_gbnf if is_gbnf(grammar) else self._of_lark
        table: ReferenceTable = {}
        for reference in found:
            try:
                table[reference] = write(reference), ""
            except GrammarError as error:
                table[reference] = "", str(error)
        return table

    def _of_gbnf(self, reference: str) -> str:
        """Return Lark for `<[id]>` or `<text>`, or, with an exclamation mark, for any other token."""
        name = reference.removeprefix("!")
        if name.startswith("<[") and not _ONE.fullmatch(name):
            raise GrammarError(f"{name} is not a token; in GBNF one is written as <[id]> or <text>")
        return self._written(self._ranges(name), negated=reference.startswith("!"))

    def _of_lark(self, reference: str) -> str:
        """Return a reference of llguidance's Lark: `<[1,5-7]>`, `<[^1]>`, `<[*]>` or `<text>`."""
        return self._written(self._ranges(reference.removeprefix("!")), negated="<[^" in reference)

    def _ranges(self, reference: str) -> list[Range]:
        found = _IDS.fullmatch(reference)
        if found is None:
            return [(token, token) for token in (self._named(reference),)]
        if found[2] == "*":
            return self._all_but([(token, token) for token in self._end_tokens])
        return [self._range(each, reference) for each in found[2].split(",") if each.strip()]

    def _range(self, text: str, reference: str) -> Range:
        found = _RANGE.fullmatch(text)
        if found is None:
            raise GrammarError(f"{reference}: '{text.strip()}' is neither an id nor a range of ids such as 5-7")
        first, last = int(found[1]), int(found[2] or found[1])
        if first > last:
            raise GrammarError(f"{reference}: the range {first}-{last} ends before it begins")
        if last >= self._num_tokens:
            raise GrammarError(f"{reference}: the ids of this model's tokens end at {self._num_tokens - 1}")
        return first, last

    def _named(self, reference: str) -> int:
        token = self._names.token_id(reference)
        if token is None:
            tokens = self._names.encode(reference, add_special_tokens=False)
            token = tokens[0] if len(tokens) == 1 else None
        if token is None or token >= self._num_tokens:
            raise GrammarError(f"{reference} is not one token of this model; write a token's id as <[id]>")
        return token

    def _written(self, ranges: list[Range], *, negated: bool) -> str:
        if negated:
            ranges = self._all_but([*ranges, *((token, token) for token in self._end_tokens)])
        if not ranges:
            raise GrammarError("a reference leaves no token to generate")
        return f"<[{','.join(f'{first}-{last}' for first, last in ranges)}]>"

    def _all_but(self, excluded: list[Range]) -> list[Range]:
        found: list[Range] = []
        start = 0
        for first, last in [*sorted(excluded), (self._num_tokens, self._num_tokens)]:
            if start < min(first, self._num_tokens):
                found.append((start, min(first, self._num_tokens) - 1))
            start = max(start, last + 1)
        return found


def writer(table: ReferenceTable) -> Callable[[str], str]:
    """Return what looks a reference up, and raises GrammarError for one that cannot be used."""

    def write(reference: str) -> str:
        written, problem = table.get(reference) or table.get(f"!{reference}") or ("", f"{reference} is not a token")
        if problem:
            raise GrammarError(problem)
        return written

    return write
