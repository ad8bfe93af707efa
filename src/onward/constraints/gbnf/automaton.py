"""Automata of regular nodes, over classes of characters: what may begin, follow and end a match (Glushkov's)."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from onward.constraints.gbnf.nodes import (
    Alt,
    Chars,
    GrammarNode,
    GrammarRules,
    Ref,
    Repeat,
    Seq,
    Text,
    children,
    literal,
)

CharMask = int
"""A set of classes of characters, or of places of an automaton: one bit for each."""


class TooComplex(Exception):
    """Looking at a grammar took more steps than are allowed."""


class Budget:
    """Counts steps, so that no grammar takes long. Raises TooComplex when they are used up."""

    def __init__(self, steps: int) -> None:
        self._left = steps

    def spend(self, steps: int = 1) -> None:
        self._left -= steps
        if self._left < 0:
            raise TooComplex


class Classes:
    """Classes of characters that no set of a grammar distinguishes."""

    def __init__(self, rules: GrammarRules) -> None:
        starts = {0}
        pending = list(rules.values())
        while pending:
            node = pending.pop()
            if isinstance(node, Chars):
                starts.update(bound for low, high in node.ranges for bound in (low, high + 1))
            elif isinstance(node, Text):
                starts.update(bound for code in map(ord, node.text) for bound in (code, code + 1))
            pending.extend(children(node))
        self._starts = sorted(starts)

    def of(self, chars: Chars) -> CharMask:
        """Return the classes that a set consists of."""
        mask = 0
        for low, high in chars.ranges:
            mask |= (1 << bisect_left(self._starts, high + 1)) - (1 << bisect_left(self._starts, low))
        return mask


@dataclass(slots=True)
class Automaton:
    """`chars` has the classes of each place, a character that is written somewhere in the node; `follow` the places
    that may come after it. `first` and `last` are the places that may begin and end a match. `parts` has the first
    place of each part of a sequence or a text."""

    chars: list[CharMask]
    follow: list[CharMask]
    first: CharMask
    last: CharMask
    is_nullable: bool
    parts: list[int]
    _places: dict[int, CharMask] = field(default_factory=dict)

    @property
    def beginning(self) -> CharMask:
        """The classes of the first character of a match."""
        return self.chars_of(self.first)

    def chars_of(self, places: CharMask) -> CharMask:
        """Return the classes of some places."""
        mask = 0
        for place in bits(places):
            mask |= self.chars[place]
        return mask

    def places_of(self, character: int, budget: Budget) -> CharMask:
        """The places of a class of characters. Raises TooComplex."""
        found = self._places.get(character)
        if found is None:
            budget.spend(len(self.chars) // 32)
            found = int("0" + "".join("01"[mask >> character & 1] for mask in reversed(self.chars)), 2)
            self._places[character] = found
        return found

    def following(self, places: CharMask) -> CharMask:
        """The places that may follow these places."""
        return _union(self.follow[place] for place in bits(places))

    def step(self, places: CharMask, after: CharMask) -> tuple[int, int]:
        """One of some places, and one after it that has a class of `after`."""
        return next(
            (place, its) for place in bits(places) for its in bits(self.follow[place]) if self.chars[its] & after
        )

    def cuts(self, place: int, following: int) -> set[int]:
        """Return where to cut a sequence, so that no part continues from one place to the following one: numbers of
        parts, each meaning a cut before it. Where both places are in one part, it is cut off at both ends."""
        part, its = bisect_right(self.parts, place) - 1, bisect_right(self.parts, following) - 1
        return {part, part + 1} if part == its else {its}


Part = tuple[CharMask, CharMask, bool]
"""First and last places of a part, and whether it may be empty."""


class AutomatonBuilder:
    """Builds automata of nodes without recursion. Counted repetitions count as uncounted ones, so what an automaton
    matches may be more than what its node does, never less."""

    def __init__(self, rules: GrammarRules, classes: Classes, budget: Budget) -> None:
        self._rules = rules
        self._classes = classes
        self._budget = budget
        self._chars: list[CharMask] = []
        self._follow: list[CharMask] = []

    def build(self, node: GrammarNode) -> Automaton:
        """Return the automaton of a node. Raises TooComplex."""
        self._chars, self._follow = [], []
        parts: list[int] = []
        if isinstance(node, Seq):
            first, last, is_nullable = self._add_all(node.parts, parts)
        else:
            first, last, is_nullable = self._add(node)
            parts = list(range(len(self._chars)))
        return Automaton(self._chars, self._follow, first, last, is_nullable, parts)

    def _add(self, node: GrammarNode) -> Part:
        self._budget.spend()
        match node:
            case Chars():
                place = 1 << len(self._chars)
                self._chars.append(self._classes.of(node))
                self._follow.append(0)
                return place, place, False
            case Ref(name):
                return self._add(self._rules[name])
            case Alt(options):
                found = [self._add(option) for option in options]
                return _union(part[0] for part in found), _union(part[1] for part in found), any(p[2] for p in found)
            case Repeat(inner, least, most):
                first, last, is_nullable = self._add(inner)
                if most != 1:
                    self._link(last, first)
                return first, last, is_nullable or least == 0
            case Text(text):
                return self._add_all(map(literal, text), [])
            case Seq(parts):
                return self._add_all(parts, [])
        raise AssertionError(f"{node} is not regular")

    def _add_all(self, parts: Iterable[GrammarNode], starts: list[int]) -> Part:
        """Add parts, one after the other, and the first place of each to `starts`."""
        first, last, is_nullable = 0, 0, True
        for part in parts:
            starts.append(len(self._chars))
            its_first, its_last, its_nullable = self._add(part)
            self._link(last, its_first)
            first |= its_first if is_nullable else 0
            last = its_last | (last if its_nullable else 0)
            is_nullable = is_nullable and its_nullable
        return first, last, is_nullable

    def _link(self, last: CharMask, first: CharMask) -> None:
        for place in bits(last):
            self._budget.spend()
            self._follow[place] |= first


def continuation(shorter: Automaton, longer: Automaton, after: CharMask, budget: Budget) -> tuple[int, int] | None:
    """Return where a match of `longer` continues after one of `shorter` with a character of the classes `after`: at
    which of its places, and to which. None if it never does. Raises TooComplex."""
    pending = [(shorter.first, longer.first)]
    seen = set(pending)
    while pending:
        ones, others = pending.pop()
        for character in bits(shorter.chars_of(ones) & longer.chars_of(others)):
            read, its = ones & shorter.places_of(character, budget), others & longer.places_of(character, budget)
            budget.spend(1 + read.bit_count() + its.bit_count())
            following = longer.following(its)
            if read & shorter.last and longer.chars_of(following) & after:
                return longer.step(its, after)
            state = (shorter.following(read), following)
            if state not in seen:
                seen.add(state)
                pending.append(state)
    return None


def bits(mask: CharMask) -> Iterator[int]:
    """Yield the positions of the bits that are set."""
    while mask:
        low = mask & -mask
        yield low.bit_length() - 1
        mask ^= low


def _union(masks: Iterable[CharMask]) -> CharMask:
    found = 0
    for mask in masks:
        found |= mask
    return found
