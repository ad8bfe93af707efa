"""A walk over the schemas inside of a JSON schema, whatever they nest, without recursion; and how deep they nest."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from urllib.parse import unquote

from onward.constraints.errors import GrammarError

MAX_DEPTH = 300
"""Levels of schemas inside of schemas, references included: the library follows both on its stack."""
MAX_VALUES = 30_000
"""Values of a schema: objects, arrays, texts, numbers."""

_ONE = ("additionalProperties", "additionalItems", "items")
_LISTS = ("anyOf", "oneOf", "allOf", "prefixItems", "items")
_MAPS = ("properties", "patternProperties")
_DEFINITIONS = ("$defs", "definitions")
_IN_PLACE = ("anyOf", "oneOf", "allOf")

Schema = dict[str, Any]


def check_size(schema: Schema) -> None:
    """Raise GrammarError for a schema that is too large or nested too deeply, in JSON or by its references."""
    count, level = 0, [schema]
    for depth in range(MAX_DEPTH * 2 + 1):
        count += len(level)
        if count > MAX_VALUES:
            raise GrammarError(f"it has more than {MAX_VALUES} values; make it smaller")
        level = [child for value in level for child in _values(value)]
        if not level:
            break
        if depth == MAX_DEPTH * 2:
            raise _too_deep()
    _check_references(schema)


def schemas(schema: Schema) -> Iterator[Schema]:
    """Yield all schemas that are objects: this one, those inside of it, and its definitions, each once."""
    waiting: list[Any] = [schema]
    while waiting:
        one = waiting.pop()
        if isinstance(one, dict):
            yield one
            waiting += children(one)
            for name in _DEFINITIONS:
                if isinstance(one.get(name), dict):
                    waiting += one[name].values()


def children(schema: Schema) -> list[Any]:
    """Return the schemas directly inside of one, without definitions."""
    found: list[Any] = [schema[name] for name in _ONE if isinstance(schema.get(name), dict)]
    for name in _LISTS:
        if isinstance(schema.get(name), list):
            found += schema[name]
    for name in _MAPS:
        if isinstance(schema.get(name), dict):
            found += schema[name].values()
    return found


def resolve(root: Schema, reference: object) -> Any:
    """Return the schema of a reference inside of `root`; None if it is not one, or nothing is there."""
    if reference == "#":
        return root
    if not isinstance(reference, str) or not reference.startswith("#/"):
        return None
    found: Any = root
    for part in unquote(reference[2:]).split("/"):
        key = part.replace("~1", "/").replace("~0", "~")
        if isinstance(found, dict):
            found = found.get(key)
        elif isinstance(found, list) and _is_index(key) and int(key) < len(found):
            found = found[int(key)]
        else:
            return None
    return found


def _is_index(key: str) -> bool:
    """Return whether a key of a reference may be an index: `int` refuses other digits than ASCII's, and thousands."""
    return key.isascii() and key.isdecimal() and len(key) <= len(str(MAX_VALUES))


def _check_references(root: Schema) -> None:
    """Raise GrammarError where references lead deeper than MAX_DEPTH: the library follows each where it occurs
    first."""
    seen: set[str] = set()
    waiting: list[tuple[Any, int]] = [(root, 1)]
    while waiting:
        schema, depth = waiting.pop()
        if not isinstance(schema, dict):
            continue
        if depth > MAX_DEPTH:
            raise _too_deep()
        waiting += [(child, depth + 1) for child in children(schema)]
        reference = schema.get("$ref")
        if isinstance(reference, str) and reference not in seen:
            seen.add(reference)
            waiting.append((resolve(root, reference), depth + 1))
    for schema in schemas(root):
        _check_circle(root, schema)


def _check_circle(root: Schema, start: Schema) -> None:
    """Raise GrammarError where a schema's reference leads back to it, and nothing that has a text is between."""
    passed: set[int] = set()
    waiting = _same_value(root, start)
    while waiting:
        schema = waiting.pop()
        if schema is start:
            raise GrammarError(f"it matches no text: the $ref {start.get('$ref', '')!r} leads back to itself")
        if isinstance(schema, dict) and id(schema) not in passed:
            passed.add(id(schema))
            waiting += _same_value(root, schema)


def _same_value(root: Schema, schema: Schema) -> list[Any]:
    """Return the schemas that the same value has to match."""
    found = [resolve(root, schema["$ref"])] if "$ref" in schema else []
    for name in _IN_PLACE:
        options = schema.get(name)
        if isinstance(options, list) and (name == "allOf" or len(options) == 1):
            found += options
    return found


def _values(value: object) -> list[Any]:
    if isinstance(value, dict):
        return list(value.values())
    return value if isinstance(value, list) else []


def _too_deep() -> GrammarError:
    return GrammarError(f"it is nested too deeply; at most {MAX_DEPTH} levels are supported, references included")
