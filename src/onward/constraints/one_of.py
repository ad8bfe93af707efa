"""`oneOf` whose options exclude each other: then it means what `anyOf` does, which the library has in all cases."""

from __future__ import annotations

import json
from itertools import combinations
from typing import Any

from onward.constraints.schema_walk import Schema, resolve, schemas

MAX_COMPARISONS = 20_000
"""Comparisons of schemas with each other, for one schema; beyond them, options count as not exclusive."""
MAX_DEPTH = 8

_TYPES = {type(None): "null", bool: "boolean", int: "integer", float: "number", str: "string", list: "array"}


def replace_one_of(root: Schema) -> None:
    """Write `anyOf` for each `oneOf` inside of a schema whose options no value can match two of."""
    comparison = _Comparison(root)
    for schema in list(schemas(root)):
        options = schema.get("oneOf")
        if isinstance(options, list) and options and comparison.all_exclude(options):
            del schema["oneOf"]
            if "anyOf" in schema:
                schema["allOf"] = [*schema.get("allOf", []), {"anyOf": options}]
            else:
                schema["anyOf"] = options


class _Comparison:
    """Compares schemas of one root. What it cannot decide counts as not excluded."""

    def __init__(self, root: Schema) -> None:
        self._root = root
        self._num_left = MAX_COMPARISONS
        self._known: dict[int, dict[str, Any] | None] = {}
        """Of each schema, by its id: what `_values` returned."""

    def all_exclude(self, options: list[Any]) -> bool:
        """Return whether no value can match two of the options."""
        return all(self._exclude(one, other, 0) for one, other in combinations(options, 2))

    def _exclude(self, one: Any, other: Any, depth: int) -> bool:
        self._num_left -= 1
        if self._num_left < 0 or depth > MAX_DEPTH:
            return False
        if one is False or other is False:
            return True
        return any(
            self._parts_exclude(part, its, depth) or self._parts_exclude(its, part, depth)
            for part in self._parts(one, depth)
            for its in self._parts(other, depth)
        )

    def _parts(self, schema: Any, depth: int) -> list[Schema]:
        """Return schemas that are all matched by what matches a schema: itself, and what it refers to."""
        if not isinstance(schema, dict) or depth > MAX_DEPTH:
            return []
        found = [schema]
        inner = [resolve(self._root, schema["$ref"])] if "$ref" in schema else []
        inner += schema["allOf"] if isinstance(schema.get("allOf"), list) else []
        for each in inner:
            found += self._parts(each, depth + 1)
        return found

    def _parts_exclude(self, one: Schema, other: Schema, depth: int) -> bool:
        """Return whether `one` excludes `other` by its values, types, options or properties."""
        values, others = self._values(one), self._values(other)
        types, its_types = _types(one), _types(other)
        if values is not None and others is not None:
            return not values.keys() & others.keys()
        if values is not None and its_types is not None:
            return not any(_has_type(value, its_types) for value in values.values())
        if types is not None and its_types is not None and not any(_overlaps(each, its_types) for each in types):
            return True
        for name in ("anyOf", "oneOf"):
            options = one.get(name)
            if isinstance(options, list) and all(self._exclude(each, other, depth + 1) for each in options):
                return True
        return types == its_types == ["object"] and self._properties_exclude(one, other, depth)

    def _values(self, schema: Schema) -> dict[str, Any] | None:
        if id(schema) not in self._known:
            self._known[id(schema)] = _values(schema)
        return self._known[id(schema)]

    def _properties_exclude(self, one: Schema, other: Schema, depth: int) -> bool:
        names = one.get("required")
        return isinstance(names, list) and any(
            self._exclude(_property(one, name), _property(other, name), depth + 1)
            for name in names
            if isinstance(name, str)
        )


def _property(schema: Schema, name: str) -> Any:
    """Return the schema of a property; True where others decide."""
    properties = schema.get("properties")
    if isinstance(properties, dict) and name in properties:
        return properties[name]
    return schema.get("additionalProperties") is not False or "patternProperties" in schema


def _values(schema: Schema) -> dict[str, Any] | None:
    """Return the values that a schema lists, by a text that equal ones share; None if it lists none."""
    listed = [schema["const"]] if "const" in schema else schema.get("enum")
    return {json.dumps(_normal(value), sort_keys=True): value for value in listed} if isinstance(listed, list) else None


def _normal(value: Any) -> Any:
    """Return a value with whole numbers as integers: 1 and 1.0 are equal in JSON Schema."""
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, list):
        return [_normal(each) for each in value]
    if isinstance(value, dict):
        return {key: _normal(each) for key, each in value.items()}
    return value


def _types(schema: Schema) -> list[Any] | None:
    named = schema.get("type")
    return [named] if isinstance(named, str) else named if isinstance(named, list) else None


def _has_type(value: Any, types: list[Any]) -> bool:
    return _overlaps(_TYPES.get(type(_normal(value)), "object"), types)


def _overlaps(name: Any, types: list[Any]) -> bool:
    """Return whether a value may have the type `name` and one of `types`: integers are numbers."""
    return name in types or (name == "integer" and "number" in types) or (name == "number" and "integer" in types)
