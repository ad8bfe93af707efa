"""The OpenAPI document."""

from __future__ import annotations

import copy
from typing import Any

from onward.api.dialects import DIALECTS
from onward.api.openai.answer_examples import add_examples
from onward.api.openai.openapi_paths import paths, ref
from onward.api.openai.response_schema import error_schema, response_schemas
from onward.api.openai.server_schemas import server_schemas
from onward.api.parameter import Profile
from onward.api.request_schema import parameter_schema, request_schema
from onward.api.routes import Route
from onward.api.tables import Table

Schema = dict[str, Any]


def openapi(
    server_version: str, *, profile: Profile = "default", dialects: tuple[str, ...] = tuple(DIALECTS)
) -> Schema:
    """Return the OpenAPI 3.1 document of all routes, with the requests of `profile`, and the routes of these dialects.
    A new dict at each call."""
    document: Schema = {
        "openapi": "3.1.0",
        "info": {
            "title": "Onward",
            "version": server_version,
            "description": "OpenAI's legacy Completions API, complete, on a model of your own. "
            f"Requests are checked by the `{profile}` profile.",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "servers": [{"url": "/"}],
        "security": [{}, {"bearer": []}],
        "tags": [{"name": name} for name in ("Completions", "Tokens", *dialects)],
        "paths": _merged_paths(paths(profile), _dialect_paths(dialects, profile)),
        "components": {
            "securitySchemes": {"bearer": {"type": "http", "scheme": "bearer"}},
            "schemas": _components(profile),
        },
    }
    document = copy.deepcopy(document)
    add_examples(document["paths"])
    return document


def _dialect_paths(dialects: tuple[str, ...], profile: Profile) -> Schema:
    """Return the routes of these dialects."""
    found: Schema = {}
    for dialect in dialects:
        for route in DIALECTS[dialect]:
            found.setdefault(route.path, {})[route.method.lower()] = _operation(route, dialect, profile)
    return found


def _merged_paths(own: Schema, dialects: Schema) -> Schema:
    """Return all routes; a URL may have methods of both."""
    return {path: own.get(path, {}) | dialects.get(path, {}) for path in (*own, *dialects)}


def _body_schema(rows: Table, profile: Profile) -> Schema:
    """Return the schema of a request."""
    return {
        "type": "object",
        "properties": {name: parameter_schema(row, profile) for name, row in rows.items()},
        "required": [name for name, row in rows.items() if row.required],
        "additionalProperties": profile == "lenient",
    }


def _operation(route: Route, dialect: str, profile: Profile) -> Schema:
    content: Schema = {"application/json": {"schema": {}}}
    if route.stream:
        content[route.stream] = {"schema": {"contentMediaType": route.stream}}
    described: Schema = {
        "operationId": route.name,
        "summary": route.summary,
        "description": f"As {dialect} has it; docs/how-to/dialects.md says what differs.",
        "tags": [dialect],
        "responses": {
            "200": {"description": route.summary, "content": content},
            "default": {
                "description": f"An error, as {dialect} writes it.",
                "content": {"application/json": {"schema": {"type": "object"}}},
            },
        },
    }
    if route.body is not None:
        schema = _body_schema(route.body, "lenient" if profile == "lenient" else "default")
        described["requestBody"] = {"required": True, "content": {"application/json": {"schema": schema}}}
    return described


def _components(profile: Profile) -> dict[str, Schema]:
    answers = response_schemas("#/components/schemas/{name}")
    answers["CompletionChunk"] = answers.pop("Chunk") | {"title": "CompletionChunk"}
    link = {"type": "string", "format": "uri", "description": "The URL of this object's JSON Schema."}
    linked = {"type": "object", "properties": {"$schema": link}, "required": ["$schema"]}
    return {
        "CompletionRequest": request_schema(profile),
        **answers,
        "LinkedCompletion": {"allOf": [linked, ref("Completion")]},
        "Error": error_schema(),
        **server_schemas(),
    }
