"""The OpenAPI document as one HTML page. Everything but sending examples works without scripts."""

from __future__ import annotations

import html
import re
from collections.abc import Iterator
from typing import Any

from onward.server.pages.assets import ASSET_ROOT, version
from onward.server.pages.layout import document, prose, sample
from onward.server.pages.schema_tables import SchemaTables
from onward.server.pages.try_it import request_form

Schema = dict[str, Any]


def reference_page(openapi: Schema) -> str:
    """Return the page at /docs for an OpenAPI document, as HTML."""
    info, tables = openapi["info"], SchemaTables(openapi)
    parts = [f"<h1>{html.escape(info['title'])} {html.escape(info['version'])}</h1>"]
    parts.append(f"<p>{prose(info.get('description', ''))}</p>")
    parts.append("<p>Each schema is described once. Fields marked * are required.</p>")
    parts += [_contents(openapi), _authentication(openapi)]
    for method, path, operation in _operations(openapi):
        parts.append(f'<h2 id="{_anchor(method, path)}"><code>{method.upper()} {html.escape(path)}</code></h2>')
        parts += _operation(operation, tables)
        parts.append(request_form(openapi, method, path, operation))
    script = f"{ASSET_ROOT}reference.js?v={version()}"
    return document(f"{info['title']} reference", "".join(parts), script=script)


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
