"""What the right side of a GBNF rule consists of."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import TypeAlias

LAST_CODE_POINT = 0x10FFFF
SURROGATES = (0xD800, 0xDFFF)

Ranges = tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class Chars:
    """One character of a set: sorted inclusive ranges of code points, apart from each other. Empty: no text at all."""

    ranges: Ranges


@dataclass(frozen=True)
class Text:
    """Two characters or more, as they are."""

    text: str


@dataclass(frozen=True)
class Seq:
    """All parts, one after the other. Without parts: the empty text."""

    parts: tuple[GrammarNode, ...]

    @cached_property
    def _hash(self) -> int:
        return hash(self.parts)

    def __hash__(self) -> int:
        return self._hash


@dataclass(frozen=True)
class Alt:
    """One of the options."""

    options: tuple[GrammarNode, ...]

    @cached_property
    def _hash(self) -> int:
        return hash((Alt, self.options))

    def __hash__(self) -> int:
        return self._hash


@dataclass(frozen=True)
class Repeat:
    """`least` to `most` times; `most` None: any number."""

    node: GrammarNode
    least: int
    most: int | None


@dataclass(frozen=True)
class Ref:
    """What a rule describes."""

    name: str


@dataclass(frozen=True)
class Token:
    """One token of the vocabulary, as it is written: `<[12]>` or `<text>`; `negated`: any other token."""

    reference: str
    negated: bool


GrammarNode: TypeAlias = Chars | Text | Seq | Alt | Repeat | Ref | Token

GrammarRules = dict[str, GrammarNode]
"""The rules by name."""

EMPTY = Seq(())
NOTHING = Chars(())


def chars(ranges: Iterable[tuple[int, int]], *, negated: bool = False) -> Chars:
    """Return a set of characters. Code points that no text has, surrogates and those beyond Unicode, are left out."""
    merged: list[tuple[int, int]] = []
    for low, high in sorted(pair for pair in ranges if pair[0] <= pair[1]):
        if merged and low <= merged[-1][1] + 1:
            merged[-1] = (merged[-1][0], max(merged[-1][1], high))
        else:
            merged.append((low, high))
    if negated:
        starts = [0, *(high + 1 for _, high in merged)]
        ends = [*(low - 1 for low, _ in merged), LAST_CODE_POINT]
        merged = [(low, high) for low, high in zip(starts, ends, strict=True) if low <= high]
    return Chars(tuple(_of_texts(merged)))


def _of_texts(ranges: Iterable[tuple[int, int]]) -> Iterable[tuple[int, int]]:
    first, last = SURROGATES
    for low, high in ranges:
        for below, above in ((low, min(high, first - 1)), (max(low, last + 1), min(high, LAST_CODE_POINT))):
            if below <= above:
                yield below, above


ANY = chars([], negated=True)


def literal(text: str) -> GrammarNode:
    """Return the node of a text."""
    if len(text) == 1:
        return Chars(((ord(text), ord(text)),))
    return Text(text) if text else EMPTY


def seq(parts: Iterable[GrammarNode]) -> GrammarNode:
    """Return a sequence, without sequences inside."""
    flat: list[GrammarNode] = []
    for part in parts:
        flat.extend(part.parts if isinstance(part, Seq) else (part,))
    if NOTHING in flat:
        return NOTHING
    return flat[0] if len(flat) == 1 else Seq(tuple(flat))


def alt(options: Iterable[GrammarNode]) -> GrammarNode:
    """Return a choice, without repeated options, options that match nothing, and choices inside."""
    flat: dict[GrammarNode, None] = {}
    for option in options:
        flat.update(dict.fromkeys(option.options if isinstance(option, Alt) else (option,)))
    flat.pop(NOTHING, None)
    if not flat:
        return NOTHING
    return next(iter(flat)) if len(flat) == 1 else Alt(tuple(flat))


def repeat(node: GrammarNode, least: int, most: int | None) -> GrammarNode:
    """Return a repetition; one of `*`, `+` and `?` of another one is one."""
    if most == 0 or node == EMPTY:
        return EMPTY
    if node == NOTHING:
        return EMPTY if least == 0 else NOTHING
    if isinstance(node, Repeat) and max(node.least, least) <= 1 and {node.most, most} <= {1, None}:
        return repeat(node.node, node.least * least, 1 if node.most == most == 1 else None)
    return node if (least, most) == (1, 1) else Repeat(node, least, most)


def children(node: GrammarNode) -> tuple[GrammarNode, ...]:
    """Return what a node consists of."""
    match node:
        case Seq(parts):
            return parts
        case Alt(options):
            return options
        case Repeat(inner):
            return (inner,)
        case _:
            return ()


def names_in(node: GrammarNode) -> set[str]:
    """Return the names of the rules that a node refers to itself."""
    found: set[str] = set()
    pending = [node]
    while pending:
        current = pending.pop()
        if isinstance(current, Ref):
            found.add(current.name)
        pending.extend(children(current))
    return found
