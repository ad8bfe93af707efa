"""The grammar of a JSON schema. What the library would round, clamp, overflow or find out too late is written
differently, or refused."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from onward.constraints import numbers
from onward.constraints.errors import GrammarError
from onward.constraints.grammar import DEFAULT_WHITESPACE, bounded, choice_grammar
from onward.constraints.key_patterns import remove_exhausted_patterns
from onward.constraints.one_of import replace_one_of
from onward.constraints.schema_walk import Schema, check_size, schemas

_ANNOTATIONS = {"$schema", "$id", "$comment", "title", "description", "default", "examples", "$defs", "definitions"}
_COUNTS = ("minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties")
_COMBINED = ("allOf", "$ref", "anyOf", "oneOf")
_TYPES: dict[str, tuple[type, ...]] = {
    "null": (type(None),),
    "boolean": (bool,),
    "integer": (int,),
    "number": (int, float),
    "string": (str,),
    "array": (list,),
    "object": (dict,),
}


def json_schema_grammar(schema: object, *, whitespace: str | None = DEFAULT_WHITESPACE) -> str:
    """Return the grammar of JSON texts that are valid by `schema`, decoded JSON.

    `whitespace`: a regular expression of what may stand between the tokens of JSON; None: nothing. A schema's own
    `x-guidance` wins. Raises GrammarError. Uses the library only for `patternProperties`.
    """
    if schema is True:
        schema = {}
    if not isinstance(schema, dict):
        raise GrammarError("a JSON schema must be an object or true")
    check_size(schema)
    exact = _values_grammar(schema) or _integer_grammar(schema)
    if exact is not None:
        return bounded(exact)
    _check(schema)
    own: Schema = json.loads(json.dumps(schema))  # the other one belongs to the caller
    for each in list(schemas(own)):
        _write_whole_counts(each)
        remove_exhausted_patterns(each)
        remove_idle(each)
    _write_bounds(own)
    replace_one_of(own)
    options: dict[str, object] = (
        {"whitespace_flexible": False} if whitespace is None else {"whitespace_pattern": whitespace}
    )
    if isinstance(own.get("x-guidance"), dict):
        options |= own["x-guidance"]
    return bounded(f"start: %json {json.dumps(own | {'x-guidance': options})}")


def check_embedded(grammar: str) -> None:
    """Raise GrammarError if a grammar in Lark contains a JSON schema that the library would change."""
    place = grammar.find("%json")
    while place >= 0:
        start = place + len("%json")
        start += len(grammar[start:]) - len(grammar[start:].lstrip())
        with suppress(ValueError):  # what is not JSON is the library's to refuse
            schema, _ = json.JSONDecoder().raw_decode(grammar, start)
            if isinstance(schema, dict):
                check_size(schema)
                _check(schema)
                for each, keyword in _admitted_ends(schema):
                    raise GrammarError(
                        f"{keyword}: {each[keyword]} cannot be kept so near to the other bound; write it with a "
                        "fraction, such as 0.000001 instead of 0"
                    )
        place = grammar.find("%json", start)


def _check(root: Schema) -> None:
    """Raise GrammarError for what the library would change."""
    divisors: list[numbers.Number] = []
    is_combined = False
    for schema in schemas(root):
        for keyword in numbers.BOUNDS:
            if numbers.is_number(schema.get(keyword)):
                numbers.check_bound(keyword, schema[keyword])
        if numbers.is_number(schema.get("multipleOf")):
            numbers.check_multiple(schema["multipleOf"])
            divisors.append(schema["multipleOf"])
        for keyword in _COUNTS:
            numbers.check_count(keyword, schema.get(keyword))
        if not isinstance(schema.get("x-guidance", {}), dict):
            raise GrammarError("'x-guidance' must be an object")
        for keyword in ("const", "enum"):
            for number in _numbers_in(schema.get(keyword)):
                numbers.check_literal(keyword, number)
        is_combined = is_combined or any(keyword in schema for keyword in _COMBINED)
        _check_min_properties(schema)
    if is_combined:
        numbers.check_common_multiple(divisors)


_OPPOSITE = {
    "exclusiveMinimum": ("maximum", "exclusiveMaximum"),
    "exclusiveMaximum": ("minimum", "exclusiveMinimum"),
}


def _admitted_ends(root: Schema) -> list[tuple[Schema, str]]:
    """Return where the library would admit a number that is excluded: schemas inside of one, and their keywords."""
    every = list(schemas(root))
    found = []
    for keyword, opposite in _OPPOSITE.items():
        others = [schema[name] for schema in every for name in opposite if numbers.is_number(schema.get(name))]
        bounded = [schema for schema in every if numbers.is_number(schema.get(keyword))]
        found += [(each, keyword) for each in bounded if numbers.admitted_end(keyword, each[keyword], others)]
    return found


def _write_bounds(root: Schema) -> None:
    """Write bounds so that the library keeps them."""
    for schema in schemas(root):
        bounds = {keyword: schema[keyword] for keyword in numbers.BOUNDS if numbers.is_number(schema.get(keyword))}
        if bounds and numbers.is_number(divisor := schema.get("multipleOf")):
            for keyword in bounds:
                del schema[keyword]
            ends = numbers.multiples_within(divisor, bounds)
            if schema is root and schema.get("type") in ("integer", "number") and numbers.are_crossed(ends):
                shown = numbers.shown_bounds(bounds)
                raise GrammarError(f"it matches no text: no multiple of {divisor} is within {shown}")
            schema |= ends
    for schema, keyword in _admitted_ends(root):
        schema[keyword] = numbers.just_inside(keyword, schema[keyword])


def _check_min_properties(schema: Schema) -> None:
    """Raise GrammarError where a text could have enough properties by repeating one: a grammar cannot count different
    names that are free."""
    least, required = schema.get("minProperties"), schema.get("required")
    if not numbers.is_number(least) or _has_fixed_names(schema):
        return
    num_required = len(set(map(str, required))) if isinstance(required, list) else 0
    if schema["minProperties"] > num_required + 1:
        raise GrammarError(
            f"minProperties: {least} cannot be kept where names are free, because a name may be repeated; list names "
            "in 'required', or set 'additionalProperties' to false"
        )


def _has_fixed_names(schema: Schema) -> bool:
    return schema.get("additionalProperties") is False and not schema.get("patternProperties")


def _values_grammar(schema: Schema) -> str | None:
    """Return the grammar of a schema that lists its values, where the library would change one; None for others."""
    if ("const" in schema) == ("enum" in schema) or not schema.keys() <= _ANNOTATIONS | {"const", "enum", "type"}:
        return None
    values = [schema["const"]] if "const" in schema else schema["enum"]
    if not isinstance(values, list) or all(map(numbers.is_exact_literal, _numbers_in(values))):
        return None
    if not all(map(numbers.is_finite, _numbers_in(values))):
        return None
    kept = [value for value in values if _has_type(value, schema.get("type"))]
    if not kept:
        raise GrammarError("it matches no text: no value of it has its type")
    texts = (json.dumps(value, ensure_ascii=False, separators=(",", ":")) for value in kept)
    return choice_grammar([*texts])


def _integer_grammar(schema: Schema) -> str | None:
    """Return the grammar of a schema that is one integer, where the library would change a bound; None for others."""
    if schema.get("type") != "integer" or not schema.keys() <= _ANNOTATIONS | {"type", *numbers.BOUNDS}:
        return None
    bounds = {keyword: schema[keyword] for keyword in numbers.BOUNDS if keyword in schema}
    if not all(numbers.is_number(value) and numbers.is_finite(value) for value in bounds.values()):
        return None
    if all(map(numbers.is_exact_bound, bounds.values())):
        return None
    lows = [math.ceil(bounds["minimum"])] if "minimum" in bounds else []
    lows += [math.floor(bounds["exclusiveMinimum"]) + 1] if "exclusiveMinimum" in bounds else []
    highs = [math.floor(bounds["maximum"])] if "maximum" in bounds else []
    highs += [math.ceil(bounds["exclusiveMaximum"]) - 1] if "exclusiveMaximum" in bounds else []
    expression = numbers.integer_range(max(lows, default=None), min(highs, default=None))
    if expression is None:
        raise GrammarError("it matches no text: no integer is within its bounds")
    return f"start: /{expression}/"


def _write_whole_counts(schema: Schema) -> None:
    """Write counts such as 2.0 as the integers that they are."""
    for keyword in _COUNTS:
        if numbers.is_number(schema.get(keyword)):
            schema[keyword] = numbers.whole(schema[keyword])


def _has_type(value: object, types: object) -> bool:
    names = types if isinstance(types, list) else [types]
    if isinstance(value, bool):
        return types is None or "boolean" in names
    number = numbers.whole(value) if isinstance(value, float) else value
    return types is None or any(isinstance(number, _TYPES.get(name, ())) for name in names if isinstance(name, str))


def _numbers_in(value: object) -> list[numbers.Number]:
    """Return the numbers inside of a value."""
    found: list[numbers.Number] = []
    waiting: list[Any] = [value]
    while waiting:
        one = waiting.pop()
        if numbers.is_number(one):
            found.append(one)
        elif isinstance(one, (dict, list)):
            waiting += one.values() if isinstance(one, dict) else one
    return found


_IDLE: dict[str, Callable[[Any, Schema], bool]] = {
    "uniqueItems": lambda value, schema: value is False or (value is True and _is_at_most_one(schema.get("maxItems"))),
    "not": lambda value, schema: value is False,
    "if": lambda value, schema: "then" not in schema and "else" not in schema,
    "then": lambda value, schema: "if" not in schema,
    "else": lambda value, schema: "if" not in schema,
    "minContains": lambda value, schema: "contains" not in schema,
    "maxContains": lambda value, schema: "contains" not in schema,
    "dependentRequired": lambda value, schema: value == {},
    "dependentSchemas": lambda value, schema: value == {},
    "propertyNames": lambda value, schema: value is True or value == {},
    "unevaluatedItems": lambda value, schema: value is True or value == {},
    "unevaluatedProperties": lambda value, schema: value is True or value == {},
}
"""Whether a keyword's value, in a schema, constrains nothing: the library would refuse the keyword."""


def remove_idle(schema: Schema) -> None:
    """Remove such keywords from a schema; those inside of it keep theirs."""
    for name in [name for name in schema if name in _IDLE and _IDLE[name](schema[name], schema)]:
        del schema[name]


def _is_at_most_one(value: object) -> bool:
    return isinstance(value, int | float) and value <= 1
