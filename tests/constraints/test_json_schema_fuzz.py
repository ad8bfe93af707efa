"""Schemas whose keywords are combined at random: each is refused with the reason, or every text that is
generated is valid, and so is every value that the grammar accepts.

hypothesis-jsonschema would draw such schemas, but its last release, 0.23.1, fails on schemas of objects with hypothesis
6.170.
"""

from __future__ import annotations

import json
import random
from typing import Any

import jsonschema  # type: ignore[import-untyped]
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.constraints.test_json_schema import accepts, generate, is_refused
from tests.examples import examples

Schema = dict[str, Any]
Schemas = st.SearchStrategy[Any]
KINDS = st.sampled_from(["null", "boolean", "integer", "number", "string", "array", "object"])
NAMES = st.sampled_from(["a", "b", "x y", "é", ""])
VALUES = st.sampled_from([None, True, 0, 1.5, "", "é", "2026-11-24", [], [1], [1, 1], {}, {"a": 1}]) | st.integers(
    -20, 20
)
SIZES, BOUNDS = st.integers(0, 4), st.integers(-20, 20)
LEAVES: dict[str, Schemas] = {
    "type": KINDS | st.lists(KINDS, min_size=1, max_size=3, unique=True),
    "enum": st.lists(VALUES, min_size=1, max_size=3),
    "const": VALUES,
    "pattern": st.sampled_from(["^a+$", "b", "^[0-9]{2}$", "^[a-z]*$"]),
    "format": st.sampled_from(["date", "time", "uuid", "ipv4", "hostname", "email"]),
    "multipleOf": st.sampled_from([1, 2, 5, 0.5]),
    "required": st.lists(NAMES, max_size=2, unique=True),
    "uniqueItems": st.booleans(),
    **dict.fromkeys(("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"), BOUNDS),
    **dict.fromkeys(("minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties"), SIZES),
}


def combined(keywords: dict[str, Schemas], most: int) -> st.SearchStrategy[Schema]:
    """At most this many of the keywords."""
    names = st.lists(st.sampled_from(sorted(keywords)), max_size=most, unique=True)
    return names.flatmap(lambda chosen: st.fixed_dictionaries({name: keywords[name] for name in chosen}))


def nested(inner: Schemas) -> st.SearchStrategy[Schema]:
    several = st.lists(inner, min_size=1, max_size=2)
    keywords = {
        **LEAVES,
        **dict.fromkeys(("items", "additionalProperties"), inner),
        **dict.fromkeys(("anyOf", "oneOf", "allOf", "prefixItems"), several),
        "properties": st.dictionaries(NAMES, inner, max_size=3),
    }
    return combined(keywords, 4)


SCHEMAS = nested(st.recursive(st.booleans() | combined(LEAVES, 3), nested, max_leaves=3))


@settings(max_examples=examples(150), deadline=None)
@given(SCHEMAS, st.lists(VALUES, max_size=6), st.integers(0, 99))
def test_what_keywords_in_any_combination_allow_is_valid(schema: Schema, values: list[Any], seed: int) -> None:
    validator = jsonschema.Draft202012Validator(schema)
    if is_refused(schema):
        return
    for value in values:
        if accepts(schema, json.dumps(value, ensure_ascii=False)):
            validator.validate(value)
    text = generate(schema, random.Random(seed))
    if text is not None:
        validator.validate(json.loads(text))
