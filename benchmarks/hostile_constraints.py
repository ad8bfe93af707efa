"""Constraints that once ended or held a server, as fields of a request. Each is refused, or answered within limits."""

from __future__ import annotations

import json
from typing import Any

Fields = dict[str, Any]


def _chain(length: int) -> Fields:
    """A schema whose references lead from one definition to the next."""
    links = {f"d{index}": {"items": {"$ref": f"#/$defs/d{index + 1}"}} for index in range(length)}
    return {"$ref": "#/$defs/d0", "$defs": links | {f"d{length}": {"type": "null"}}}


def _rules(length: int) -> str:
    return "start: r0\n" + "".join(f"r{index}: r{index + 1}\n" for index in range(length)) + f'r{length}: "a"'


def _empty_rules(count: int) -> str:
    """Rules that may all be empty, in front of a letter that must come next."""
    names = [f"n{index}" for index in range(count)]
    rules = "".join(f'{name}: ""|"b"\n' for name in names)
    return f'start: ("x"|"y") s{{50}} "z"\ns: "a" {" ".join(names)}\n{rules}'


HOSTILE_CONSTRAINTS: dict[str, Fields] = {
    "a const of 64 bits": {"json_schema": {"const": -(2**63)}},
    "bounds of 64 bits": {
        "json_schema": {"properties": {"a": {"type": "integer", "minimum": -1e30, "maximum": -1e29}}}
    },
    "a const of 64 bits in Lark": {"grammar": f"start: %json {json.dumps({'const': -(2**63)})}"},
    "a divisor that never ends": {"json_schema": {"type": "integer", "multipleOf": 2**31}},
    "a divisor that takes long": {"json_schema": {"type": "integer", "multipleOf": 1_000_003}},
    "references that lead deep": {"json_schema": _chain(1012)},
    "objects inside of objects": {"json_schema": '{"items":' * 5000 + "{}" + "}" * 5000},
    "an enum of arrays": {"json_schema": {"enum": [[[number]] for number in range(3000)]}},
    "an array without end": {"json_schema": {"type": "array", "minItems": 10**9, "items": {"minLength": 10**9}}},
    "a schema that is itself": {"json_schema": {"$ref": "#"}},
    "rules that lead deep": {"grammar": _rules(2673)},
    "groups inside of groups": {"grammar": "root ::= " + "(" * 5000 + '"a"' + ")" * 5000},
    "an ambiguous grammar": {"grammar": 'start: e\ne: e e | e e e | /[a-z ]/ | "(" e ")"'},
    "an ambiguous grammar in GBNF": {"grammar": 'root ::= root root | "a" | "aa" | ""'},
    "a forced text of ambiguous counts": {
        "grammar": 'start: ("x"|"y") q{200} "z"\nq: p | p p\np: "a" | "a" "a" | "a" "a" "a"'
    },
    "a forced text between empty rules": {"grammar": _empty_rules(2500)},
    "a long forced text": {"regex": "[xy]" + "abcdefg" * 9_000},
    "many optional letters": {"regex": "a?" * 30_000},
    "many repeated letters": {"regex": "a*" * 20_000},
    "repetitions of repetitions": {"regex": "((a{100}){100}){100}"},
    "states that double": {"regex": "(.*a.{20}b.{20})*x"},
}
