"""Grammars that are designed to take long: each is refused, ends in an error, or is matched within the library's
limits.

The limits are counters, so what is refused does not depend on the machine. A guard only keeps the suite from hanging.
"""

from __future__ import annotations

import random
from collections.abc import Callable

import numpy as np
import pytest

from onward.constraints.errors import GrammarError
from onward.constraints.grammar import check, regex_grammar
from onward.constraints.json_schema import json_schema_grammar
from onward.constraints.matcher import MaskBuffer, TokenTrie
from onward.constraints.tokens import byte_tokens
from onward.sampling.masks import unpack_mask
from tests.constraints.test_grammar import gbnf_or_lark
from tests.examples import slow_but

BYTES = TokenTrie(byte_tokens())
NUM_TOKENS = 60

Build = Callable[[], str]
REFUSED: dict[str, Build] = {
    "nested schema": lambda: json_schema_grammar(_nested(400)),
    "product of options": lambda: json_schema_grammar({"allOf": [_options(name) for name in "abcdefghijkl"]}),
    "patterns that all must match": lambda: json_schema_grammar(
        {"allOf": [{"type": "string", "pattern": f"^.*[{chr(97 + i)}].{{{i * 3 + 5}}}"} for i in range(12)]}
    ),
    "references in a circle": lambda: json_schema_grammar(
        {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}}
    ),
    "rules in a circle": lambda: gbnf_or_lark("start: x\nx: y\ny: x\n"),
}
BOUNDED: dict[str, Build] = {
    "a long repetition": lambda: regex_grammar("b?a{1000000}"),
    "nested repetitions": lambda: regex_grammar("((a|b){1,1000}c?){1000}"),
    "states that double": lambda: regex_grammar("(.*a.{20}b.{20})*x"),
    "long arrays and strings": lambda: json_schema_grammar(
        {"type": "array", "minItems": 10**8, "items": {"type": "string", "minLength": 10**7}}
    ),
    "many options": lambda: json_schema_grammar(
        {"anyOf": [{"type": "object", "properties": {f"k{i}": {}}, "required": [f"k{i}"]} for i in range(300)]}
    ),
    "references that double": lambda: json_schema_grammar(
        {
            "$ref": "#/$defs/d0",
            "$defs": {f"d{i}": {"allOf": [{"$ref": f"#/$defs/d{i + 1}"}] * 2} for i in range(28)}
            | {"d28": {"type": "integer"}},
        }
    ),
    "a primorial": lambda: json_schema_grammar(
        {"allOf": [{"type": "integer", "multipleOf": prime} for prime in (7919, 7907, 7901, 7883)]}
    ),
    "an ambiguous grammar": lambda: gbnf_or_lark('root ::= root root | "a" | "aa" | ""'),
    "many alternatives": lambda: gbnf_or_lark('root ::= "x" | ' + " | ".join(f'"a{i}" root' for i in range(2000))),
    "nested groups that repeat": lambda: gbnf_or_lark("root ::= " + "(" * 90 + "[ab]" + ")*)+" * 45),
    "rules that double": lambda: gbnf_or_lark(
        "root ::= r0\n" + "".join(f"r{i} ::= r{i + 1} r{i + 1}\n" for i in range(28)) + 'r28 ::= "a" | "(" root ")"'
    ),
    "a long chain of rules": lambda: gbnf_or_lark(
        "root ::= r0\n" + "".join(f'r{i} ::= "a" r{i + 1}?\n' for i in range(450)) + 'r450 ::= "b" | "(" root ")"'
    ),
    "many sets in a circle": lambda: gbnf_or_lark(
        'root ::= "(" root ")" | ' + " | ".join(f"[\\x{i:02x}-z]+ [a-\\xf0]*" for i in range(32, 110))
    ),
    "a long literal": lambda: gbnf_or_lark('root ::= "' + '\\"' * 20_000 + '"'),
}


def _nested(depth: int) -> dict[str, object]:
    schema: dict[str, object] = {}
    for _ in range(depth):
        schema = {"type": "array", "items": schema}
    return schema


def _options(name: str) -> dict[str, object]:
    return {"anyOf": [{"properties": {f"{name}{i}": {"type": "string"}}} for i in range(4)]}


@pytest.mark.parametrize("name", REFUSED)
def test_what_exceeds_a_limit_is_refused_before_it_is_matched(name: str) -> None:
    try:
        problem = check(REFUSED[name]())
    except GrammarError as error:
        problem = str(error)
    assert problem and "\n" not in problem and len(problem) <= 500


@pytest.mark.parametrize("name", slow_but([*BOUNDED][::2], BOUNDED))
def test_what_is_matched_is_matched_within_limits(name: str) -> None:
    try:
        first = BYTES.compile(BOUNDED[name]())
    except GrammarError:
        return
    buffer, no_ends = MaskBuffer(BYTES), np.zeros(9, np.uint32)
    for seed in range(2):
        matcher, rng = first.copy(), random.Random(seed)
        for _ in range(NUM_TOKENS):
            [masks] = buffer.compute([(matcher, [], no_ends)])
            allowed = np.flatnonzero(unpack_mask(masks[0], 256)).tolist()
            if matcher.error or matcher.is_complete or not allowed:
                break
            matcher.consume(rng.choice(allowed))
        assert not matcher.error or "too" in matcher.error or "max" in matcher.error or "limit" in matcher.error
