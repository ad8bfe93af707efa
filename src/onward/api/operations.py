"""How routes of OpenAI's API and of this server are described in OpenAPI, and the schemas of tokens, engines and
health."""

from __future__ import annotations

from typing import Any

from onward.api.openai.parameters import TABLES
from onward.api.parameter import Profile
from onward.api.request_schema import request_schema
from onward.api.routes import JSON, JsonObject, OpenAPIOperation
from onward.api.seed import SEED_OF_REQUEST, SEED_OF_RESPONSE

_ERRORS = {
    "400": "The request is invalid.",
    "401": "The API key is missing or incorrect.",
    "403": "A web page of another site, or a host, that this server does not answer; or a key without this right.",
    "404": "There is no such model or URL.",
    "405": "The URL does not support this method.",
    "409": "It has ended already, or another change is being made.",
    "408": "The rest of the body did not arrive in time.",
    "413": "The body is too large.",
    "429": "Too many incorrect API keys came from this address. `Retry-After` is in seconds.",
    "500": "An internal error.",
    "503": "The server is overloaded or draining, or its engine has crashed. `Retry-After` is in seconds.",
}

_REQUEST_EXAMPLES: dict[str, JsonObject] = {
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


def ref(name: str) -> JsonObject:
    """Return a reference to a schema."""
    return {"$ref": f"#/components/schemas/{name}"}


def complete_in_path(operation: str) -> OpenAPIOperation:
    """Return the operation of a completions route whose URL names the model."""

    def described(profile: Profile) -> JsonObject:
        return _complete(operation, profile) | {
            "description": "The fields of CompletionRequest; the URL names the model, so `model` may be omitted.",
            "requestBody": _request_body(request_schema(profile, model_in_path=True), profile),
        }

    return described


def resume(suffix: str = "") -> JsonObject:
    """Return the operation that resumes a stream requested with `stream_options.resumable`."""
    operation = get(
        f"resumeCompletion{suffix}",
        "The rest of a stream whose connection was lost, or the whole completion with `Accept: application/json`.",
        schema=f"{'Linked' if suffix else ''}Completion",
        errors=("400", "401", "404", "500", "503"),
        tags=["Completions"],
        parameters=[
            _parameter("header", "Last-Event-ID", "The id of the last event that was received; by default none.")
        ],
    )
    events: JsonObject = {"description": "Server-sent events.", "contentMediaType": "text/event-stream"}
    operation["responses"]["200"]["content"]["text/event-stream"] = {"schema": events}
    operation["responses"]["200"]["headers"] = SEED_OF_RESPONSE
    operation["responses"]["204"] = {"description": "Nothing follows the last event."}
    return operation


def cancel(suffix: str = "") -> JsonObject:
    """Return the operation that ends a stream."""
    return get(f"cancelCompletion{suffix}", "End the work on a stream.", errors=("401", "404"), tags=["Completions"])


def _parameter(place: str, name: str, description: str) -> JsonObject:
    return {"name": name, "in": place, "description": description, "schema": {"type": "string"}}


def get(
    operation: str,
    summary: str,
    media: str = JSON,
    *,
    schema: str | None = None,
    errors: tuple[str, ...] = ("401",),
    is_open: bool = False,
    **more: Any,
) -> JsonObject:
    """Return an operation that answers with a schema, or with a text of a media type. `is_open`: it needs no key.
    `more` are further parts of it."""
    content: JsonObject = {media: {"schema": ref(schema) if schema else {"type": "string"}}}
    if media.endswith("json") and schema is None:
        content = {media: {"schema": ref("JsonObject")}}
    responses = {"200": {"description": summary, "content": content}, **_errors(*errors)}
    if is_open:
        responses = {status: answer for status, answer in responses.items() if status not in ("401", "429")}
        more["security"] = []
    return {"operationId": operation, "summary": summary, "responses": responses, **more}


def tokenize(suffix: str) -> JsonObject:
    return _post(
        f"tokenize{suffix}", "Token ids of a text.", "TokenizeRequest", "TokenizeResponse",
        description="Where the dialect of llama-server is served, its request is taken too: `content` instead of "
        "`prompt`, `add_special` and `with_pieces`. Its answer has only `tokens`.",
    )  # fmt: skip


def detokenize(suffix: str) -> JsonObject:
    return _post(f"detokenize{suffix}", "The text of token ids.", "DetokenizeRequest", "DetokenizeResponse")


def apply_template(suffix: str) -> JsonObject:
    return _post(
        f"applyTemplate{suffix}", "Render a conversation as a prompt, with the model's chat template.",
        "ApplyTemplateRequest", "ApplyTemplateResponse",
        description="The template is part of the model's files. It is rendered in a process of its own, with limits of "
        "time and memory; the result is plain text, to be sent as `prompt`.",
    )  # fmt: skip


def health() -> JsonObject:
    summary = "Whether the server is ready, and each of its models."
    operation = get("health", summary, schema="Health", errors=(), is_open=True)
    operation["responses"]["503"] = operation["responses"]["200"] | {
        "description": "It is not: it is draining, an engine is being started again, or one has crashed."
    }
    return operation


def complete(operation: str, *, linked: bool = False) -> OpenAPIOperation:
    """Return the operation of a completions route. The response of a linked one has `$schema` and a Link header."""
    return lambda profile: _complete(operation, profile, linked=linked)


def _complete(operation: str, profile: Profile, *, linked: bool = False) -> JsonObject:
    complete: JsonObject = {"application/json": {"schema": ref("LinkedCompletion" if linked else "Completion")}}
    # OpenAPI 3.1 cannot describe event streams; tools apply a schema either to the body or to each event.
    events: JsonObject = {"description": "Server-sent events.", "contentMediaType": "text/event-stream"}
    stream = {"text/event-stream": {"schema": events}}
    answer: JsonObject = {
        "description": "The completion. With `stream`, server-sent events: each `data:` line holds one "
        "CompletionChunk, and `data: [DONE]` ends the stream. An error after the first event is one more event "
        "with an `error` object. Lines that begin with a colon are comments.",
        "content": {**complete, **stream},
        "headers": {"x-request-id": {"schema": {"type": "string"}}, **SEED_OF_RESPONSE},
    }
    if linked:
        answer["headers"]["link"] = {"schema": {"type": "string"}}
    return {
        "operationId": operation,
        "summary": "Continue a prompt.",
        "description": "Completions and models are also served without /v1, for clients whose base URL lacks it.",
        "tags": ["Completions"],
        "parameters": [SEED_OF_REQUEST],
        "requestBody": _request_body(ref("CompletionRequest"), profile),
        "responses": {"200": answer, **_errors(*_ERRORS)},
    }


def _request_body(schema: JsonObject, profile: Profile) -> JsonObject:
    """Return a body of this schema, with the examples that the profile accepts."""
    known = TABLES[profile].keys()
    examples = {name: {"value": value} for name, value in _REQUEST_EXAMPLES.items() if value.keys() <= known}
    return {"required": True, "content": {"application/json": {"schema": schema, "examples": examples}}}


def _post(operation: str, summary: str, request: str, answer: str, **more: Any) -> JsonObject:
    return {
        "operationId": operation,
        "summary": summary,
        "tags": ["Tokens"],
        "requestBody": body(JSON, ref(request)),
        "responses": {
            "200": {"description": summary, "content": {JSON: {"schema": ref(answer)}}},
            **_errors("400", "401", "404", "408", "413"),
        },
        **more,
    }


def body(media: str, schema: JsonObject) -> JsonObject:
    """Return a request body of this schema."""
    return {"required": True, "content": {media: {"schema": schema}}}


def _errors(*statuses: str) -> JsonObject:
    """Return these errors, and those that go with them: 403 with all, 429 with 401."""
    body = {"application/json": {"schema": ref("Error")}}
    listed = sorted({*statuses, "403", *(["429"] if "401" in statuses else [])})
    return {status: {"description": _ERRORS[status], "content": body} for status in listed}


def id_in_path(description: str) -> JsonObject:
    """Return the parameter `id` of a path."""
    return {"name": "id", "in": "path", "required": True, "description": description, "schema": {"type": "string"}}


MODEL_ID = id_in_path("A model id or alias.")


MODEL_QUERY: JsonObject = {
    "name": "model",
    "in": "query",
    "description": "A model id or alias; by default the first model.",
    "schema": {"type": "string"},
}
STREAM_ID = _parameter("path", "id", "The id of the completion, from any of its chunks.") | {"required": True}


Schema = dict[str, Any]

_TEXT: Schema = {"type": "string"}
_COUNT: Schema = {"type": "integer"}
_LITERAL: Schema = {"type": ["string", "null"]}
_TOKENS: Schema = {"type": "array", "items": {"type": "integer"}}
_TURN: Schema = {
    "type": "object", "properties": {"role": _TEXT, "content": _TEXT}, "required": ["role", "content"],
    "additionalProperties": False,
}  # fmt: skip
_MODEL: Schema = _LITERAL | {"description": "A model id or alias; by default the first model."}


def server_schemas() -> dict[str, Schema]:
    """Return the schemas by name. Their leaves are shared: copy before modifying."""
    return {
        **_token_schemas(),
        "Engine": _record(
            {
                "id": _TEXT,
                "object": {"enum": ["engine"]},
                "owner": _TEXT,
                "ready": {"type": "boolean"},
                "created": _COUNT,
            }
        ),
        "EngineList": _record(
            {
                "object": {"enum": ["list"]},
                "data": {"type": "array", "items": {"$ref": "#/components/schemas/Engine"}},
            }
        ),
        "Health": _health_schema(),
        "UsagePage": _record(
            {
                "object": {"enum": ["page"]},
                "data": {"type": "array", "items": {"type": "object"}},
                "has_more": {"type": "boolean"},
                "next_page": {"type": ["string", "null"]},
            }
        ),
        "Live": _record({"status": {"enum": ["live"]}}),
        "JsonObject": {"type": "object"},
    }


def _health_schema() -> Schema:
    """Return the schema of /health. Where there are keys, `models` is shown to requests with one."""
    model = _record({"status": {"enum": ["ready", "recovering", "dead"]}, "detail": _TEXT})
    body = _record({"status": {"enum": ["ready", "recovering", "draining", "dead"]}, "detail": _TEXT})
    body["properties"]["models"] = {"type": "object", "additionalProperties": model}
    return body


def _token_schemas() -> dict[str, Schema]:
    """Return the schemas of the tokenizer routes, which follow vLLM (behaviour §14)."""
    return {
        "TokenizeRequest": _request(
            {
                "model": _MODEL,
                "prompt": _TEXT,
                "add_special_tokens": _switch(True, "Whether the tokenizer adds its start token."),
                "return_token_strs": _switch(False, "Whether to return the tokens' texts as well."),
                "return_token_bytes": _switch(
                    False,
                    "Whether to return the tokens' bytes as well, in hexadecimal: a token may hold a part of a "
                    "character, which its text cannot show.",
                ),
            },
            required=["prompt"],
        ),
        "TokenizeResponse": _token_answer(),
        "DetokenizeRequest": _request({"model": _MODEL, "tokens": _TOKENS}, required=["tokens"]),
        "DetokenizeResponse": _detokenize_answer(),
        "ApplyTemplateRequest": _request(
            {
                "model": _MODEL,
                "messages": {"type": "array", "items": _TURN},
                "add_generation_prompt": _switch(True, "Whether the prompt ends where the model's answer begins."),
            },
            required=["messages"],
        ),
        "ApplyTemplateResponse": _record({"prompt": _TEXT}),
        "TokenizerInfo": _record(
            {
                "tokenizer_class": _TEXT,
                "bos_token": _LITERAL,
                "bos_token_id": {"type": ["integer", "null"]},
                "eos_token": _LITERAL,
                "eos_token_id": {"type": ["integer", "null"]},
                "add_bos_token": {
                    "type": "boolean",
                    "description": "Whether the model needs the start token: it is added to texts, and prompts of "
                    "token ids should begin with it.",
                },
                "additional_special_tokens": {"type": "array", "items": _TEXT},
                "vocab_size": _COUNT,
                "model_max_length": _COUNT,
                "infill": {"type": "boolean", "description": "Whether the model supports `suffix`."},
                "chat_template": {"type": ["string", "null"], "description": "What /apply-template renders."},
            }
        ),
    }


def _token_answer() -> Schema:
    """Return the schema of the answer to /tokenize. `token_bytes` is part of it where it was requested."""
    answer = _record(
        {
            "count": _COUNT,
            "max_model_len": _COUNT,
            "tokens": _TOKENS,
            "token_strs": {"type": ["array", "null"], "items": _TEXT},
        }
    )
    answer["properties"]["token_bytes"] = {"type": "array", "items": _TEXT}
    return answer


def _detokenize_answer() -> Schema:
    """Return the schema of the answer to /detokenize. `content`, the same text, is part of it where the dialect of
    llama-server is served."""
    answer = _record({"prompt": _TEXT})
    answer["properties"]["content"] = _TEXT
    return answer


def _record(properties: Schema) -> Schema:
    """Return the schema of an object with all these properties."""
    return {"type": "object", "properties": properties, "required": list(properties)}


def _request(properties: Schema, *, required: list[str]) -> Schema:
    """Return the schema of a request. Other fields are rejected, in every profile."""
    return {"type": "object", "properties": properties, "required": required, "additionalProperties": False}


def _switch(default: bool, description: str) -> Schema:
    return {"type": ["boolean", "null"], "default": default, "description": description}
