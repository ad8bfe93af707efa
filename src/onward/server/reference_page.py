"""The OpenAPI document as one HTML page that needs nothing from the network."""

from __future__ import annotations

import html
import re
from collections.abc import Iterator
from typing import Any

from onward.server.html_page import framed, prose, sample
from onward.server.schema_tables import SchemaTables

Schema = dict[str, Any]


def reference_page(document: Schema) -> str:
    """The page at /docs."""
    info, tables = document["info"], SchemaTables(document)
    parts = [f"<h1>{html.escape(info['title'])} {html.escape(info['version'])}</h1>"]
    parts.append(f"<p>{prose(info.get('description', ''))}</p>")
    parts.append("<p>Each kind of body is described once. Its fields marked * must be sent, or are always there.</p>")
    parts += [_contents(document), _authentication(document)]
    for method, path, operation in _operations(document):
        parts.append(f'<h2 id="{_anchor(method, path)}"><code>{method.upper()} {html.escape(path)}</code></h2>')
        parts += _operation(operation, tables)
    return framed(f"{info['title']} reference", "".join(parts))


def _operations(document: Schema) -> Iterator[tuple[str, str, Schema]]:
    """Method, path and operation of every route."""
    for path, methods in document["paths"].items():
        for method in ("get", "post"):
            if method in methods:
                yield method, path, methods[method]


def _anchor(method: str, path: str) -> str:
    return re.sub(r"\W+", "-", f"{method}{path}").strip("-")


def _contents(document: Schema) -> str:
    links = [("authentication", "Authentication")]
    links += [(_anchor(method, path), f"{method.upper()} {path}") for method, path, _ in _operations(document)]
    listed = {"CompletionRequest": "Request fields", "Completion": "Answer fields", "CompletionChunk": "Chunk fields"}
    links += [(f"schema-{name}", words) for name, words in listed.items()]
    links.append(("schema-Error", "Errors"))
    return (
        "<nav><ul>"
        + "".join(f'<li><a href="#{anchor}">{html.escape(words)}</a>' for anchor, words in links)
        + "</ul></nav>"
    )


def _authentication(document: Schema) -> str:
    free = [path for _, path, operation in _operations(document) if operation.get("security") == []]
    listed = ", ".join(f"<code>{html.escape(path)}</code>" for path in free)
    return (
        '<h2 id="authentication">Authentication</h2>'
        + sample("Authorization: Bearer YOUR_KEY")
        + "<p>A server that was started with keys wants one of them with each request: as above, in an "
        "<code>api-key</code> or <code>x-api-key</code> header, or as the password of HTTP Basic. A missing or wrong "
        f"key is answered with 401. No key is needed for {listed}. A server without keys takes every request and "
        "passes over a key that is sent.</p>"
    )


def _operation(operation: Schema, tables: SchemaTables) -> Iterator[str]:
    yield f"<p>{prose(operation.get('summary', ''))} {prose(operation.get('description', ''))}</p>"
    for media in operation.get("requestBody", {}).get("content", {}).values():
        known = tables.knows(media["schema"])
        yield "<h3>Request</h3>" + tables.mentioned(media["schema"])
        for name, example in ({} if known else media.get("examples", {})).items():
            yield f"<p>Example: {html.escape(name)}</p>" + sample(example.get("value"))
    yield "<h3>Answers</h3>"
    failures = {}
    for status, answer in operation["responses"].items():
        if status.startswith(("4", "5")):
            failures[status] = answer
            continue
        yield f"<p><b>{html.escape(status)}</b> {prose(answer.get('description', ''))}</p>"
        for kind, media in answer.get("content", {}).items():
            yield _answer_body(kind, media, tables)
    yield from _failures(failures, tables)


def _answer_body(kind: str, media: Schema, tables: SchemaTables) -> str:
    """A media type of an answer: its fields and its example."""
    schema = media["schema"]
    if kind == "text/event-stream":  # its schema cannot say what an event holds
        schema = {"$ref": "#/components/schemas/CompletionChunk"}
    example = sample(media["example"]) if "example" in media and not tables.knows(schema) else ""
    return f"<p><code>{html.escape(kind)}</code></p>" + tables.mentioned(schema) + example


def _failures(failures: Schema, tables: SchemaTables) -> Iterator[str]:
    """One table of all statuses that tell of a failure; what they hold below it."""
    if not failures:
        return
    rows = "".join(f"<tr><td><b>{status}</b><td>{prose(one['description'])}" for status, one in failures.items())
    yield f'<div class="scroll"><table>{rows}</table></div>'
    schemas = {str(media["schema"]): media["schema"] for one in failures.values() for media in one["content"].values()}
    for schema in schemas.values():
        yield tables.mentioned(schema)
