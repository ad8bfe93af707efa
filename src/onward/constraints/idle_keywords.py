"""Keywords of a JSON Schema that constrain nothing, which the library would refuse."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from onward.constraints.schema_walk import Schema

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
"""Whether a keyword's value, in a schema, allows everything."""


def remove_idle(schema: Schema) -> None:
    """Remove such keywords from a schema; those inside of it keep theirs."""
    for name in [name for name in schema if name in _IDLE and _IDLE[name](schema[name], schema)]:
        del schema[name]


def _is_at_most_one(value: object) -> bool:
    return isinstance(value, int | float) and value <= 1
