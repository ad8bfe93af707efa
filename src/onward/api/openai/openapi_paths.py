"""The routes in OpenAPI; `api.openapi` adds the schemas that they refer to."""

from __future__ import annotations

from typing import Any

from onward.api.openai.parameters import known_parameters
from onward.api.parameter import Profile
from onward.api.request_schema import request_schema

Node = dict[str, Any]

_ERRORS = {
    "400": "The request is invalid.",
    "401": "The API key is missing or incorrect.",
    "403": "A web page of another site, or a host, that this server does not answer.",
    "404": "There is no such model or URL.",
    "405": "The URL does not support this method.",
    "408": "The rest of the body did not arrive in time.",
    "413": "The body is too large.",
    "429": "Too many incorrect API keys came from this address. `Retry-After` is in seconds.",
    "500": "An internal error.",
    "503": "The server is overloaded or draining, or its engine has crashed. `Retry-After` is in seconds.",
}

_REQUEST_EXAMPLES: dict[str, Node] = {
    "text": {"model": "storyteller", "prompt": "Once upon a time", "max_tokens": 32},
    "stream": {
        "model": "storyteller",
        "prompt": "Once upon a time",
        "stream": True,
        "stream_options": {"include_usage": True},
    },
    "score": {
        "model": "storyteller",
        "prompt": "Once upon a time",
        "max_tokens": 0,
        "echo": True,
        "logprobs": 1,
    },
    "edit": {
        "model": "storyteller",
        "prompt": "Once upon a time there was a fox.\n\nThe same with a bear:\n",
        "prediction": {"type": "content", "content": "Once upon a time there was a fox."},
    },
}


def ref(name: str) -> Node:
    """Return a reference to a schema."""
    return {"$ref": f"#/components/schemas/{name}"}


def paths(profile: Profile = "default") -> Node:
    """Return every route, with request examples that `profile` accepts. Examples are shared: copy before modifying."""
    return {**_completions(profile), **_catalogue(), **_tokens(), **_tokens("/m/{id}", "OfModel"), **_pages()}


def _completions(profile: Profile) -> Node:
    return {
        "/v1/completions": {"post": _complete("createCompletion", profile)},
        "/openai/v1/completions": {"post": _complete("createCompletionWithSchema", profile, linked=True)},
        **_streams("/v1/completions/{id}", ""),
        **_streams("/openai/v1/completions/{id}", "WithSchema"),
        "/v1/engines/{id}/completions": _complete_in_path("createEngineCompletion", profile),
        "/m/{id}/v1/completions": _complete_in_path("createModelCompletion", profile),
    }


def _complete_in_path(operation: str, profile: Profile) -> Node:
    return {
        "parameters": [_model_id()],
        "post": _complete(operation, profile)
        | {
            "description": "The fields of CompletionRequest; the URL names the model, so `model` may be omitted.",
            "requestBody": _request_body(request_schema(profile, model_in_path=True), profile),
        },
    }


def _streams(path: str, suffix: str) -> Node:
    """Return the route of streams that were requested with `stream_options.resumable`."""
    resume = _get(
        f"resumeCompletion{suffix}",
        "The rest of a stream whose connection was lost, or the whole completion with `Accept: application/json`.",
        schema=f"{'Linked' if suffix else ''}Completion",
        errors=("400", "401", "404", "500", "503"),
    )
    events: Node = {"description": "Server-sent events.", "contentMediaType": "text/event-stream"}
    resume["responses"]["200"]["content"]["text/event-stream"] = {"schema": events}
    resume["responses"]["204"] = {"description": "Nothing follows the last event."}
    cancel = _get(f"cancelCompletion{suffix}", "End the work on a stream.", errors=("401", "404"))
    stream_id = _parameter("path", "id", "The id of the completion, from any of its chunks.") | {"required": True}
    last_event = _parameter("header", "Last-Event-ID", "The id of the last event that was received; by default none.")
    return {
        path: {
            "parameters": [stream_id],
            "get": resume | {"tags": ["Completions"], "parameters": [last_event]},
            "delete": cancel | {"tags": ["Completions"]},
        }
    }


def _parameter(place: str, name: str, description: str) -> Node:
    return {"name": name, "in": place, "description": description, "schema": {"type": "string"}}


def _catalogue() -> Node:
    return {
        **_names("/v1/models", "Models", "Model"),
        **_names("/openai/v1/models", "ModelsWithSchema", "Model"),
        **_names("/v1/engines", "Engines", "Engine"),
    }


def _names(root: str, operation: str, schema: str) -> Node:
    """Return the route of a list and the route of one item of it."""
    return {
        root: {"get": _get(f"list{operation}", f"List all {schema.lower()}s.", schema=f"{schema}List")},
        f"{root}/{{id}}": {
            "parameters": [_model_id()],
            "get": _get(
                f"retrieve{operation}", f"Retrieve one {schema.lower()}.", schema=schema, errors=("401", "404")
            ),
        },
    }


def _tokens(root: str = "", suffix: str = "") -> Node:
    """Return the tokenizer's routes below `root`, whose operations end in `suffix`."""
    about = _get(
        f"tokenizerInfo{suffix}",
        "Information about a model's tokenizer.",
        schema="TokenizerInfo",
        errors=("401", "404"),
    )
    ids = _post(f"tokenize{suffix}", "Token ids of a text.", "TokenizeRequest", "TokenizeResponse")
    ids["description"] = (
        "Where the dialect of llama-server is served, its request is taken too: `content` instead of `prompt`, "
        "`add_special` and `with_pieces`. Its answer has only `tokens`."
    )
    text = _post(f"detokenize{suffix}", "The text of token ids.", "DetokenizeRequest", "DetokenizeResponse")
    named: Node = {"parameters": [_model_id()]} if root else {}
    return {
        f"{root}/tokenize": named | {"post": ids},
        f"{root}/detokenize": named | {"post": text},
        f"{root}/tokenizer_info": (named or {"parameters": [_model_query()]}) | {"get": about},
    }


def _pages() -> Node:
    """Return the routes for people and monitoring. All but /metrics need no key."""
    schema = _get("completionSchema", "The JSON Schema of a completion.", "application/schema+json")
    document = _get("openapi", "This document.", schema="JsonObject")
    reference = _get("docs", "The API reference as a page.", "text/html")
    front = _get("playground", "A web page to write with the models of this server.", "text/html")
    tokenizer = _get("tokenizer", "The same page, opened where it shows a text's tokens.", "text/html")
    return {
        "/openai/schemas/Completion.json": {"get": _open(schema)},
        "/health": {"get": _open(_health())},
        "/live": {"get": _open(_get("live", "Whether the server runs, ready or not.", schema="Live", errors=()))},
        "/metrics": {"get": _get("metrics", "Counters in Prometheus text format.", "text/plain")},
        "/openapi.json": {"get": _open(document)},
        "/docs": {"get": _open(reference)},
        "/": {"get": _open(front)},
        "/tokenizer": {"get": _open(tokenizer)},
    }


def _open(operation: Node) -> Node:
    """Return a copy of an operation that needs no key."""
    responses = {status: answer for status, answer in operation["responses"].items() if status not in ("401", "429")}
    return operation | {"security": [], "responses": responses}


def _complete(operation: str, profile: Profile, *, linked: bool = False) -> Node:
    """Return the operation of a completions route. The response of a linked one has `$schema` and a Link header."""
    complete: Node = {"application/json": {"schema": ref("LinkedCompletion" if linked else "Completion")}}
    # OpenAPI 3.1 cannot describe event streams; tools apply a schema either to the body or to each event.
    events: Node = {"description": "Server-sent events.", "contentMediaType": "text/event-stream"}
    stream = {"text/event-stream": {"schema": events}}
    answer: Node = {
        "description": "The completion. With `stream`, server-sent events: each `data:` line holds one "
        "CompletionChunk, and `data: [DONE]` ends the stream. An error after the first event is one more event "
        "with an `error` object. Lines that begin with a colon are comments.",
        "content": {**complete, **stream},
        "headers": {"x-request-id": {"schema": {"type": "string"}}},
    }
    if linked:
        answer["headers"]["link"] = {"schema": {"type": "string"}}
    return {
        "operationId": operation,
        "summary": "Continue a prompt.",
        "description": "Completions and models are also served without /v1, for clients whose base URL lacks it.",
        "tags": ["Completions"],
        "requestBody": _request_body(ref("CompletionRequest"), profile),
        "responses": {"200": answer, **_errors(*_ERRORS)},
    }


def _request_body(schema: Node, profile: Profile) -> Node:
    """Return a body of this schema, with the examples that the profile accepts."""
    known = known_parameters(profile).keys()
    examples = {name: {"value": value} for name, value in _REQUEST_EXAMPLES.items() if value.keys() <= known}
    return {"required": True, "content": {"application/json": {"schema": schema, "examples": examples}}}


def _get(
    operation: str,
    summary: str,
    media: str = "application/json",
    *,
    schema: str | None = None,
    errors: tuple[str, ...] = ("401",),
) -> Node:
    content: Node = {media: {"schema": ref(schema) if schema else {"type": "string"}}}
    if media.endswith("json") and schema is None:
        content = {media: {"schema": ref("JsonObject")}}
    return {
        "operationId": operation,
        "summary": summary,
        "responses": {"200": {"description": summary, "content": content}, **_errors(*errors)},
    }


def _post(operation: str, summary: str, request: str, answer: str) -> Node:
    return {
        "operationId": operation,
        "summary": summary,
        "tags": ["Tokens"],
        "requestBody": {"required": True, "content": {"application/json": {"schema": ref(request)}}},
        "responses": {
            "200": {"description": summary, "content": {"application/json": {"schema": ref(answer)}}},
            **_errors("400", "401", "404", "408", "413"),
        },
    }


def _health() -> Node:
    operation = _get("health", "Whether the server is ready, and each of its models.", schema="Health", errors=())
    operation["responses"]["503"] = operation["responses"]["200"] | {
        "description": "It is not: it is draining, an engine is being started again, or one has crashed."
    }
    return operation


def _errors(*statuses: str) -> Node:
    """Return these errors, and those that go with them: 403 with all, 429 with 401."""
    body = {"application/json": {"schema": ref("Error")}}
    listed = sorted({*statuses, "403", *(["429"] if "401" in statuses else [])})
    return {status: {"description": _ERRORS[status], "content": body} for status in listed}


def _model_id() -> Node:
    return {
        "name": "id",
        "in": "path",
        "required": True,
        "description": "A model id or alias.",
        "schema": {"type": "string"},
    }


def _model_query() -> Node:
    return {
        "name": "model",
        "in": "query",
        "description": "A model id or alias; by default the first model.",
        "schema": {"type": "string"},
    }
