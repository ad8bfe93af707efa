"""Random grammars, how they are written in GBNF, and a matcher for them that shares no code with the package's."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

ALPHABET = "ab-]\n é😀"
NAMES = ("root", "start", "Item", "item", "a-1", "a_1", "1st")
_ESCAPES = {"\n": "\\n", '"': '\\"', "\\": "\\\\", "]": "\\]", "-": "\\-"}


@dataclass
class Node:
    """`kind`: "chars" (`chars`, or all others where `negated`), "seq", "alt", "repeat" (`least`, `most`) or "rule"."""

    kind: str
    parts: list[Node] = field(default_factory=list)
    chars: str = ""
    negated: bool = False
    least: int = 0
    most: int | None = None
    name: str = ""


Rules = dict[str, Node]


class Writer:
    """Draws grammars, and writes each with one of the spellings that GBNF allows."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._names = ["root", *rng.sample(NAMES[1:], rng.randrange(4))]

    def rules(self) -> tuple[Rules, str]:
        """Return rules and their text."""
        found = {name: self._node(4) for name in self._names}
        order = self._rng.sample(self._names, len(self._names))
        lines = [f"{name} ::={self._space()}{self._options(found[name], top=True)}" for name in order]
        return found, self._rng.choice(["", "# a comment\n"]) + "\n".join(lines) + self._rng.choice(
            ["", "\n", " # end"]
        )

    def _node(self, depth: int) -> Node:
        rng = self._rng
        kind = rng.choice(["chars"] * 3 + ["seq", "seq", "alt", "repeat", "rule"]) if depth else "chars"
        if kind == "chars":
            chars = "".join(rng.choices(ALPHABET, k=rng.choice((1, 1, 2, 3))))
            return Node("chars", chars=chars, negated=rng.random() < 0.15)
        if kind == "rule":
            return Node("rule", name=rng.choice(self._names))
        if kind == "repeat":
            least = rng.choice((0, 0, 0, 1, 2))
            most = rng.choice((None, None, least, least + 1, least + 2))
            return Node("repeat", [self._node(depth - 1)], least=least, most=most)
        return Node(
            kind, [self._node(depth - 1) for _ in range(rng.randrange(4 if kind == "seq" else 3) + (kind == "alt"))]
        )

    def _options(self, node: Node, *, top: bool) -> str:
        parts = node.parts if node.kind == "alt" else [node]
        bars = [" | ", "|", " |\n  ", " | # more\n "] + ([] if top else ["\n | "])
        return self._rng.choice(bars).join(self._sequence(part, top=top) for part in parts)

    def _sequence(self, node: Node, *, top: bool) -> str:
        parts = node.parts if node.kind == "seq" else [node]
        spaces = [" ", "  ", "\t"] + ([] if top else ["\n", " # and\n"])
        if not parts and top:
            return '""'  # on its own, the next line would belong to the rule
        return self._rng.choice(spaces).join(self._item(part) for part in parts)

    def _item(self, node: Node) -> str:
        if node.kind == "rule":
            return node.name
        if node.kind == "chars":
            return self._set(node)
        if node.kind == "repeat":
            return self._item(node.parts[0]) + self._counts(node)
        return f"({self._rng.choice(['', ' ', chr(10)])}{self._options(node, top=False)} )"

    def _counts(self, node: Node) -> str:
        least, most = node.least, node.most
        short = {(0, None): "*", (1, None): "+", (0, 1): "?"}.get((least, most))
        if short and self._rng.random() < 0.7:
            return short
        if least == most and self._rng.random() < 0.5:
            return f"{{{least}}}"
        return f"{{{least},{'' if most is None else most}}}"

    def _set(self, node: Node) -> str:
        if len(set(node.chars)) == 1 and not node.negated and self._rng.random() < 0.6:
            return f'"{self._character(node.chars[0], in_set=False)}"'
        chars = [self._character(each, in_set=True) for each in node.chars]
        if self._rng.random() < 0.3:
            chars[0] = f"{chars[0]}-{chars[0]}"
        return f"[{'^' if node.negated else ''}{''.join(chars)}]"

    def _character(self, char: str, *, in_set: bool) -> str:
        code = ord(char)
        ways = [f"\\U{code:08x}"]
        if code < 0x10000:
            ways.append(f"\\u{code:04X}")
        if code < 0x100:
            ways.append(f"\\x{code:02x}")
        ways += [_ESCAPES.get(char, char)] * 4
        if char in "-]" and not in_set:
            ways.append(char)
        return self._rng.choice(ways)

    def _space(self) -> str:
        return self._rng.choice([" ", "", "\n  ", " # what follows\n"])


class Matcher:
    """The positions at which a rule's match may end, for each position at which it may begin: a least fixed point."""

    def __init__(self, rules: Rules, text: str) -> None:
        self._rules = rules
        self._text = text
        self._ends: dict[tuple[str, int], set[int]] = {}

    def matches(self) -> bool:
        """Return whether `root` matches all of the text."""
        size = -1
        self._match(Node("rule", name="root"), 0)
        while size != (size := sum(map(len, self._ends.values())) + len(self._ends)):
            for name, start in list(self._ends):
                self._ends[name, start] |= self._match(self._rules[name], start)
        return len(self._text) in self._ends["root", 0]

    def _match(self, node: Node, start: int) -> set[int]:
        if node.kind == "rule":
            return self._ends.setdefault((node.name, start), set())
        if node.kind == "chars":
            found = start < len(self._text) and (self._text[start] in node.chars) != node.negated
            return {start + 1} if found else set()
        if node.kind == "alt":
            return {end for part in node.parts for end in self._match(part, start)}
        if node.kind == "seq":
            ends = {start}
            for part in node.parts:
                ends = {end for each in ends for end in self._match(part, each)}
            return ends
        return self._repeated(node, start)

    def _repeated(self, node: Node, start: int) -> set[int]:
        most = len(self._text) + node.least if node.most is None else node.most
        ends, found = {start}, {start} if node.least == 0 else set()
        for count in range(1, most + 1):
            ends = {end for each in ends for end in self._match(node.parts[0], each)}
            if count >= node.least:
                found |= ends
        return found


def text_of(rules: Rules, node: Node, rng: random.Random, depth: int = 12) -> str:
    """Return a text that a node matches; beyond `depth` it may be one that it does not match."""
    if depth == 0:
        return ""
    if node.kind == "rule":
        return text_of(rules, rules[node.name], rng, depth - 1)
    if node.kind == "chars":
        others = [each for each in ALPHABET if each not in node.chars]
        return rng.choice(others) if node.negated and others else rng.choice(node.chars)
    if node.kind == "alt":
        return text_of(rules, rng.choice(node.parts), rng, depth - 1)
    if node.kind == "seq":
        return "".join(text_of(rules, part, rng, depth - 1) for part in node.parts)
    count = node.least + rng.randrange((2 if node.most is None else node.most - node.least) + 1)
    return "".join(text_of(rules, node.parts[0], rng, depth - 1) for _ in range(count))
