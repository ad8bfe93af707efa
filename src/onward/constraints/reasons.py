"""What llguidance says about a constraint, in words that say what to do.

The library's messages name parts of itself and quote the grammar that was made for it, which is not what the client has
written. Its messages are those of 1.9.1.
"""

from __future__ import annotations

import re
from collections.abc import Callable

MAX_REASON_CHARACTERS = 500
"""The longest reason that a client is sent."""
MAX_WORDS = 4_000
"""Of the library, which are looked at."""

FORMATS = ("date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid", "uri")
"""Formats of strings that are known."""
NOTHING = "it matches no text"
TOO_COMPLEX = "it is too complex: write fewer counted repetitions, alternatives or levels"

_PLACE = re.compile(r"^at (\d+)\((\d+)\): ")
_EXCERPT = re.compile(r"\n *\d+ \| .*", re.DOTALL)
_SCHEMA = "failed to compile JSON schema: "
_LIBRARYS_PLACE = re.compile(r" \(at .* \(.*\)\)$| at line \d+ column \d+$")
_EXPRESSION = re.compile(r"(?:invalid regex .*? \(in regex\): )?regex parse error: (.*) \^+ error: (.*)")

_KNOWN: tuple[tuple[str, str | Callable[[re.Match[str]], str]], ...] = (
    (r"NoExtension(Bias)?", NOTHING),
    (r"Unsatisfiable schema: Regex is empty: .*", f"{NOTHING}: 'pattern', 'format' and the bounds of a string's length "
     "contradict each other"),
    (r"Unable to determine if regex is empty: .*", TOO_COMPLEX),
    (r"Unsatisfiable schema: (.*)", rf"{NOTHING}: \1"),
    (r"Unimplemented keys: \[(.*)\]", lambda found: _unsupported(re.findall(r'"([^"]*)"', found[1]))),
    (r"oneOf constraints are not supported.*", "'oneOf' needs options of which no two can match the same value, and "
     "this cannot be shown here: use 'anyOf', or tell objects apart by a required property with a 'const'"),
    (r"Unknown format: (.*)", rf"the format '\1' is not known: use a 'pattern', or one of {', '.join(FORMATS)}"),
    (r"Invalid type: (.*)", r"'\1' is not a type of JSON"),
    (r"Expected f64 for '(\w+)', got (.*)", r"'\1' must be a number, not \2"),
    (r"Expected positive integer for '(\w+)', got (.*)", r"'\1' must be a whole number of at least 0, not \2"),
    (r"Expected (array|object) for '(\w+)', got (.*)", r"'\2' must be an \1, not \3"),
    (r"Expected (\w+) for '(\w+)', got (.*)", r"'\2' must be a \1, not \3"),
    (r"invalid multiple of", "'multipleOf' must be above 0"),
    (r"Pointer '(.*)' does not exist", r"'$ref': there is nothing at '#\1'"),
    (r"Resource '(?:json-schema:///)?(.*?)' is not present.*", r"'\1' is not in the schema, and nothing is fetched: "
     "put it into '$defs'"),
    (r"patternProperty regexes /(.*)/ and /(.*)/ are not disjoint", r"in 'patternProperties', '\1' and '\2' may match "
     "the same name, which is not supported: make them exclude each other"),
    (r"unknown field `(.*?)`, expected one of (.*)", lambda found: f"'x-guidance' has no option '{found[1]}', but "
     f"{found[2].replace('`', '')}"),
    (r'failed to parse "%json": recursion limit exceeded.*', "it is nested too deeply"),
    (r"lark grammar too deeply nested.*", "it is nested too deeply"),
    (r'failed to parse "(%\w+)": (.*) at line.*', r"what follows \1 is not JSON: \2"),
    (r"(?:invalid regex .*? \(in regex\): )?lookarounds not supported yet; .* in regex /(.*)/",
     r"the expression \1 has '^', '$' or '\\b' inside, which is not supported: it matches a text as a whole"),
    (r"failed to parse %regex: .*|no fields set on %regex", "what follows %regex must be an object with one of "
     "'substring_chunks', 'substring_words' and 'substring_chars'"),
    (r"expecting rule, token or statement \(at (.*) \(.*\)\)", r"the definition of a rule is expected before \1"),
    (r"Unknown common regex: (.*?); following are available: (.*)", r"'\1' cannot be imported; there are \2"),
    (r"unknown grammar @(.*)", r"'@\1' is not defined: a request has one grammar"),
    (r"no start rule found", "it has no rule named 'start'"),
    (r"Empty grammar", "it has no rules"),
    (r'unknown name: "(.*)"', r"'\1' is not defined"),
    (r'duplicate rule: "(.*)"', r"'\1' is defined twice"),
    (r'circular reference in token "(.*)" definition', r"'\1' refers to itself: names of rules that do are written in "
     "lower case"),
    (r"special tokens .* cannot be used in terminals", "tokens such as <[5]> can only be used in rules, whose names "
     "are in lower case"),
    (r"Expected token (.*), found (.*) \(at .*\)", r"\1 is expected, not \2"),
    (r"Expected value \(at (.*) \(.*\)\)", r"a text, an expression or a name is expected before \1"),
    (r"End number in range cannot be 0.*", "a repetition's most must be at least 1"),
    (r"range end must be >= start, got \((\d+), (\d+)\)", r"{\1,\2}: the second number must not be the smaller one"),
    (r"lexer error", 'what is here is neither a name, a text in "double quotes" nor an /expression/'),
    (r"(.*) not supported yet", r"\1: not supported"),
    (r"(?i:parser error: |lexer error: )?(?:initial lexer|grammar size|Too many|too many|DNF too large|Current row|"
     r"schema too large|Schema intersection|lexer precomputation).*", TOO_COMPLEX),
    (r".*\b(?:fuel|lexemes?|derivatives)\b.*", TOO_COMPLEX),
    (r"Value for 'multipleOf' has too many digits: (.*)", r"'multipleOf' has too many digits: \1"),
)  # fmt: skip
"""A message of the library, and what is said instead."""


def shown_reason(words: str) -> str:
    """Return why a constraint cannot be used, for the client. `words` are the library's."""
    if len(words) > MAX_WORDS:
        words = words[: MAX_WORDS // 2] + words[-MAX_WORDS // 2 :]
    words = " ".join(_EXCERPT.sub("", words.strip()).replace("<non-verbose/>", "").split())
    place = _PLACE.match(words) or re.match(r"(\d+)\((\d+)\): ", words)
    words = words.removeprefix(place[0] if place else "").removeprefix(_SCHEMA)
    expression = _EXPRESSION.fullmatch(words)
    if expression is not None:
        words = f"the expression {expression[1]} is not valid: {expression[2]}"
    for pattern, said in _KNOWN:
        found = re.fullmatch(pattern, words)
        if found is not None:
            words = found.expand(said) if isinstance(said, str) else said(found)
            break
    else:
        words = _LIBRARYS_PLACE.sub("", words)
    if place is not None and int(place[1]) > 1:
        words = f"line {place[1]}: {words}"
    return words[:MAX_REASON_CHARACTERS] or "it is not valid"


def _unsupported(keywords: list[str]) -> str:
    names = ", ".join(f"'{each}'" for each in keywords)
    if len(keywords) == 1:
        return f"{names} is not supported: leave it out, and check the text afterwards"
    return f"{names} are not supported: leave them out, and check the text afterwards"
