"""The OpenAPI document."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping
from typing import Any

from onward.api.adapters import adapter_schemas
from onward.api.admin import admin_schemas
from onward.api.dialects import DIALECTS
from onward.api.openai.batches import batch_schemas
from onward.api.openai.response import error_schema, response_schemas
from onward.api.operations import ref, server_schemas
from onward.api.parameter import FieldTable, Profile
from onward.api.request_schema import parameter_schema, request_schema
from onward.api.routes import OpenAPIOperation, Route
from onward.api.seed import SEED_OF_REQUEST, SEED_OF_RESPONSE

Schema = dict[str, Any]


def openapi(
    server_version: str,
    routes: Iterable[Route],
    *,
    profile: Profile = "default",
    dialects: tuple[str, ...] = tuple(DIALECTS),
) -> Schema:
    """Return the OpenAPI 3.1 document of these routes and of those of the dialects, with the requests of `profile`. A
    new dict at each call."""
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
        "tags": [{"name": name} for name in ("Completions", "Tokens", "Batches", "Administration", *dialects)],
        "paths": _paths(routes, dialects, profile),
        "components": {
            "securitySchemes": {"bearer": {"type": "http", "scheme": "bearer"}},
            "schemas": _components(profile),
        },
    }
    return document


def _paths(routes: Iterable[Route], dialects: tuple[str, ...], profile: Profile) -> Schema:
    """Return all routes that are described, by path and method; a URL may have methods of several APIs."""
    found: Schema = {}
    described = [(route, _stated(route.operation, profile)) for route in routes if route.operation is not None]
    described += [(route, _operation(route, name, profile)) for name in dialects for route in DIALECTS[name]]
    for route, operation in described:
        item = found.setdefault(route.path, {"parameters": list(route.parameters)} if route.parameters else {})
        item[route.method.lower()] = _with_example(copy.deepcopy(operation), route.example)
    return found


def _stated(operation: OpenAPIOperation, profile: Profile) -> Schema:
    return operation(profile) if callable(operation) else operation


def _with_example(operation: Schema, example: Mapping[str, object]) -> Schema:
    """Write an example answer into an operation, by media type."""
    content = operation["responses"]["200"]["content"]
    for media, value in example.items():
        content[media]["example"] = value
    return operation


def _body_schema(rows: FieldTable, profile: Profile) -> Schema:
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
        "description": f"As in {dialect}; docs/how-to/dialects.md says what differs.",
        "tags": [dialect],
        "responses": {
            "200": {"description": route.summary, "content": content},
            "default": {
                "description": f"An error, as {dialect} writes it.",
                "content": {"application/json": {"schema": {"type": "object"}}},
            },
        },
    }
    if route.stream:
        described["parameters"] = [SEED_OF_REQUEST]
        described["responses"]["200"]["headers"] = SEED_OF_RESPONSE
    if route.body is not None:
        schema = _body_schema(route.body, "lenient" if profile == "lenient" else "default")
        described["requestBody"] = {"required": True, "content": {"application/json": {"schema": schema}}}
    return described


def _components(profile: Profile) -> dict[str, Schema]:
    answers = response_schemas()
    answers["CompletionChunk"] = answers.pop("Chunk") | {"title": "CompletionChunk"}
    link = {"type": "string", "format": "uri", "description": "The URL of this object's JSON Schema."}
    linked = {"type": "object", "properties": {"$schema": link}, "required": ["$schema"]}
    return {
        "CompletionRequest": request_schema(profile),
        **answers,
        "LinkedCompletion": {"allOf": [linked, ref("Completion")]},
        "Error": error_schema(),
        **batch_schemas(),
        **admin_schemas(),
        **adapter_schemas(),
        **server_schemas(),
    }
