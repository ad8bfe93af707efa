"""JSON Schemas and the OpenAPI document."""

from __future__ import annotations

import copy
from typing import Any

from onward.protocol.answer_examples import add_examples
from onward.protocol.dialects.names import DIALECTS
from onward.protocol.dialects.openapi import dialect_paths, merged_paths
from onward.protocol.openapi_paths import paths, ref
from onward.protocol.parameter import Profile
from onward.protocol.request_schema import parameter_schema, request_schema
from onward.protocol.response_schema import completion_schema, error_schema, response_schemas
from onward.protocol.server_schemas import server_schemas

__all__ = ["completion_schema", "error_schema", "openapi", "parameter_schema", "request_schema"]

Schema = dict[str, Any]


def openapi(server_version: str, *, profile: Profile = "default", dialects: tuple[str, ...] = DIALECTS) -> Schema:
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
        "paths": merged_paths(paths(profile), dialect_paths(dialects, profile)),
        "components": {
            "securitySchemes": {"bearer": {"type": "http", "scheme": "bearer"}},
            "schemas": _components(profile),
        },
    }
    document = copy.deepcopy(document)
    add_examples(document["paths"])
    return document


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
