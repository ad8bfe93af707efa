"""Numbers in schemas, compared with jsonschema, whose integers are exact: schemas that are not refused accept the same
values."""

from __future__ import annotations

import json
import random
import re
from decimal import Decimal
from operator import ge, gt, le, lt
from typing import Any

import jsonschema  # type: ignore[import-untyped]
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from onward.constraints.errors import GrammarError
from onward.constraints.json_schema import json_schema_grammar
from onward.constraints.numbers import integer_range
from tests.constraints.test_json_schema import accepts, generate, is_refused
from tests.examples import examples

EDGES = [0, 1, 9, 10, 2**31, 429_496_729, 2**32, 2**53, 10**18, 2**63, 2**64, 10**19, 10**20]
INTEGERS = st.builds(
    lambda edge, sign, offset: sign * edge + offset,
    st.sampled_from(EDGES),
    st.sampled_from([-1, 1]),
    st.integers(-3, 3),
)
FLOATS = st.sampled_from([0.5, -2.5, 1e19, -1e20, 2.0**53, 0.1, 100.0])
"""Each is the number that its shortest digits are: of others, jsonschema compares the double, not the text."""
BOUNDS = INTEGERS | FLOATS
DIVISORS = st.sampled_from([1, 2, 3, 7, 10, 100, 1000, 65536, 65537, 429_496_730, 500_000_000, 2**31, 2**32 - 1])

Schema = dict[str, Any]


@st.composite
def number_schemas(draw: st.DrawFn) -> Schema:
    if draw(st.integers(0, 3)) == 0:
        values = draw(st.lists(INTEGERS | FLOATS | st.booleans(), min_size=1, max_size=3))
        return {"const": values[0]} if draw(st.booleans()) else {"enum": values}
    schema: Schema = {"type": draw(st.sampled_from(["integer", "integer", "number"]))}
    for keyword in ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"):
        if draw(st.integers(0, 2)) == 0:
            schema[keyword] = draw(BOUNDS)
    if schema["type"] == "integer" and draw(st.integers(0, 3)) == 0:
        schema["multipleOf"] = draw(DIVISORS)
    return schema


@st.composite
def wrapped(draw: st.DrawFn) -> tuple[Schema, str]:
    """A schema and the text around a value of it."""
    inner = draw(number_schemas())
    match draw(st.integers(0, 3)):
        case 0:
            return {"type": "object", "properties": {"a": inner}, "required": ["a"]}, '{"a":%s}'
        case 1:
            return {"type": "array", "items": inner, "minItems": 1}, "[%s]"
        case 2:
            return {"$ref": "#/$defs/n", "$defs": {"n": inner}}, "%s"
        case _:
            return inner, "%s"


@settings(max_examples=examples(300), deadline=None)
@given(
    st.integers(-300, 300),
    st.integers(0, 250) | st.just(1),
    st.sampled_from([1, 10, 100]),
    st.sampled_from(["minimum", "exclusiveMinimum", ""]),
    st.sampled_from(["maximum", "exclusiveMaximum", ""]),
    st.sampled_from(["", "1", "0.1", "0.01", "0.05", "0.25", "0.3", "1.5"]),
)
def test_a_decimal_that_is_accepted_is_within_its_bounds(
    low: int, width: int, scale: int, least: str, most: str, divisor: str
) -> None:
    """Also where an integer is excluded and the other bound is close to it, which the library gets wrong."""
    bounds = {least: Decimal(low) / scale, most: (Decimal(low) / scale).to_integral_value() + Decimal(width) / 100}
    bounds = {keyword: value for keyword, value in bounds.items() if keyword}
    schema: Schema = {"type": "number"} | {keyword: json.loads(str(value)) for keyword, value in bounds.items()}
    if divisor:
        schema["multipleOf"] = json.loads(divisor)
    if is_refused(schema):
        return
    compared = {"minimum": ge, "exclusiveMinimum": gt, "maximum": le, "exclusiveMaximum": lt}
    for bound in bounds.values():
        for beside in ("0", "0.01", "-0.01", "0.1", "-0.1", "1", "-1"):
            value = bound + Decimal(beside)
            right = all(compared[keyword](value, each) for keyword, each in bounds.items())
            right = right and not (divisor and value % Decimal(divisor))
            for text in {str(value), f"{value:.2f}", f"{value:.3f}"}:
                assert right or not accepts(schema, text), (schema, text)


@settings(max_examples=examples(150), deadline=None)
@given(wrapped(), st.lists(INTEGERS, min_size=1, max_size=8), st.integers(0, 99))
def test_a_number_is_exact_or_refused(wrapped: tuple[Schema, str], values: list[int], seed: int) -> None:
    schema, around = wrapped
    if is_refused(schema):
        return
    validator = jsonschema.Draft202012Validator(schema)
    for value in values:
        text = around % value
        assert accepts(schema, text) == validator.is_valid(json.loads(text)), (schema, text)
    generated = generate(schema, random.Random(seed))
    if generated is not None:
        validator.validate(json.loads(generated))


@settings(max_examples=examples(400), deadline=None)
@given(INTEGERS, INTEGERS, st.lists(INTEGERS, min_size=1, max_size=8))
def test_a_range_of_integers_has_those_between_its_bounds(low: int, high: int, values: list[int]) -> None:
    expression = integer_range(low, high)
    for value in [low, high, *values]:
        is_between = low <= value <= high
        assert (expression is not None and re.fullmatch(expression, str(value)) is not None) == is_between
    for one, other in ((low, None), (None, high)):
        expression = integer_range(one, other)
        assert expression is not None
        for value in [low, high, *values]:
            is_between = (one is None or one <= value) and (other is None or value <= other)
            assert (re.fullmatch(expression, str(value)) is not None) == is_between


def test_a_count_beyond_the_range_of_doubles_is_refused() -> None:
    """The message is Onward's, not the library's."""
    with pytest.raises(GrammarError, match="maxItems: a number beyond the range of doubles is more than any text has"):
        json_schema_grammar({"type": "array", "maxItems": 10**400})


PATTERNS = st.sampled_from(["^a$", "^(a|b)$", "^[ab]$", "^x", "a", "^a+$", "^$", "b^"])
NAMES = st.sampled_from(["a", "b", "x y", ""])
VALUES = st.sampled_from([True, {"type": "integer", "minimum": 0, "maximum": 3}, {"const": 1}, {"type": "null"}])


@st.composite
def objects(draw: st.DrawFn) -> Schema:
    schema: Schema = {
        "type": "object",
        "properties": draw(st.dictionaries(NAMES, VALUES, max_size=2)),
        "patternProperties": draw(st.dictionaries(PATTERNS, VALUES, max_size=2)),
        "required": draw(st.lists(NAMES, max_size=2, unique=True)),
    }
    if draw(st.booleans()):
        schema["additionalProperties"] = draw(st.sampled_from([False, {"type": "null"}]))
    for keyword in ("minProperties", "maxProperties"):
        if draw(st.integers(0, 2)) == 0:
            schema[keyword] = draw(st.integers(0, 3))
    return schema


@settings(max_examples=examples(150), deadline=None)
@given(objects(), st.integers(0, 99))
def test_objects_with_patterns_have_no_dead_ends(schema: Schema, seed: int) -> None:
    """`generate` fails where no token is allowed and the text may not end."""
    if is_refused(schema):
        return
    for number in range(3):
        text = generate(schema, random.Random(seed + number))
        if text is not None:
            jsonschema.validate(json.loads(text), schema)
