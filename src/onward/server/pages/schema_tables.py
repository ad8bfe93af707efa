"""Schemas of the OpenAPI document as HTML tables: each is printed once and linked afterwards."""

from __future__ import annotations

import html
import json
from collections.abc import Iterator
from typing import Any

from onward.server.pages.layout import prose

Schema = dict[str, Any]
_PREFIX = "#/components/schemas/"


class SchemaTables:
    """The tables of one page. Stateful: records which schemas it has printed."""

    def __init__(self, openapi: Schema) -> None:
        self._schemas: dict[str, Schema] = openapi["components"]["schemas"]
        self._printed: set[str] = set()

    def reference(self, schema: Schema) -> str:
        """Return links to the schemas of a body, and those of their tables that are not printed yet."""
        names = list(_names_in(schema))
        links = " and ".join(self.kind({"$ref": _PREFIX + name}) for name in names)
        tables = "".join(self._tables(name) for name in names)
        return (f"<p>Body: {links or self.kind(schema)}</p>" if names or schema else "") + tables

    def has_printed(self, schema: Schema) -> bool:
        """Return whether the tables of all schemas in this one are printed already."""
        return all(name in self._printed for name in _names_in(schema))

    def _tables(self, name: str) -> str:
        """Return the table of a schema and those of the schemas that its fields refer to."""
        if name in self._printed:
            return ""
        self._printed.add(name)
        schema = self._schemas[name]
        if not schema.get("properties") and "allOf" not in schema:
            return f'<p id="schema-{name}"><b>{name}</b>: any {html.escape(schema.get("type", "value"))}.</p>'
        parts = schema.get("allOf", [schema])
        rows = "".join("".join(self._rows(part)) for part in parts)
        about = f"<p>{prose(schema['description'])}</p>" if "description" in schema else ""
        table = (
            f'<h3 id="schema-{name}">{name}</h3>{about}<div class="scroll">'
            f"<table><tr><th>Field<th>Type<th>Meaning{rows}</table></div>"
        )
        return table + "".join(self._tables(inner) for inner in _names_in(schema))

    def _rows(self, schema: Schema, prefix: str = "") -> Iterator[str]:
        """Yield one row per field; the fields of an unnamed inner object follow it as `outer.inner`."""
        if "$ref" in schema:
            yield f"<tr><td>…<td>{self.kind(schema)}<td>All its fields."
        required = schema.get("required", [])
        for name, field in schema.get("properties", {}).items():
            star = " *" if name in required else ""
            yield (
                f"<tr><td><code>{html.escape(prefix + name)}</code>{star}<td class=type>{self.kind(field)}"
                f"<td>{prose(field.get('description', ''))}{_default(field)}"
            )
            yield from self._rows({key: field.get(key, {}) for key in ("properties", "required")}, f"{prefix}{name}.")

    def kind(self, schema: Schema) -> str:
        """Return the type of a field and its range as HTML; a named schema is a link."""
        if "$ref" in schema:
            name = schema["$ref"].removeprefix(_PREFIX)
            return f'<a href="#schema-{name}">{name}</a>'
        for key in ("anyOf", "oneOf"):
            if key in schema:
                return " or ".join(dict.fromkeys(self.kind(one) for one in schema[key]))
        if "enum" in schema:
            return html.escape(", ".join(json.dumps(one) for one in schema["enum"]))
        kind = schema.get("type", "any")
        words = " or ".join(kind) if isinstance(kind, list) else str(kind)
        if kind == "array" and "items" in schema:
            inner = self.kind(schema["items"])
            words = f"array of ({inner})" if " or " in inner else f"array of {inner}"
        lower, upper = schema.get("minimum"), schema.get("maximum")
        return words if lower is None and upper is None else f"{words}, {_range(lower, upper)}"


def _names_in(schema: object) -> Iterator[str]:
    """Yield the names of all schemas that this one refers to, in order."""
    if isinstance(schema, list):
        for one in schema:
            yield from _names_in(one)
    elif isinstance(schema, dict):
        if isinstance(schema.get("$ref"), str):
            yield schema["$ref"].removeprefix(_PREFIX)
        for one in schema.values():
            yield from _names_in(one)


def _range(lower: float | None, upper: float | None) -> str:
    if lower is None:
        return f"≤ {upper}"
    return f"≥ {lower}" if upper is None else f"{lower} … {upper}"


def _default(schema: Schema) -> str:
    return f" Default <code>{html.escape(json.dumps(schema['default']))}</code>." if "default" in schema else ""
