"""Constrained output: texts that match their constraint, and constraints that are refused."""

from __future__ import annotations

import json
from typing import Any

from .table import Area, Expect, choices, finishes, says, text_is

AREA = Area("Constrained output", "§10")
DOCS = "docs.vllm.ai, Structured Outputs; platform.openai.com, Structured Outputs; llama.cpp grammars/README.md"
SCHEMA = {
    "type": "object",
    "properties": {"a": {"enum": ["x", "y"]}, "b": {"type": "boolean"}},
    "required": ["a", "b"],
    "additionalProperties": False,
}
NAMED = {"type": "json_schema", "json_schema": {"name": "answer", "strict": True, "schema": SCHEMA}}
GBNF = 'root ::= "yes" | "no"'
LONG = {"max_tokens": 64, "temperature": 1, "seed": 3}


def _valid() -> Expect:
    def holds(value: object) -> bool:
        return isinstance(value, dict) and list(value) == ["a", "b"] and value["a"] in ("x", "y")

    return says("valid by the schema", lambda answer: all(holds(json.loads(text)) for text in answer.texts))


def _one_of(*texts: str) -> Expect:
    return says(" or ".join(texts), lambda answer: all(text in texts for text in answer.texts))


JSON_FIELDS: dict[str, dict[str, Any]] = {
    "json_schema.object": {"json_schema": SCHEMA},
    "json_schema.text": {"json_schema": json.dumps(SCHEMA)},
    "response_format.json_schema": {"response_format": NAMED},
    "response_format.schema": {"response_format": {"type": "json_object", "schema": SCHEMA}},
    "guided_json": {"guided_json": SCHEMA},
    "structured_outputs.json": {"structured_outputs": {"json": SCHEMA}},
}
for _id, _fields in JSON_FIELDS.items():
    AREA.served(
        _id, "the text is JSON that is valid by the schema", {**LONG, **_fields, "n": 3},
        _valid(), finishes("stop"), choices(3), source=DOCS,
    )  # fmt: skip
AREA.served(
    "whitespace", "without white space",
    {**LONG, "json_schema": {"const": {"a": [1, 2]}}, "disable_any_whitespace": True},
    text_is('{"a":[1,2]}'), finishes("stop"), source=DOCS,
)  # fmt: skip
TEXT_FIELDS: dict[str, dict[str, Any]] = {
    "choice": {"choice": ["yes", "no"]},
    "guided_choice": {"guided_choice": ["yes", "no"]},
    "regex": {"regex": "yes|no"},
    "guided_regex": {"guided_regex": "yes|no"},
    "grammar": {"grammar": GBNF},
    "grammar.lark": {"grammar": 'start: "yes" | "no"'},
    "guided_grammar": {"guided_grammar": GBNF},
    "ebnf": {"ebnf": GBNF},
    "structured_outputs.choice": {"structured_outputs": {"choice": ["yes", "no"]}},
    "structured_outputs.regex": {"structured_outputs": {"regex": "yes|no"}},
    "structured_outputs.grammar": {"structured_outputs": {"grammar": GBNF}},
}
for _id, _fields in TEXT_FIELDS.items():
    AREA.served(
        _id, "the text matches, and ends where nothing can follow", {**LONG, **_fields, "n": 2, "best_of": 3},
        _one_of("yes", "no"), finishes("stop"), source=DOCS,
    )  # fmt: skip
AREA.served(
    "length", "max_tokens cuts it", {"choice": ["abcdef"], "max_tokens": 2}, text_is("ab"), finishes("length"),
    source=DOCS,
)  # fmt: skip
AREA.served(
    "response_format.text", "response_format text constrains nothing",
    {"logit_bias": {"122": 100}, "response_format": {"type": "text"}, "max_tokens": 2}, text_is("zz"),
    source=DOCS,
)  # fmt: skip
AREA.refused(
    "several", "several constraints are refused", {"regex": "a", "choice": ["b"]},
    "Setting 'regex' and 'choice' at the same time is not supported.", param="choice", source=DOCS,
)  # fmt: skip
for _other, _value in (
    ("ignore_eos", True), ("ban_eos_token", True), ("min_tokens", 2), ("allowed_token_ids", [97]),
    ("banned_tokens", [97]), ("bad_words", ["a"]),
):  # fmt: skip
    AREA.refused(
        f"with.{_other}", "what could leave no token that the grammar allows is refused",
        {"regex": "a+", _other: _value},
        f"Setting '{_other}' and 'regex' at the same time is not supported.", param=_other, source=DOCS,
    )  # fmt: skip
AREA.refused(
    "regex.invalid", "an expression that cannot be compiled is refused with the reason", {"regex": "("},
    "Invalid 'regex': the expression ( is not valid: unclosed group.", param="regex", source=DOCS,
)  # fmt: skip
AREA.refused(
    "regex.backslash", "a backslash that escapes nothing is refused", {"regex": "a\\"},
    "Invalid 'regex': it ends with a backslash, which escapes nothing; write \\\\ for a backslash.", param="regex",
    source="docs.rs, regex 1, Syntax",
)  # fmt: skip
AREA.refused(
    "json_schema.invalid", "a schema that cannot be compiled is refused with the reason, also as a stream",
    {"json_schema": {"not": {}}, "stream": True},
    "Invalid 'json_schema': 'not' is not supported: leave it out, and check the text afterwards.",
    param="json_schema", source=DOCS,
)  # fmt: skip
AREA.refused(
    "json_schema.nothing", "a schema that no text fulfils is refused", {"json_schema": {"$ref": "#"}},
    "Invalid 'json_schema': it matches no text: the $ref '#' leads back to itself.", param="json_schema", source=DOCS,
)  # fmt: skip
GBNF_ROWS: dict[str, tuple[str, str, str]] = {
    "escape": ("escapes have all of their digits", r'root ::= "\u0041b\U0001F600"', "Ab😀"),
    "rule": ("what a rule could take may belong to what follows", 'root ::= t "b"\nt ::= [ab]+', "bb"),
    "names": ("names of rules are told apart as they are written", 'root ::= start Start 1st\nstart ::= "a"\n'
              'Start ::= "b"\n1st ::= "c"', "abc"),
    "set": ("in a set, only ^, -, ] and a backslash mean something", "root ::= [&-&] [[] [+-+]", "&[+"),
    "repeat": ("groups are repeated, also no times", 'root ::= ("a" | "b"){0} ("c"){2}', "cc"),
}  # fmt: skip
for _id, (_says, _grammar, _text) in GBNF_ROWS.items():
    AREA.served(
        f"gbnf.{_id}", _says, {"grammar": _grammar, "logit_bias": {"256": 100, "98": 50}},
        text_is(_text), finishes("stop"), source="llama.cpp grammars/README.md, src/llama-grammar.cpp",
    )  # fmt: skip
AREA.refused(
    "response_format.unknown", "an unknown format is refused", {"response_format": {"type": "xml"}},
    "Invalid value: 'xml'. Supported values are: 'text', 'json_object', 'json_schema'.",
    param="response_format.type", code="invalid_value", source=DOCS,
)  # fmt: skip
