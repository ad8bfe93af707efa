"""A small JSON Schema validator: the keywords that Onward's schemas use, and no others."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

TYPES: dict[str, Any] = {
    "object": dict,
    "array": list,
    "string": str,
    "integer": int,
    "number": (int, float),
    "boolean": bool,
    "null": type(None),
}
NOTES = {"title", "description", "examples", "default", "readOnly", "$defs", "$schema"}
"""Keywords that are annotations."""


def is_valid(value: object, schema: dict[str, Any], root: dict[str, Any] | None = None) -> bool:
    """Return whether a value is valid; `$ref` is resolved in `root`. Unlike in JSON Schema, 16.0 is not an integer."""
    return not any(problems(value, schema, schema if root is None else root))


def resolve(reference: str, root: dict[str, Any]) -> dict[str, Any]:
    node: Any = root
    for key in reference.removeprefix("#/").split("/"):
        node = node[key]
    assert isinstance(node, dict)
    return node


def problems(value: Any, schema: dict[str, Any], root: dict[str, Any]) -> Iterator[str]:
    for keyword, rule in schema.items():
        if keyword not in NOTES and not holds(keyword, rule, value, schema, root):
            yield keyword


def holds(keyword: str, rule: Any, value: Any, schema: dict[str, Any], root: dict[str, Any]) -> bool:
    def fits(each: object, sub: dict[str, Any]) -> bool:
        return is_valid(each, sub, root)

    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    match keyword:
        case "$ref":
            return fits(value, resolve(rule, root))
        case "anyOf":
            return any(fits(value, each) for each in rule)
        case "allOf":
            return all(fits(value, each) for each in rule)
        case "type":
            names = [rule] if isinstance(rule, str) else rule
            return any(is_type(value, name) for name in names)
        case "enum":
            return any(type(value) is type(each) and value == each for each in rule)
        case "minimum":
            return not number or value >= rule
        case "maximum":
            return not number or value <= rule
        case "format":
            return rule != "int64" or not number or -(2**63) <= value < 2**63
        case "minLength":
            return not isinstance(value, str) or len(value) >= rule
        case "pattern":
            return not isinstance(value, str) or re.search(rule, value) is not None
        case "items":
            return not isinstance(value, list) or all(fits(each, rule) for each in value)
        case "minItems":
            return not isinstance(value, list) or len(value) >= rule
        case "maxItems":
            return not isinstance(value, list) or len(value) <= rule
        case "maxProperties":
            return not isinstance(value, dict) or len(value) <= rule
        case "propertyNames":
            return not isinstance(value, dict) or all(fits(each, rule) for each in value)
        case "required":
            return not isinstance(value, dict) or all(each in value for each in rule)
        case "properties":
            return not isinstance(value, dict) or all(
                fits(value[name], sub) for name, sub in rule.items() if name in value
            )
        case "additionalProperties":
            return not isinstance(value, dict) or all(
                rule if isinstance(rule, bool) else fits(each, rule)
                for name, each in value.items()
                if name not in schema.get("properties", {})
            )
        case _:
            raise AssertionError(f"an unsupported keyword: {keyword}")


def is_type(value: object, name: str) -> bool:
    if isinstance(value, bool):
        return name == "boolean"
    return isinstance(value, TYPES[name])
