"""JSON Schema, keyword by keyword: texts that are not valid are never complete, and what is generated is valid."""

from __future__ import annotations

import json
import random
from functools import lru_cache
from typing import Any

import jsonschema  # type: ignore[import-untyped]
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from onward.constraints.errors import GrammarError
from onward.constraints.grammar import check
from onward.constraints.json_schema import json_schema_grammar
from onward.constraints.matcher import MaskBuffer, Matcher, TokenTrie
from onward.constraints.tokens import byte_tokens
from onward.sampling.masks import unpack_mask
from tests.examples import UNICODE, examples, slow_but

BYTES = TokenTrie(byte_tokens())
NO_ENDS = np.zeros(9, np.uint32)
TREE = {"type": "object", "properties": {"v": {"type": "integer"}, "n": {"$ref": "#/$defs/tree"}}}
DEFINITIONS = {"$defs": {"tree": TREE}}
CASES: list[tuple[dict[str, Any], list[Any], list[Any]]] = [
    ({"type": "integer"}, [0, -12], [1.5, "1", None, True]),
    ({"type": "number"}, [0, 1.5, -2e10], ["1", None]),
    ({"type": ["string", "null"]}, ["", None], [1, []]),
    ({"type": "boolean"}, [True, False], [0, "true"]),
    ({"enum": [1, "é", None, {"a": [1]}]}, [1, "é", None, {"a": [1]}], [2, "e", {"a": [2]}]),
    ({"const": "a/b\n"}, ["a/b\n"], ["a/b", "a/bn"]),
    ({"type": "integer", "minimum": -3, "exclusiveMaximum": 10}, [-3, 0, 9], [-4, 10, 100]),
    ({"type": "number", "exclusiveMinimum": 0.5, "maximum": 2}, [0.51, 2, 1], [0.5, 2.1, -1]),
    ({"type": "integer", "multipleOf": 5}, [0, 15], [7]),
    ({"type": "string", "minLength": 1, "maxLength": 3}, ["a", "é🙂b"], ["", "abcd"]),
    ({"type": "string", "pattern": "^[a-c]+[0-9]$"}, ["ab1"], ["", "1", "ab", "xab1"]),
    ({"type": "string", "format": "date"}, ["2026-11-24"], ["2026-13-01", "24.11."]),
    ({"type": "string", "format": "uuid"}, ["2eb8aa08-aa98-11ea-b4aa-73b441d16380"], ["2eb8"]),
    ({"type": "array", "items": {"type": "null"}, "minItems": 1, "maxItems": 2}, [[None]], [[], [None] * 3, [1]]),
    ({"type": "array", "prefixItems": [{"type": "string"}], "items": False}, [["a"]], [[1], ["a", 1]]),
    (
        {"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"], "additionalProperties": False},
        [{"a": "x"}],
        [{}, {"a": 1}, {"a": "x", "b": 1}],
    ),
    ({"type": "object", "additionalProperties": {"type": "integer"}}, [{}, {"x": 1, "y": 2}], [{"x": "1"}]),
    ({"patternProperties": {"^x": {"type": "integer"}}, "additionalProperties": False}, [{"xa": 1}], [{"y": 1}]),
    ({"anyOf": [{"type": "integer"}, {"type": "string", "maxLength": 1}]}, [3, "a"], ["ab", 1.5]),
    ({"allOf": [{"type": "integer", "minimum": 2}, {"maximum": 4}]}, [2, 4], [1, 5]),
    ({"oneOf": [{"type": "integer"}, {"type": "string"}]}, [1, "a"], [None]),
    ({"$ref": "#/$defs/tree", **DEFINITIONS}, [{"v": 1, "n": {"v": 2}}, {}], [{"v": "1"}, {"n": {"v": 1.5}}]),
]  # fmt: skip


def is_refused(schema: dict[str, Any]) -> bool:
    """Whether a schema is refused. Checks that the message is one line."""
    try:
        problem = check(json_schema_grammar(schema))
    except GrammarError as error:
        problem = str(error)
    assert "\n" not in (problem or "")
    return bool(problem)


@lru_cache(1)
def _compiled(grammar: str) -> Matcher:
    """Many texts are tried with one grammar after the other."""
    return BYTES.compile(grammar)


def accepts(schema: dict[str, Any], text: str) -> bool:
    """Whether a text can be generated, and may end there."""
    matcher, tokens = _compiled(json_schema_grammar(schema)).copy(), list(text.encode())
    if matcher.count_valid(tokens) < len(tokens):
        return False
    for token in tokens:
        matcher.consume(token)
    return bool(matcher.library.is_accepting())


def generate(schema: dict[str, Any], rng: random.Random, max_bytes: int = 300) -> str | None:
    """A text that is drawn by the masks, a byte at a time; None if it is not complete after this many bytes."""
    matcher, buffer = BYTES.compile(json_schema_grammar(schema)), MaskBuffer(BYTES)
    text = bytearray()
    while len(text) < max_bytes:
        may_end = matcher.library.is_accepting()
        if matcher.is_complete or (may_end and rng.random() < 0.5):
            return text.decode()
        [masks] = buffer.compute([(matcher, [], NO_ENDS)])
        allowed = np.flatnonzero(unpack_mask(masks[0], 256)).tolist()
        if not allowed:
            assert may_end
            return text.decode()
        text.append(rng.choice(allowed))
        matcher.consume(text[-1])
        assert not matcher.error
    return None


@pytest.mark.parametrize(("schema", "valid", "invalid"), CASES, ids=lambda each: json.dumps(each)[:60])
def test_a_keyword_allows_what_is_valid_and_nothing_else(
    schema: dict[str, Any], valid: list[Any], invalid: list[Any]
) -> None:
    for value in valid:
        jsonschema.validate(value, schema)
        assert accepts(schema, json.dumps(value, ensure_ascii=False)), value
    for value in invalid:
        assert not accepts(schema, json.dumps(value, ensure_ascii=False)), value


@pytest.mark.parametrize("index", ["1", "²", "١", "9" * 5000, "-1", ""], ids=ascii)
def test_a_reference_into_an_array_that_leads_nowhere_is_refused(index: str) -> None:
    schema = {"properties": {"a": {"$ref": f"#/anyOf/{index}"}}, "anyOf": [{"type": "object"}]}
    assert is_refused(schema)
    assert not is_refused({"properties": {"a": {"$ref": "#/anyOf/0/items"}}, "anyOf": [{"items": {"type": "null"}}]})


SCHEMAS = [case[0] for case in CASES]


@pytest.mark.parametrize("schema", slow_but(SCHEMAS[::3], SCHEMAS), ids=lambda each: json.dumps(each)[:60])
def test_what_is_generated_by_a_keyword_is_valid(schema: dict[str, Any]) -> None:
    rng = random.Random(json.dumps(schema))
    texts = [text for _ in range(12) if (text := generate(schema, rng)) is not None]
    for text in texts:
        jsonschema.validate(json.loads(text), schema)
    assert texts


names = st.sampled_from(["a", "b", "name", "é", "with space", ""])
values = st.none() | st.booleans() | st.integers() | st.text(UNICODE, max_size=3)


def integers(low: int, size: int) -> dict[str, Any]:
    return {"type": "integer", "minimum": low, "maximum": low + size}


def strings(low: int, size: int) -> dict[str, Any]:
    return {"type": "string", "minLength": low, "maxLength": low + size}


def objects(properties: dict[str, Any], required: list[str], closed: bool) -> dict[str, Any]:
    schema = {"type": "object", "properties": properties, "required": [each for each in required if each in properties]}
    return schema | {"additionalProperties": False} if closed else schema


leaves: st.SearchStrategy[dict[str, Any]] = st.one_of(
    st.sampled_from([{"type": "null"}, {"type": "boolean"}, {"type": "integer"}, {"type": "number"}, {}]),
    st.builds(integers, st.integers(-99, 99), st.integers(0, 99)),
    st.builds(strings, st.integers(0, 2), st.integers(0, 3)),
    st.builds(lambda options: {"enum": options}, st.lists(values, min_size=1, max_size=4)),
)
schemas = st.recursive(
    leaves,
    lambda inner: st.one_of(
        st.builds(
            objects, st.dictionaries(names, inner, max_size=4), st.lists(names, max_size=3, unique=True), st.booleans()
        ),
        st.builds(lambda items, most: {"type": "array", "items": items, "maxItems": most}, inner, st.integers(0, 3)),
        st.builds(lambda options: {"anyOf": options}, st.lists(inner, min_size=1, max_size=3)),
    ),
    max_leaves=8,
)


@settings(max_examples=examples(60), deadline=None)
@given(schemas, st.randoms(use_true_random=False))
def test_any_schema_is_refused_or_what_is_generated_is_valid(schema: dict[str, Any], rng: random.Random) -> None:
    if is_refused(schema):
        return
    text = generate(schema, rng)
    if text is not None:
        jsonschema.validate(json.loads(text), schema)
