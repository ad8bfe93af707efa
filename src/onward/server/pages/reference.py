"""The OpenAPI document as one HTML page. Everything but sending examples works without scripts."""

from __future__ import annotations

import html
import json
import re
from collections.abc import Iterator
from typing import Any

from onward.server.pages.layout import document, prose, sample

Schema = dict[str, Any]
_PREFIX = "#/components/schemas/"
PLACEHOLDERS = {"/v1/completions/{id}": "COMPLETION", "/openai/v1/completions/{id}": "COMPLETION"}
"""Examples of `{id}` in paths where it is not a model."""


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


def request_form(openapi: Schema, method: str, path: str, operation: Schema) -> str:
    """Return a form with the path and an example body of an operation, as HTML; none for one that takes a file."""
    if "multipart/form-data" in operation.get("requestBody", {}).get("content", {}):
        return ""
    address = path.replace("{id}", PLACEHOLDERS.get(path, "MODEL"))
    body = request_example(openapi, operation)
    textarea = ""
    if body is not None:
        text = html.escape(json.dumps(body, indent=2, ensure_ascii=False))
        rows = min(12, text.count("\n") + 1)
        textarea = f'<label>Body<textarea rows="{rows}" spellcheck="false">{text}</textarea></label>'
    return (
        f'<form class="try" hidden data-method="{method.upper()}"><h3>Try it</h3>'
        f'<label>{method.upper()} <input value="{html.escape(address)}" spellcheck="false"></label>{textarea}'
        '<button>Send</button><output tabindex="0" aria-label="Answer"></output></form>'
    )


def request_example(openapi: Schema, operation: Schema) -> object:
    """Return an example of an operation's body; None where it has none."""
    media = next(iter(operation.get("requestBody", {}).get("content", {}).values()), None)
    if media is None:
        return None
    for example in media.get("examples", {}).values():
        return example.get("value")
    schema = media["schema"]
    if "$ref" in schema:
        schema = openapi["components"]["schemas"][schema["$ref"].rpartition("/")[2]]
    fields = schema.get("properties", {})
    required = schema.get("required") or list(fields)[:1]
    return {name: _example(fields[name]) for name in required if name in fields}


def _example(field: Schema) -> object:
    """Return an example of a field: its own, or one of its type."""
    if field.get("examples"):
        return field["examples"][0]
    kind = field.get("type")
    kind = kind[0] if isinstance(kind, list) else kind
    item = field.get("items", {})
    return {"array": [_example(item)] if item else [], "integer": 268, "number": 1, "boolean": False}.get(
        str(kind), "Once upon a time"
    )


def reference_page(openapi: Schema, *, root: str = "./", has_ledger: bool = True) -> str:
    """Return the page at /docs for an OpenAPI document, as HTML. `root`: see `document`."""
    info, tables = openapi["info"], SchemaTables(openapi)
    parts = [f"<h1>{html.escape(info['title'])} {html.escape(info['version'])}</h1>"]
    parts.append(f"<p>{prose(info.get('description', ''))}</p>")
    parts.append("<p>Each schema is described once. Fields marked * are required.</p>")
    parts += [_contents(openapi), _authentication(openapi)]
    for method, path, operation in _operations(openapi):
        parts.append(f'<h2 id="{_anchor(method, path)}"><code>{method.upper()} {html.escape(path)}</code></h2>')
        parts += _operation(operation, tables)
        parts.append(request_form(openapi, method, path, operation))
    title = f"{info['title']} reference"
    return document(title, "".join(parts), name="reference", here="docs", root=root, has_ledger=has_ledger)


def _operations(openapi: Schema) -> Iterator[tuple[str, str, Schema]]:
    """Yield method, path and operation of every route."""
    for path, methods in openapi["paths"].items():
        for method in ("get", "post", "delete"):
            if method in methods:
                yield method, path, methods[method]


def _anchor(method: str, path: str) -> str:
    return re.sub(r"\W+", "-", f"{method}{path}").strip("-")


def _contents(openapi: Schema) -> str:
    links = [("authentication", "Authentication")]
    links += [(_anchor(method, path), f"{method.upper()} {path}") for method, path, _ in _operations(openapi)]
    listed = {"CompletionRequest": "Request fields", "Completion": "Response fields", "CompletionChunk": "Chunk fields"}
    links += [(f"schema-{name}", words) for name, words in listed.items()]
    links.append(("schema-Error", "Errors"))
    return (
        "<nav><ul>"
        + "".join(f'<li><a href="#{anchor}">{html.escape(words)}</a>' for anchor, words in links)
        + "</ul></nav>"
    )


def _authentication(openapi: Schema) -> str:
    public = [path for _, path, operation in _operations(openapi) if operation.get("security") == []]
    listed = ", ".join(f"<code>{html.escape(path)}</code>" for path in public)
    return (
        '<h2 id="authentication">Authentication</h2>'
        + sample("Authorization: Bearer YOUR_KEY")
        + "<p>A server that was started with keys requires one of them in every request: as above, in an "
        "<code>api-key</code> or <code>x-api-key</code> header, or as the password of HTTP Basic. A missing or wrong "
        f"key is answered with 401. No key is needed for {listed}. A server without keys accepts every request and "
        "ignores any key that is sent.</p>"
        '<p class="try" hidden><label>Key for the requests that this page sends: '
        '<input id="key" type="password" autocomplete="off"></label></p>'
    )


def _operation(operation: Schema, tables: SchemaTables) -> Iterator[str]:
    yield f"<p>{prose(operation.get('summary', ''))} {prose(operation.get('description', ''))}</p>"
    for media in operation.get("requestBody", {}).get("content", {}).values():
        known = tables.has_printed(media["schema"])
        yield "<h3>Request</h3>" + tables.reference(media["schema"])
        for name, example in ({} if known else media.get("examples", {})).items():
            yield f"<p>Example: {html.escape(name)}</p>" + sample(example.get("value"))
    yield "<h3>Responses</h3>"
    errors = {}
    for status, response in operation["responses"].items():
        if status.startswith(("4", "5")):
            errors[status] = response
            continue
        yield f"<p><b>{html.escape(status)}</b> {prose(response.get('description', ''))}</p>"
        for kind, media in response.get("content", {}).items():
            yield _response_body(kind, media, tables)
    yield from _errors(errors, tables)


def _response_body(kind: str, media: Schema, tables: SchemaTables) -> str:
    """Return the fields and the example of one media type of a response."""
    schema = media["schema"]
    if kind == "text/event-stream":  # its schema cannot say what an event holds
        schema = {"$ref": "#/components/schemas/CompletionChunk"}
    example = sample(media["example"]) if "example" in media and not tables.has_printed(schema) else ""
    return f"<p><code>{html.escape(kind)}</code></p>" + tables.reference(schema) + example


def _errors(errors: Schema, tables: SchemaTables) -> Iterator[str]:
    """Yield one table of all error statuses, then the schemas of their bodies."""
    if not errors:
        return
    rows = "".join(f"<tr><td><b>{status}</b><td>{prose(one['description'])}" for status, one in errors.items())
    yield f'<div class="scroll"><table>{rows}</table></div>'
    schemas = {str(media["schema"]): media["schema"] for one in errors.values() for media in one["content"].values()}
    for schema in schemas.values():
        yield tables.reference(schema)
