"""Simplifies a grammar without changing what it describes, and finds out what is regular in it."""

from __future__ import annotations

from collections.abc import Callable

from onward.constraints.errors import GrammarError
from onward.constraints.gbnf.nodes import (
    EMPTY,
    NOTHING,
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
    children,
    names_in,
    repeat,
    seq,
)
from onward.constraints.gbnf.parse import ROOT


def simplified(rules: GrammarRules) -> GrammarRules:
    """Return the rules that `root` needs, without what matches no text, and with repetitions for rules that end or
    begin with themselves. Raises GrammarError if no text is left."""
    productive = holding(rules, token=True, all_options=False)
    if ROOT not in productive:
        raise GrammarError("it matches no text")

    def kept(ref: Ref) -> GrammarNode:
        return ref if ref.name in productive else NOTHING

    found: GrammarRules = {}
    pending = [ROOT]
    while pending:
        name = pending.pop()
        if name not in found:
            found[name] = _without_recursion(name, rebuilt(rules[name], kept))
            pending.extend(sorted(names_in(found[name]), reverse=True))
    return found


def rebuilt(node: GrammarNode, replace: Callable[[Ref], GrammarNode]) -> GrammarNode:
    """Return a node with its references replaced."""
    match node:
        case Ref():
            return replace(node)
        case Seq(parts):
            return seq(rebuilt(part, replace) for part in parts)
        case Alt(options):
            return alt(rebuilt(option, replace) for option in options)
        case Repeat(inner, least, most):
            return repeat(rebuilt(inner, replace), least, most)
        case _:
            return node


class _Goal:
    """A node for which a property may hold: it does once it holds for `missing` more of its parts. `parent` is the node
    around it, None for a whole rule."""

    __slots__ = ("missing", "name", "parent")

    def __init__(self, missing: int, parent: _Goal | None, name: str) -> None:
        self.missing = missing
        self.parent = parent
        self.name = name


def holding(rules: GrammarRules, *, token: bool, all_options: bool) -> dict[str, None]:
    """Return the rules for which a property holds, in an order in which each comes after those that it needs. It holds
    for characters, for tokens if `token`, for a sequence if it holds for all parts, for a choice if it holds for one
    option or for `all_options`, and for a repetition if it holds for what is repeated or, without `all_options`, if
    that may be left out. Linear in the size of the rules.
    """
    held: dict[str, None] = {}
    waiting: dict[str, list[_Goal]] = {}
    pending = [(node, _Goal(1, None, name)) for name, node in rules.items()]
    while pending:
        node, around = pending.pop()
        is_met = False
        match node:
            case Chars(ranges):
                is_met = bool(ranges)
            case Text():
                is_met = True
            case Token():
                is_met = token
            case Ref(name):
                is_met = name in held
                if not is_met:
                    waiting.setdefault(name, []).append(around)
            case Repeat(_, 0) if not all_options:
                is_met = True
            case _:
                inner = children(node)
                needs_all = all_options or isinstance(node, Seq)
                is_met = needs_all and not inner
                goal = _Goal(len(inner) if needs_all else 1, around, "")
                pending.extend((child, goal) for child in inner)
        if is_met:
            _meet(around, held, waiting)
    return held


def _meet(goal: _Goal, held: dict[str, None], waiting: dict[str, list[_Goal]]) -> None:
    """A part of a goal holds: note what else follows from it."""
    met = [goal]
    while met:
        current = met.pop()
        current.missing -= 1
        if current.missing:
            continue
        if current.parent is not None:
            met.append(current.parent)
        else:
            held[current.name] = None
            met.extend(waiting.pop(current.name, ()))


def _without_recursion(name: str, node: GrammarNode) -> GrammarNode:
    """Return a rule's node with a repetition where it ends or begins with itself: `x ::= a x | b` is `a* b`."""
    own = Ref(name)
    for at_end in (True, False):
        repeated, rest = _split(node, own, at_end=at_end)
        if repeated != NOTHING:
            parts = [repeat(repeated, 0, None), rest]
            return seq(parts if at_end else parts[::-1])
    return node


def _split(node: GrammarNode, own: Ref, *, at_end: bool) -> tuple[GrammarNode, GrammarNode]:
    """Return what comes before `own` where a node ends with it (after it, where it begins with it), and the rest of
    what the node matches: together they match the same."""
    if node == own:
        return EMPTY, NOTHING
    if own.name not in names_in(node):
        return NOTHING, node
    if isinstance(node, Alt):
        splits = [_split(option, own, at_end=at_end) for option in node.options]
        return alt(each[0] for each in splits), alt(each[1] for each in splits)
    if isinstance(node, Repeat) and (node.least, node.most) == (0, 1):
        before, rest = _split(node.node, own, at_end=at_end)
        return before, alt([rest, EMPTY])
    if isinstance(node, Seq):
        *others, last = node.parts if at_end else node.parts[::-1]
        before, rest = _split(last, own, at_end=at_end)
        if before != NOTHING and not any(own.name in names_in(other) for other in others):
            return _joined(others, before, at_end=at_end), _joined(others, rest, at_end=at_end)
    return NOTHING, node


def _joined(others: list[GrammarNode], last: GrammarNode, *, at_end: bool) -> GrammarNode:
    parts = [*others, last]
    return seq(parts if at_end else parts[::-1])
