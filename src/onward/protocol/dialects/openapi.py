"""The routes of dialects in OpenAPI. Requests are their tables; answers are described where their APIs are."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from onward.protocol.dialects import llama_server, mistral, ollama, tabby, tgi
from onward.protocol.dialects.decode import Table
from onward.protocol.parameter import Profile
from onward.protocol.request_schema import parameter_schema

Node = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Operation:
    """One route. `rows` are the fields of its body; None for GET. `stream` is the media type of its streams."""

    path: str
    name: str
    summary: str
    rows: Table | None = None
    stream: str | None = None


EVENTS = "text/event-stream"
LINES = "application/x-ndjson"
OPERATIONS: dict[str, tuple[Operation, ...]] = {
    "llama-server": (
        Operation("/completion", "llamaCompletion", "Continue a prompt.", llama_server.COMPLETION, EVENTS),
        Operation("/infill", "llamaInfill", "Complete what is between two texts.", llama_server.INFILL, EVENTS),
        Operation("/props", "llamaProps", "Describe the server and a model."),
        Operation("/slots", "llamaSlots", "List the rows of the batch."),
    ),
    "ollama": (
        Operation("/api/generate", "ollamaGenerate", "Continue a prompt.", ollama.GENERATE, LINES),
        Operation("/api/show", "ollamaShow", "Describe a model.", ollama.SHOW),
        Operation("/api/tags", "ollamaTags", "List the models."),
        Operation("/api/ps", "ollamaProcesses", "List the models that are loaded."),
        Operation("/api/version", "ollamaVersion", "Return the server's version."),
    ),
    "mistral": (
        Operation("/v1/fim/completions", "mistralFim", "Complete what is between two texts.", mistral.FIM, EVENTS),
    ),
    "tabby": (
        Operation("/tabby/v1/completions", "tabbyComplete", "Complete what is between two texts.", tabby.COMPLETION),
        Operation("/tabby/v1/health", "tabbyHealth", "Describe the server."),
    ),
    "tgi": (
        Operation("/generate", "tgiGenerate", "Continue a prompt.", tgi.GENERATE),
        Operation("/generate_stream", "tgiStream", "Continue a prompt as a stream.", tgi.GENERATE, EVENTS),
        Operation("/", "tgiCompatible", "Continue a prompt, as a stream or not.", tgi.COMPATIBLE, EVENTS),
        Operation("/info", "tgiInfo", "Describe the server."),
    ),
}
"""The routes of each dialect. The server has a handler for every one."""


def dialect_paths(dialects: tuple[str, ...], profile: Profile) -> Node:
    """Return the routes of these dialects."""
    found: Node = {}
    for dialect in dialects:
        for operation in OPERATIONS[dialect]:
            method = "get" if operation.rows is None else "post"
            found.setdefault(operation.path, {})[method] = _operation(operation, dialect, profile)
    return found


def merged_paths(own: Node, dialects: Node) -> Node:
    """Return all routes; a URL may have methods of both."""
    return {path: own.get(path, {}) | dialects.get(path, {}) for path in (*own, *dialects)}


def body_schema(rows: Table, profile: Profile) -> Node:
    """Return the schema of a request."""
    return {
        "type": "object",
        "properties": {name: parameter_schema(row, profile) for name, row in rows.items()},
        "required": [name for name, row in rows.items() if row.required],
        "additionalProperties": profile == "lenient",
    }


def _operation(operation: Operation, dialect: str, profile: Profile) -> Node:
    content: Node = {"application/json": {"schema": {}}}
    if operation.stream:
        content[operation.stream] = {"schema": {"contentMediaType": operation.stream}}
    described: Node = {
        "operationId": operation.name,
        "summary": operation.summary,
        "description": f"As {dialect} has it; docs/how-to/dialects.md says what differs.",
        "tags": [dialect],
        "responses": {
            "200": {"description": operation.summary, "content": content},
            "default": {
                "description": f"An error, as {dialect} writes it.",
                "content": {"application/json": {"schema": {"type": "object"}}},
            },
        },
    }
    if operation.rows is not None:
        schema = body_schema(operation.rows, "lenient" if profile == "lenient" else "default")
        described["requestBody"] = {"required": True, "content": {"application/json": {"schema": schema}}}
    return described
