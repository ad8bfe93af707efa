"""Parses GBNF as llama-grammar.cpp of llama.cpp does (`llama_grammar_parser`, of 2026-08).

Beyond it: `_` in names, a line that begins with `|`, repetitions above 2,000 are what is written, and rules may begin
with themselves. Refused, although llama.cpp accepts them, since nobody can mean them: sets without characters, and
`{3,2}`. Of a rule that is defined twice the last definition counts, as there.
"""

from __future__ import annotations

from onward.constraints.errors import GrammarError
from onward.constraints.gbnf.nodes import (
    ANY,
    LAST_CODE_POINT,
    SURROGATES,
    GrammarNode,
    GrammarRules,
    Ref,
    Token,
    alt,
    chars,
    literal,
    names_in,
    repeat,
    seq,
)

MAX_DEPTH = 50
"""Of groups inside of groups."""
MAX_RULES = 10_000
ROOT = "root"

_DIGITS = frozenset("0123456789")
_NAME = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_")
_HEX = frozenset("0123456789abcdefABCDEF")
_HEX_DIGITS = {"x": 2, "u": 4, "U": 8}
_ESCAPED = {"t": "\t", "r": "\r", "n": "\n", "\\": "\\", '"': '"', "[": "[", "]": "]", "-": "-"}
_ESCAPES = r"\n \r \t \\ \" \[ \] \- \xXX \uXXXX \UXXXXXXXX"
_REPEATED: dict[str, tuple[int, int | None]] = {"*": (0, None), "+": (1, None), "?": (0, 1)}


def parse_gbnf(text: str) -> GrammarRules:
    """Return the rules of a grammar, `root` among them. Raises GrammarError with the line of what is wrong."""
    rules = _Parser(text).rules()
    if ROOT not in rules:
        raise GrammarError(f"it has no rule named '{ROOT}', which says what the whole text is")
    for name, node in rules.items():
        for missing in sorted(names_in(node) - rules.keys()):
            raise GrammarError(f"the rule '{name}' refers to a rule '{missing}', which is not defined")
    return rules


class _Parser:
    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self._depth = 0

    def rules(self) -> GrammarRules:
        rules: GrammarRules = {}
        self._skip_space(newlines=True)
        while self._at < len(self._text):
            name = self._name()
            self._skip_space(newlines=False)
            if not self._take("::="):
                raise self._error(f"'::=' is expected after '{name}'")
            self._skip_space(newlines=True)
            rules[name] = self._alternatives(nested=False)
            if len(rules) > MAX_RULES:
                raise GrammarError(f"it has more than {MAX_RULES} rules")
            if self._at < len(self._text) and self._peek() not in "\r\n":
                raise self._error(f"a line's end is expected before {self._seen()}")
            self._skip_space(newlines=True)
        return rules

    def _alternatives(self, *, nested: bool) -> GrammarNode:
        options = [self._sequence(nested=nested)]
        while self._at_bar(nested=nested):
            self._at += 1
            self._skip_space(newlines=True)
            options.append(self._sequence(nested=nested))
        return alt(options)

    def _at_bar(self, *, nested: bool) -> bool:
        """Return whether another alternative follows, also on the next line, and move to its bar."""
        start = self._at
        self._skip_space(newlines=True)
        if self._peek() == "|":
            return True
        self._at = start
        return False

    def _sequence(self, *, nested: bool) -> GrammarNode:
        parts: list[GrammarNode] = []
        last: GrammarNode | None = None
        """What a repetition repeats: the symbol before it, with the repetitions that it already has."""
        while self._at < len(self._text):
            found = self._symbol(nested=nested)
            if found is not None:
                if last is not None:
                    parts.append(last)
                last = found
                continue
            counts = self._counts(nested=nested)
            if counts is None:
                break
            if last is None:
                raise self._error("there is nothing before it to repeat")
            last = repeat(last, *counts)
        if last is not None:
            parts.append(last)
        return seq(parts)

    def _symbol(self, *, nested: bool) -> GrammarNode | None:
        """Return the symbol that begins here, None if there is none."""
        first = self._peek()
        found: GrammarNode
        if first == '"':
            found = self._literal()
        elif first == "[":
            found = self._set()
        elif first in ("<", "!"):
            found = self._token()
        elif first == ".":
            self._at += 1
            found = ANY
        elif first == "(":
            found = self._group()
        elif first in _NAME:
            found = Ref(self._name())
        else:
            return None
        self._skip_space(newlines=nested)
        return found

    def _group(self) -> GrammarNode:
        self._at += 1
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise self._error(f"groups are nested too deeply; at most {MAX_DEPTH} levels are supported")
        self._skip_space(newlines=True)
        found = self._alternatives(nested=True)
        self._skip_space(newlines=True)
        if not self._take(")"):
            raise self._error(f"')' is expected before {self._seen()}")
        self._depth -= 1
        return found

    def _literal(self) -> GrammarNode:
        self._at += 1
        found: list[str] = []
        while not self._take('"'):
            code = self._character("a text in quotes")
            if code > LAST_CODE_POINT or SURROGATES[0] <= code <= SURROGATES[1]:
                raise self._error(f"U+{code:04X} is not a character; write one beyond U+FFFF as \\UXXXXXXXX")
            found.append(chr(code))
        return literal("".join(found))

    def _set(self) -> GrammarNode:
        self._at += 1
        negated = self._take("^")
        ranges: list[tuple[int, int]] = []
        while not self._take("]"):
            low = high = self._character("a set")
            if self._peek() == "-" and self._text[self._at + 1 : self._at + 2] != "]":
                self._at += 1
                high = self._character("a set")
            ranges.append((low, high))
        if not ranges:
            raise self._error('a set has no characters; write "" for an empty text, and . for any character')
        return chars(ranges, negated=negated)

    def _character(self, inside: str) -> int:
        """Return the code point that is written here, and move past it."""
        if self._at >= len(self._text):
            raise self._error(f"{inside} does not end")
        first = self._peek()
        self._at += 1
        if first != "\\":
            return ord(first)
        kind = self._peek()
        self._at += 1
        if kind in _ESCAPED:
            return ord(_ESCAPED[kind])
        count = _HEX_DIGITS.get(kind)
        if count is None:
            raise self._error(f"'\\{kind}' means nothing in GBNF; it has {_ESCAPES}")
        digits = self._text[self._at : self._at + count]
        if len(digits) < count or not _HEX.issuperset(digits):
            raise self._error(f"'\\{kind}' needs {count} hexadecimal digits")
        self._at += count
        return int(digits, 16)

    def _token(self) -> GrammarNode:
        negated = self._take("!")
        end = self._text.find(">", self._at)
        reference = self._text[self._at : end + 1]
        if not reference.startswith("<") or "\n" in reference or len(reference) < 3:
            raise self._error("a token is written as <[id]> or <text>")
        self._at = end + 1
        return Token(reference, negated)

    def _counts(self, *, nested: bool) -> tuple[int, int | None] | None:
        """Return the bounds of the repetition that is written here, None if there is none."""
        first = self._peek()
        if first in _REPEATED:
            self._at += 1
            found = _REPEATED[first]
        elif first == "{":
            self._at += 1
            self._skip_space(newlines=nested)
            found = self._bounds(nested=nested)
        else:
            return None
        self._skip_space(newlines=nested)
        return found

    def _bounds(self, *, nested: bool) -> tuple[int, int | None]:
        least = self._integer()
        if least is None:
            raise self._error("a number is expected after '{': {2}, {2,} or {0,2}")
        most: int | None = least
        self._skip_space(newlines=nested)
        if self._take(","):
            self._skip_space(newlines=nested)
            most = self._integer()
            self._skip_space(newlines=nested)
        if not self._take("}"):
            raise self._error(f"'}}' is expected before {self._seen()}")
        if most is not None and most < least:
            raise self._error(f"{{{least},{most}}}: the second number must not be the smaller one")
        return least, most

    def _integer(self) -> int | None:
        start = self._at
        while self._peek() in _DIGITS:
            self._at += 1
        if self._at - start > 9:
            raise self._error("a repetition's number has more than 9 digits")
        return int(self._text[start : self._at]) if self._at > start else None

    def _name(self) -> str:
        start = self._at
        while self._peek() in _NAME:
            self._at += 1
        if self._at == start:
            raise self._error(f"the name of a rule is expected before {self._seen()}")
        return self._text[start : self._at]

    def _skip_space(self, *, newlines: bool) -> None:
        skipped = " \t\r\n" if newlines else " \t"
        while self._at < len(self._text):
            if self._text[self._at] == "#":
                while self._at < len(self._text) and self._text[self._at] not in "\r\n":
                    self._at += 1
            elif self._text[self._at] in skipped:
                self._at += 1
            else:
                return

    def _peek(self) -> str:
        """Return the next character, a line's end at the end of the text."""
        return self._text[self._at] if self._at < len(self._text) else "\n"

    def _take(self, wanted: str) -> bool:
        if not self._text.startswith(wanted, self._at):
            return False
        self._at += len(wanted)
        return True

    def _seen(self) -> str:
        return repr(self._text[self._at]) if self._at < len(self._text) else "the end"

    def _error(self, reason: str) -> GrammarError:
        line = self._text.count("\n", 0, self._at) + 1
        return GrammarError(f"line {line}: {reason}")
