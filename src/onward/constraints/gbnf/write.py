"""Writes a grammar in llguidance's Lark."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from onward.constraints.gbnf.lexemes import Grammar, GrammarPart, Group, Lexeme, Loop, divide
from onward.constraints.gbnf.nodes import ANY, Alt, Chars, GrammarNode, GrammarRules, Ref, Repeat, Seq, Text, Token
from onward.constraints.gbnf.parse import ROOT, parse_gbnf
from onward.constraints.gbnf.simplify import simplified
from onward.constraints.lark import quoted

WriteToken = Callable[[str], str]
"""Returns the Lark of a token: of its reference as written, with an exclamation mark where any other is meant. Raises
GrammarError."""

_LITERAL = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789")


def gbnf_to_lark(text: str, write_token: WriteToken) -> str:
    """Return a grammar in GBNF as one in llguidance's Lark that matches the same texts. Raises GrammarError."""
    rules = simplified(parse_gbnf(text))
    return _Writer(rules, divide(rules), write_token).written()


class _Writer:
    """Names are made up: `r` and a number for rules of the parser, `T` and a number for lexemes and their parts."""

    def __init__(self, rules: GrammarRules, grammar: Grammar, write_token: WriteToken) -> None:
        self._rules = rules
        self._grammar = grammar
        self._write_token = write_token
        self._names = {name: f"r{number}" for number, name in enumerate(grammar)}
        self._terminals: dict[GrammarNode, str] = {}
        self._pending: list[GrammarNode] = []

    def written(self) -> str:
        lines = [f"start: {self._names[ROOT]}"]
        lines += [f"{self._names[name]}: {self._part(part)}" for name, part in self._grammar.items()]
        while self._pending:
            node = self._pending.pop()
            body = self._rules[node.name] if isinstance(node, Ref) else node
            lines.append(f"{self._terminals[node]}: {self._regular(body)}")
        return "\n".join(lines) + "\n"

    def _part(self, part: GrammarPart) -> str:
        match part:
            case Lexeme(node):
                return self._terminal(node)
            case Token(reference, negated):
                return self._write_token(f"!{reference}" if negated else reference)
            case Ref(name):
                return self._names[name]
            case Loop(inner, least, most):
                return f"{_grouped(self._part(inner), inner)}{_operator(least, most)}"
            case Group(parts, is_choice):
                return _joined(map(self._part, parts), is_choice=is_choice)

    def _terminal(self, node: GrammarNode) -> str:
        name = self._terminals.get(node)
        if name is None:
            name = self._terminals[node] = f"T{len(self._terminals)}"
            self._pending.append(node)
        return name

    def _regular(self, node: GrammarNode) -> str:
        match node:
            case Chars():
                return _set(node)
            case Ref():
                return self._terminal(node)
            case Repeat(inner, least, most):
                return f"{_grouped(self._regular(inner), inner)}{_operator(least, most)}"
            case Alt(options):
                return _joined(map(self._regular, options), is_choice=True)
            case Seq(parts):
                return _joined(map(self._regular, parts), is_choice=False)
            case Text(text):
                return quoted(text)
        raise AssertionError(f"{node} is not regular")


def _grouped(written: str, what: GrammarNode | GrammarPart) -> str:
    """Return what is repeated in parentheses, unless it is one name or has its own."""
    has_own = isinstance(what, Alt) or (isinstance(what, Group) and what.is_choice)
    return written if written.isalnum() or has_own else f"({written})"


def _joined(parts: Iterable[str], *, is_choice: bool) -> str:
    found = list(parts)
    if not found:
        return '""'
    return f"({' | '.join(found)})" if is_choice else " ".join(found)


def _operator(least: int, most: int | None) -> str:
    known = {(0, None): "*", (1, None): "+", (0, 1): "?"}.get((least, most))
    if known is not None:
        return known
    if most is None:
        return f"{{{least},}}"
    return f"{{{least}}}" if least == most else f"{{{least},{most}}}"


def _is_single(chars: Chars) -> bool:
    return len(chars.ranges) == 1 and chars.ranges[0][0] == chars.ranges[0][1]


def _set(chars: Chars) -> str:
    if chars == ANY:
        return "/(?s:.)/"
    if _is_single(chars):
        return quoted(chr(chars.ranges[0][0]))
    return f"/[{''.join(map(_range, chars.ranges))}]/"


def _range(bounds: tuple[int, int]) -> str:
    low, high = map(_character, bounds)
    return low if low == high else f"{low}-{high}"


def _character(code: int) -> str:
    return chr(code) if chr(code) in _LITERAL else f"\\x{{{code:X}}}"
