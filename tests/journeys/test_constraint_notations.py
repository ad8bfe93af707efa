"""What each notation means, over HTTP: with these characters preferred, the completion is this text.

GBNF: grammars/README.md and src/llama-grammar.cpp of llama.cpp (0c1e57098, 2026-08). Lark: docs/syntax.md of llguidance
1.9.1. Expressions: docs.rs, regex 1, "Syntax".
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from onward.server.app import App
from tests.api.served import post, toy_app
from tests.server.fakes import in_loop

END, THE = 256, 261
"""Tokens of the toy vocabulary: `<|endoftext|>`, and " the"."""

GBNF: dict[str, tuple[str, str, str | int]] = {
    # Escapes: \x has two digits, \u four, \U eight.
    "u with leading zeros": (r'root ::= "\u0041bcd"', "", "Abcd"),
    "x has two digits": (r'root ::= "\x41bc"', "", "Abc"),
    "U beyond four digits": (r'root ::= "\U0001F600"', "", "😀"),
    "U in a set": (r"root ::= [\U0001F600-\U0001F602]", "😁", "😁"),
    "U with zeros": (r'root ::= "\U00000041\U000000e9"', "", "Aé"),
    "characters as they are": ("root ::= \"日本\" [ぁ-ゟ]", "ぁ", "日本ぁ"),
    "the other escapes": (r'root ::= "\t\n\r\\\"\[\]\-"', "", '\t\n\r\\"[]-'),
    "control characters": (r'root ::= "\x00\x01\x7f\u0080"', "", "\x00\x01\x7f\x80"),
    # Sets: nothing but ^ at the beginning, - between two characters, ] and \ is special.
    "a range from + to -": ("root ::= [+--]{4}", "-", "----"),
    "a hyphen at the end": ("root ::= [a-]{2}", "-", "--"),
    "a hyphen after a range": ("root ::= [a-b-c]{2}", "-", "--"),
    "&& in a set": ("root ::= [a&&b]{3}", "&", "&&&"),
    "~~ in a set": ("root ::= [a~~b]{2}", "~", "~~"),
    "[ in a set": ("root ::= [[a]{2}", "[", "[["),
    "[: in a set": ('root ::= [[:alpha:] "]"', ":", ":]"),
    "an escaped ]": (r"root ::= [\]a]{2}", "]", "]]"),
    "^ after the beginning": ("root ::= [a^]{2}", "^", "^^"),
    "quotes and # in sets": ("root ::= [\"'] [#] [/]", "\"", '"#/'),
    "a negated set has line breaks": ("root ::= [^a]", "a\n", "\n"),
    "a reversed range is empty": ("root ::= [z-ab]{2}", "z", "bb"),
    ". is any character": ("root ::= . .", "\n", "\n\n"),
    # Rules and their names.
    "a rule named start": ('root ::= start\nstart ::= "a"', "", "a"),
    "names that differ by case": (
        'root ::= Item item ITEM\nItem ::= "a"\nitem ::= "b"\nITEM ::= "c"', "", "abc"
    ),
    "names that differ by - and _": ('root ::= a-1 a_1\na-1 ::= "a"\na_1 ::= "b"', "", "ab"),
    "names that begin with a digit": ('root ::= 1st 2\n1st ::= "a"\n2 ::= "b"', "", "ab"),
    "words of Lark as names": ('root ::= import r0 T0\nimport ::= "a"\nr0 ::= "b"\nT0 ::= "c"', "", "abc"),
    "the last definition counts": ('root ::= x\nx ::= "a"\nx ::= "b"', "", "b"),
    "root is anywhere": ('x ::= "a"\nroot ::= x x', "", "aa"),
    # Rules are not tokens: what a repetition could take may belong to what follows.
    "a rule that could take all": ('root ::= t "b"\nt ::= [ab]+', "$b", "bb"),
    "a repetition that could take all": ('root ::= [ab]{0,3} "b"', "b", "bbbb"),
    "a rule that could take all, in a recursive grammar": (
        'root ::= "(" root ")" | t "b)"\nt ::= [ab)]{2,3}', ")b", ")))b)"
    ),
    "texts with a common beginning": ('root ::= ("a" | "ab" | "abc") "bcd"', "", "abcd"),
    "a keyword that is a name, too": ('root ::= "if" "(" root ")" | [a-f]{1,2} | root ";"', "f", "ff"),
    # Repetitions.
    "a repeated group": ('root ::= "n" ([0-9]{2})?', "7", "n77"),
    "a repeated group, left out": ('root ::= "n" ([0-9]+)?', "", "n"),
    "repetitions of repetitions": ('root ::= ("a"{2})+ "b"*? "c"+?', "", "aa"),
    "thousands of repetitions of repetitions": ('root ::= "a"' + "+*?" * 5_000, "$a", ""),
    "a text is repeated as a whole": ('root ::= "ab"{2}', "", "abab"),
    "{0}": ('root ::= "a"{0} "b"', "", "b"),
    "{0,0}": ('root ::= ("a" | "b"){0,0} "b"', "", "b"),
    "{2}": ("root ::= [a-z]{2}", "a", "aa"),
    "{2,}": ("root ::= [a-z]{2,}", "", 2),
    "{2,3}": ("root ::= [a-z]{2,3}", "a", "aaa"),
    "{0,3000}": ("root ::= [a-z]{0,3000}", "", ""),
    "{ 2 , 3 }": ("root ::= [a-z]{ 2 , 3 }", "a", "aaa"),
    # Alternatives, groups, comments, lines.
    "nested alternatives": ('root ::= ("a" | ("b" | "c" ("d" | "e"))) "f"', "ce", "cef"),
    "an empty alternative": ('root ::= "a" ( | "b") "c"', "c", "ac"),
    "an empty text": ('root ::= "" "a" ""', "", "a"),
    "comments": ('# one\nroot ::= "a" # two "x"\n# three\n', "", "a"),
    "a line's end after |": ('root ::= "x" |\n  "a"', "a", "a"),
    "a line's end before |": ('root ::= "x"\n  | "a"', "a", "a"),
    "a line's end inside a group": ('root ::= (\n "a"\n # b\n "b"\n)', "", "ab"),
    "a line's end after ::=": ('root ::=\n  "a"', "", "a"),
    "lines of Windows": ('root ::= x\r\nx ::= "a"\r\n', "", "a"),
    "quotes in comments": ('root ::= "a" # it\'s "open\n', "", "a"),
    "recursion": ('root ::= "(" root ")" | "x"', "x", "x"),
    "recursion at the beginning": ('root ::= root "a" | "b"', "b", "b"),
    # Tokens.
    "a token by its id": (f'root ::= <[{THE}]> "a"', "", " thea"),
    "a token by its text": ('root ::= "a" <|endoftext|>', "", "a"),
    "any other token": (f'root ::= !<[{THE}]> "a"', "b", "ba"),
}  # fmt: skip
"""A grammar, the characters that are preferred, most first, and the text (or its length). A text ends where it may."""
LARK: dict[str, tuple[str, str, str]] = {
    "a rule": ('start: "a" B\nB: /[bc]/', "c", "ac"),
    "?start": ('?start: "a" | "b"', "b", "b"),
    "!start": ('!start: "a" | "b"', "b", "b"),
    "a rule with a question mark": ('start: item\n?item: "b"', "", "b"),
    "a comment first": ('// root ::= "x"\nstart: "a"', "", "a"),
    "::= in a text": ('start: "x ::= y"', "", "x ::= y"),
    "a token by its id": (f'start: <[{THE}]> "a"', "", " thea"),
    "ids and ranges": (f'start: <[97,{THE}-{THE + 1}]> "a"', "a", "aa"),
    "a negated id": (f'start: <[^{THE}]> "a"', "b", "ba"),
    "any token": ('start: <[*]> "a"', "b", "ba"),
    "a special token by its text": ('start: "a" <|endoftext|>', "", "a"),
    "references in texts and comments": ('start: "<[999]>" // <|nothing|>\n', "", "<[999]>"),
    "%json": ('start: %json {"const": "<[999]>"}', "", '"<[999]>"'),
}
REGEX: dict[str, tuple[str, str, str]] = {
    "a slash": ("a/b", "", "a/b"),
    "an escaped slash": (r"a\/b", "", "a/b"),
    "a backslash": (r"a\\", "", "a\\"),
    "a class": (r"[a-c&&[^b]]{2}", "bc", "cc"),
    "a comment with a slash": ("(?x) a # x / y\n b", "", "ab"),
    "a line break": ("a\nb", "", "a\nb"),
    "flags": ("(?i)A{2}", "a", "aa"),
    "nothing": ("", "", ""),
}
CHOICE: dict[str, tuple[list[str], str, str]] = {
    "control characters": (["\x00\x01\t\x1f\x7f\x80"], "", "\x00\x01\t\x1f\x7f\x80"),
    "quotes and backslashes": (['"\\n\\u0041/'], "", '"\\n\\u0041/'),
    "line separators": (["\u2028\u2029\ufeff\r\n"], "", "\u2028\u2029\ufeff\r\n"),
    "a text that begins another": (["ab", "abc"], "c", "abc"),
    "an empty one": (["", "a"], "", ""),
}
ACCEPTED: list[tuple[str, Mapping[str, tuple[Any, str, str | int]]]] = [
    ("grammar", GBNF),
    ("grammar", LARK),
    ("regex", REGEX),
    ("choice", CHOICE),
]


def record(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": list(properties), "additionalProperties": False}


REFUSED: dict[str, tuple[str, object, str]] = {
    "an unpaired backslash": ("regex", "a\\", "it ends with a backslash, which escapes nothing"),
    "an open group": ("regex", "(", "the expression ( is not valid: unclosed group"),
    "no match": ("regex", r"[^\s\S]", "it matches no text"),
    "a word's boundary": ("regex", r"\ba\b", "is not supported: it matches a text as a whole"),
    "no root": ("grammar", 'x ::= "a"', "it has no rule named 'root'"),
    "an unknown rule": ("grammar", "root ::= x", "'root' refers to a rule 'x', which is not defined"),
    "an open set": ("grammar", "root ::= [a", "line 1: a set does not end"),
    "an empty set": ("grammar", "root ::= []", "line 1: a set has no characters"),
    "an unknown escape": ("grammar", 'root ::= "a"\n\nx ::= "\\d"', r"line 3: '\d' means nothing in GBNF; it has \n"),
    "too few digits": ("grammar", r'root ::= "\u41"', r"'\u' needs 4 hexadecimal digits"),
    "half of a character": ("grammar", r'root ::= "\uD83D\uDE00"', r"is not a character; write one beyond U+FFFF"),
    "an open group of GBNF": ("grammar", "root ::= (", "line 1: ')' is expected before the end"),
    "{3,2}": ("grammar", 'root ::= "a"{3,2}', "the second number must not be the smaller one"),
    "{,2}": ("grammar", 'root ::= "a"{,2}', "a number is expected after '{'"),
    "nothing to repeat": ("grammar", "root ::= *", "there is nothing before it to repeat"),
    "no end": ("grammar", 'root ::= "a" root', "it matches no text"),
    "a token beyond the vocabulary": ("grammar", "root ::= <[999]>", "the ids of this model's tokens end at 272"),
    "a text that is no token": ("grammar", "root ::= <think>", "<think> is not one token of this model"),
    "repetitions that are nested deeply": ("grammar", 'root ::= "a"' + "{2}" * 5_000, "it is nested too deeply"),
    "deep groups": ("grammar", "root ::= " + "(" * 5000 + '"a"' + ")" * 5000, "nested too deeply"),
    "no start": ("grammar", 'x: "a"', "it has no rule named 'start'"),
    "an unknown name of Lark": ("grammar", "start: other", "'other' is not defined"),
    "an error on a line of Lark": ("grammar", 'start: "a"\nstart: "b"', "line 2: 'start' is defined twice"),
    "an option that cannot act": ("grammar", "start[temperature=0.5]: /a+/", "set the request's 'temperature'"),
    "something before the rules": ("grammar", 'start: "a"\n? | "b"', "line 2: the definition of a rule"),
    "an unknown import": ("grammar", "%import common.FOO\nstart: FOO", "'common.FOO' cannot be imported; there are"),
    "%regex of nothing": ("grammar", "start: %regex {}", "what follows %regex must be an object with one of"),
    "another grammar": ("grammar", "start: @other", "'@other' is not defined: a request has one grammar"),
    "a token that is repeated twice": ("grammar", "start: <[5]>**", "is expected before"),
    "a token in a terminal": ("grammar", "start: A\nA: <[5]>", "can only be used in rules"),
    "a token range beyond the vocabulary": ("grammar", "start: <[5-999]>", "the ids of this model's tokens end at 272"),
    "a range that ends before it begins": ("grammar", "start: <[9-5]>", "the range 9-5 ends before it begins"),
    "a schema of nothing but itself": ("json_schema", {"$ref": "#"}, "it matches no text"),
    "oneOf": ("json_schema", {"oneOf": [{"type": "integer"}, {"type": "number"}]}, "use 'anyOf', or tell objects"),
    "oneOf of equal values": ("json_schema", {"oneOf": [{"const": 1}, {"enum": [2, 1.0]}]}, "use 'anyOf'"),
    "oneOf of objects that may have both": (
        "json_schema", {"oneOf": [record(a={}) | {"additionalProperties": True}] * 2}, "use 'anyOf'"
    ),
    "an unknown format": ("json_schema", {"type": "string", "format": "foo"}, "the format 'foo' is not known: use a"),
    "uniqueItems": ("json_schema", {"type": "array", "uniqueItems": True}, "'uniqueItems' is not supported: leave it"),
    "a contradiction": ("json_schema", {"type": "string", "pattern": "^a$", "minLength": 2}, "it matches no text: '"),
    "a wrong kind": ("json_schema", {"type": "integer", "minimum": "5"}, "'minimum' must be a number, not"),
    "a reference to nothing": ("json_schema", {"$ref": "#/$defs/a"}, "'$ref': there is nothing at '#/$defs/a'"),
    "a reference to elsewhere": ("json_schema", {"$ref": "http://x/y"}, "is not in the schema, and nothing is fetched"),
}  # fmt: skip
"""A field, its value, and words of the message."""
INTERNAL = ("NoExtension", "lexer", "llguidance", "f64", "Unimplemented", "x-guidance", "SearchRegex", "start: ", "T0")
"""Words of the library, and of the grammars that are made for it."""


async def asked(app: App, field: str, value: object, preferred: str = "") -> Any:
    """Return the answer to a request whose tokens are preferred in this order, then the end, for which $ stands."""
    bias = {str(END): 20}
    for place, character in enumerate(preferred):
        bias |= {str(END if character == "$" else byte): 100 - 20 * place for byte in character.encode()}
    body = {"model": "toy", "prompt": "x", "temperature": 0, "max_tokens": 40, "logit_bias": bias, field: value}
    return (await post(app, "/v1/completions", **body)).json


@in_loop
async def test_a_notation_means_what_its_reference_says() -> None:
    found: list[tuple[str, str | int, str]] = []
    right: list[tuple[str, str | int, str]] = []
    async with toy_app() as app:
        for field, rows in ACCEPTED:
            for name, (value, preferred, text) in rows.items():
                answer = await asked(app, field, value, preferred)
                [choice] = answer.get("choices", [{"text": str(answer), "finish_reason": "stop"}])
                written = len(choice["text"]) if isinstance(text, int) else choice["text"]
                found.append((name, written, choice["finish_reason"]))
                right.append((name, text, "stop"))
    assert found == right


@in_loop
async def test_what_is_refused_is_refused_in_words_that_say_what_to_do() -> None:
    async with toy_app() as app:
        for name, (field, value, words) in REFUSED.items():
            error = (await asked(app, field, value))["error"]
            assert words in error["message"], name
            assert (error["param"], error["type"]) == (field, "invalid_request_error"), name
            assert not any(word in error["message"] for word in INTERNAL), name


ANIMALS = {"$defs": {"Cat": record(kind={"const": "cat"}), "Dog": record(kind={"enum": ["dog", "wolf"]})}}
ONE_OF: dict[str, tuple[dict[str, Any], str]] = {
    "types": ({"oneOf": [{"type": "integer", "minimum": 5, "maximum": 5}, {"type": "string"}]}, "5"),
    "values": ({"oneOf": [{"const": 1}, {"const": 5}]}, "5"),
    "values and types": ({"oneOf": [{"type": "string"}, {"enum": [5, None]}]}, "5"),
    "1 and true": ({"oneOf": [{"const": True}, {"const": 1}], "not": False}, "1"),
    "discriminated objects behind references": (
        {"oneOf": [{"$ref": "#/$defs/Cat"}, {"$ref": "#/$defs/Dog"}], **ANIMALS}, '{"kind":"dog"}'
    ),
    "a property that the other one may not have": (
        {"oneOf": [record(d={"const": 1}), record(c={"const": 1})]}, '{"d":1}'
    ),
    "options of options": ({"oneOf": [{"anyOf": [{"const": 5}, {"type": "null"}]}, {"type": "string"}]}, "5"),
    "with anyOf": ({"oneOf": [{"const": 5}, {"const": 6}], "anyOf": [{"minimum": 6}, {"const": 5}]}, "5"),
}  # fmt: skip
"""Options of which no value matches two (JSON Schema 2020-12, Core 10.2.1.3), and a text."""


IDLE: dict[str, tuple[dict[str, Any], str]] = {
    "uniqueItems: false": ({"type": "array", "uniqueItems": False, "items": {"const": 1}, "maxItems": 2}, "[]"),
    "uniqueItems of one item": ({"type": "array", "uniqueItems": True, "items": {"const": 1}, "maxItems": 1}, "[]"),
    "not: false": ({"const": 1, "not": False}, "1"),
    "then without if": ({"const": 1, "then": {"const": 2}}, "1"),
    "inside": ({"anyOf": [{"const": 1, "propertyNames": True}]}, "1"),
    "behind a reference": ({"$ref": "#/$defs/a", "$defs": {"a": {"const": 1, "dependentRequired": {}}}}, "1"),
    "a value that looks like one": ({"const": {"uniqueItems": False}}, '{"uniqueItems":false}'),
}
"""Keywords that allow everything (JSON Schema 2020-12, Validation and Core), and the text."""


@in_loop
async def test_a_keyword_that_allows_everything_is_not_refused() -> None:
    async with toy_app() as app:
        for name, (schema, text) in IDLE.items():
            [choice] = (await asked(app, "json_schema", schema, "]"))["choices"]
            assert json.loads(choice["text"]) == json.loads(text), name


@in_loop
async def test_one_of_is_served_where_its_options_exclude_each_other() -> None:
    async with toy_app() as app:
        for name, (schema, text) in ONE_OF.items():
            answer = await asked(app, "json_schema", schema, "51d")
            assert json.loads(answer["choices"][0]["text"]) == json.loads(text), name
