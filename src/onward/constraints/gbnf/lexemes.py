"""Which parts of a grammar the library's lexer may read as a whole.

The library has a lexer below its parser, as compilers do: it takes the longest match of whatever the parser could
accept, and never reconsiders. A part of a grammar is therefore a lexeme only where that makes no difference: no match
of it, or of another lexeme, continues with a character that may also follow a shorter match. Parts for which this does
not hold are divided into smaller ones, in the end into single characters, for which it always does. Large lexemes
matter, because a mask of single characters takes many times as long.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import groupby, pairwise
from typing import TypeAlias

from onward.constraints.gbnf.automaton import (
    Automaton,
    AutomatonBuilder,
    Budget,
    CharMask,
    Classes,
    TooComplex,
    continuation,
)
from onward.constraints.gbnf.nodes import (
    EMPTY,
    Alt,
    Chars,
    GrammarNode,
    GrammarRules,
    Ref,
    Repeat,
    Seq,
    Text,
    Token,
    alt,
    literal,
    names_in,
    seq,
)
from onward.constraints.gbnf.parse import ROOT
from onward.constraints.gbnf.simplify import holding

MAX_STEPS = 150_000
"""Steps of the search for large lexemes; beyond them, every character is a lexeme."""


@dataclass(frozen=True, slots=True)
class Lexeme:
    """A part that the lexer matches as a whole, without recursion."""

    node: GrammarNode


@dataclass(frozen=True, slots=True)
class Group:
    """Parts one after the other, or options."""

    parts: tuple[GrammarPart, ...]
    is_choice: bool


@dataclass(frozen=True, slots=True)
class Loop:
    """A part that is repeated, as `Repeat`."""

    part: GrammarPart
    least: int
    most: int | None


GrammarPart: TypeAlias = Lexeme | Group | Loop | Ref | Token
"""What a rule of the parser consists of."""

Grammar = dict[str, GrammarPart]
"""The parser's rules by name; those that only lexemes refer to are left out."""


def divide(rules: GrammarRules) -> Grammar:
    """Return a grammar with lexemes that are as large as possible."""
    regular = holding(rules, token=False, all_options=True)
    if ROOT in regular:
        return {ROOT: Lexeme(Ref(ROOT))}
    divider = _Divider(rules, frozenset(regular))
    try:
        budget = Budget(MAX_STEPS)
        automata = AutomatonBuilder(rules, Classes(rules), budget)
        while True:
            grammar = divider.grammar()
            wrong = _Contexts(grammar, automata, budget).ambiguous()
            if not wrong:
                return grammar
            for node, cuts in wrong.items():
                divider.divided.setdefault(node, set()).update(cuts)
    except TooComplex:
        divider.divides_all = True
        return divider.grammar()


class _Divider:
    """Makes grammars of rules. Nodes that are `divided` are not lexemes; sequences and texts are divided at cuts."""

    def __init__(self, rules: GrammarRules, regular: frozenset[str]) -> None:
        self._rules = rules
        self._regular = regular
        self.divided: dict[GrammarNode, set[int]] = {}
        self.divides_all = False

    def grammar(self) -> Grammar:
        found: Grammar = {}
        pending = [ROOT]
        while pending:
            name = pending.pop()
            if name not in found:
                found[name] = self._part(self._rules[name])
                pending.extend(sorted(names_of(found[name]), reverse=True))
        return found

    def _part(self, node: GrammarNode) -> GrammarPart:
        if self._is_lexeme(node):
            return Lexeme(node)
        match node:
            case Seq(()):
                return Group((), is_choice=False)
            case Text(text):
                return _group(self._cut([literal(each) for each in text], node, _text), is_choice=False)
            case Seq(parts):
                found = self._cut(parts, node, seq) if self._is_regular(node) else self._runs(parts)
                return _group(found, is_choice=False)
            case Alt(options):
                return _group(self._options(options, is_regular=self._is_regular(node)), is_choice=True)
            case Repeat(inner, least, most):
                return Loop(self._part(inner), least, most)
            case Chars():
                return Lexeme(node)
            case _:
                return node

    def _cut(
        self, parts: Sequence[GrammarNode], whole: GrammarNode, join: Callable[[Sequence[GrammarNode]], GrammarNode]
    ) -> list[GrammarPart]:
        """Return the parts of a sequence, joined to as few as its cuts allow."""
        cuts = range(1, len(parts)) if self.divides_all else sorted(self.divided.get(whole, ()))
        bounds = [0, *(cut for cut in cuts if 0 < cut < len(parts)), len(parts)]
        return [self._part(join(parts[start:end])) for start, end in pairwise(bounds)]

    def _runs(self, parts: Iterable[GrammarNode]) -> list[GrammarPart]:
        """Return the parts of a sequence, those that are regular joined where they follow each other."""
        found: list[GrammarPart] = []
        for is_regular, run in groupby(parts, self._is_regular):
            nodes = list(run)
            found += map(self._part, [seq(nodes)] if is_regular else nodes)
        return found

    def _options(self, options: Sequence[GrammarNode], *, is_regular: bool) -> list[GrammarPart]:
        """Return the options of a choice, those that are regular joined unless it `is_regular` as a whole."""
        if is_regular:
            return [self._part(option) for option in options]
        regular = [option for option in options if self._is_regular(option)]
        joined = [self._part(alt(regular))] if regular else []
        return joined + [self._part(option) for option in options if not self._is_regular(option)]

    def _is_regular(self, node: GrammarNode) -> bool:
        """Whether a node has neither recursion nor tokens."""
        return not has_token(node) and names_in(node) <= self._regular

    def _is_lexeme(self, node: GrammarNode) -> bool:
        if node == EMPTY or self.divides_all:
            return isinstance(node, Chars)
        return node not in self.divided and self._is_regular(node)


def _text(characters: Sequence[GrammarNode]) -> GrammarNode:
    return literal("".join(chr(each.ranges[0][0]) for each in characters if isinstance(each, Chars)))


def has_token(node: GrammarNode) -> bool:
    """Return whether a node itself names a token."""
    match node:
        case Token():
            return True
        case Seq(parts) | Alt(parts):
            return any(has_token(part) for part in parts)
        case Repeat(inner):
            return has_token(inner)
        case _:
            return False


def names_of(part: GrammarPart) -> set[str]:
    """Return the names of the parser's rules that a part refers to."""
    match part:
        case Ref(name):
            return {name}
        case Group(parts):
            return {name for each in parts for name in names_of(each)}
        case Loop(inner):
            return names_of(inner)
        case _:
            return set()


def _group(parts: list[GrammarPart], *, is_choice: bool) -> GrammarPart:
    return parts[0] if len(parts) == 1 else Group(tuple(parts), is_choice)


@dataclass
class _Contexts:
    """What may begin and follow each part of a grammar, as classes of characters."""

    grammar: Grammar
    automata: AutomatonBuilder
    budget: Budget
    _automaton: dict[GrammarNode, Automaton] = field(default_factory=dict)
    _beginning: dict[str, tuple[CharMask, bool]] = field(default_factory=dict)
    """Of a rule: its first characters, and whether it may be empty."""
    _after_rule: dict[str, CharMask] = field(default_factory=dict)
    _after: dict[GrammarNode, CharMask] = field(default_factory=dict)
    """What may follow each lexeme."""

    def ambiguous(self) -> dict[GrammarNode, set[int]]:
        """Return lexemes that may continue where a shorter one could have ended, and where to cut them. Raises
        TooComplex."""
        self._beginning = dict.fromkeys(self.grammar, (0, False))
        self._until_stable(self._begin)
        self._after_rule = dict.fromkeys(self.grammar, 0)
        self._until_stable(self._follow)
        found: dict[GrammarNode, set[int]] = {}
        for shorter, after in self._after.items():
            one = self._automaton[shorter]
            for longer, other in self._automaton.items():
                self.budget.spend()
                if isinstance(longer, Chars) or not one.beginning & other.beginning:
                    continue
                places = continuation(one, other, after, self.budget)
                if places is not None:
                    found.setdefault(longer, set()).update(other.cuts(*places))
        return found

    def _until_stable(self, update: Callable[[str, GrammarPart], bool]) -> None:
        is_stable = False
        while not is_stable:
            is_stable = True
            for name, part in self.grammar.items():
                if update(name, part):
                    is_stable = False

    def _begin(self, name: str, part: GrammarPart) -> bool:
        before, self._beginning[name] = self._beginning[name], self._beginning_of(part)
        return before != self._beginning[name]

    def _beginning_of(self, part: GrammarPart) -> tuple[CharMask, bool]:
        self.budget.spend()
        match part:
            case Lexeme(node):
                automaton = self._automaton.get(node)
                if automaton is None:
                    automaton = self._automaton[node] = self.automata.build(node)
                return automaton.beginning, automaton.is_nullable
            case Ref(name):
                return self._beginning[name]
            case Loop(inner, least):
                beginning, is_nullable = self._beginning_of(inner)
                return beginning, is_nullable or least == 0
            case Group(parts, is_choice):
                found = [self._beginning_of(each) for each in parts]
                mask = 0
                for beginning, is_nullable in found:
                    mask |= beginning
                    if not is_choice and not is_nullable:
                        break
                return mask, (any if is_choice else all)(is_nullable for _, is_nullable in found)
            case _:
                return 0, False

    def _follow(self, name: str, part: GrammarPart) -> bool:
        return self._put_after(part, self._after_rule[name])

    def _put_after(self, part: GrammarPart, after: CharMask) -> bool:
        """Note that characters may follow a part. Returns whether that is new for a rule."""
        self.budget.spend()
        match part:
            case Lexeme(node):
                self._after[node] = self._after.get(node, 0) | after
                return False
            case Ref(name):
                before = self._after_rule[name]
                self._after_rule[name] = before | after
                return self._after_rule[name] != before
            case Loop(inner, _, most):
                again = self._beginning_of(inner)[0] if most != 1 else 0
                return self._put_after(inner, after | again)
            case Group(parts, is_choice=True):
                return sum(self._put_after(each, after) for each in parts) > 0
            case Group(parts):
                is_new = False
                for each in reversed(parts):
                    is_new = self._put_after(each, after) or is_new
                    beginning, is_nullable = self._beginning_of(each)
                    after = beginning | (after if is_nullable else 0)
                return is_new
            case _:
                return False
