"""The routes of OpenAI's API: POST …/completions, and GET …/models and …/engines (behaviour §7)."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable

import msgspec

from onward.api.body import decode_object
from onward.api.openai.decode import check_request
from onward.api.openai.reply import OpenAIReply
from onward.api.openai.response import Model, ModelList
from onward.api.operations import MODEL_ID, complete, complete_in_path, get
from onward.api.routes import EVENTS, JSON, Exchange, JsonObject, Record, Route, Services
from onward.completions.request import CompletionRequest
from onward.errors import ModelNotFound, UnsupportedContentType
from onward.models.registry import ListedModel
from onward.offload import inline_or_on_thread

Handler = Callable[[Services, Exchange], Awaitable[None]]
_ENCODER = msgspec.json.Encoder()

SCHEMA_PATH = "/openai/schemas/Completion.json"
LINK = (b"link", f'<{SCHEMA_PATH}>; rel="describedBy"'.encode())
_HOST = re.compile(r"[A-Za-z0-9.\-]+(:\d+)?|\[[0-9A-Fa-f:.]+\](:\d+)?")


def schema_url(exchange: Exchange) -> str:
    """Return the URL of the schema as the client reaches this server; only its path where that is unknown."""
    return (public_url(exchange) or "") + SCHEMA_PATH


def public_url(exchange: Exchange) -> str | None:
    """Return `http://HOST:PORT` as the client reaches this server, through a proxy too. Safe in HTML and shells.

    None if the client sent no valid host.
    """
    forwarded = _forwarded(exchange.header(b"forwarded") or "")
    scheme = exchange.header(b"x-forwarded-proto") or forwarded.get("proto") or exchange.scheme
    host = exchange.header(b"x-forwarded-host") or forwarded.get("host") or exchange.header(b"host") or ""
    if not _HOST.fullmatch(host) or scheme not in ("http", "https"):
        return None
    return f"{scheme}://{host}"


def _forwarded(header: str) -> dict[str, str]:
    """Return the pairs of the first element of a Forwarded header (RFC 7239)."""
    pairs = (pair.partition("=") for pair in header.partition(",")[0].split(";"))
    return {name.strip().lower(): value.strip().strip('"') for name, _, value in pairs}


async def create(services: Services, exchange: Exchange) -> None:
    """Complete a request, by the model that the URL names if it does. Raises ApiError, RequestRejected."""
    check_content_type(exchange)
    body = await exchange.body(services.settings.max_body)
    record, path_model = exchange.record, exchange.path_value

    def decoded() -> CompletionRequest:
        """Decode on any thread; record model and user, also if the request is invalid."""
        fields = decode_object(body, services.body_limits)
        _record(record, fields, path_model)
        return check_request(fields, profile=services.settings.profile, path_model=path_model)

    request = await inline_or_on_thread(len(body), decoded)
    reply = OpenAIReply(request, schema=schema_url(exchange) if exchange.with_schema else None)
    await services.complete(exchange, request, reply)


async def create_with_schema(services: Services, exchange: Exchange) -> None:
    """Complete a request, with `$schema` in a JSON response (behaviour §10)."""
    exchange.with_schema = True
    await create(services, exchange)


def _record(record: Record, fields: dict[str, object], path_model: str | None) -> None:
    """Record model and user for the access log, as the client sent them."""
    model, user = path_model or fields.get("model"), fields.get("user")
    record.model = model if isinstance(model, str) and model else "-"
    record.user = user if isinstance(user, str) and user else "-"


def check_content_type(exchange: Exchange) -> None:
    """Raise UnsupportedContentType if the request has a Content-Type other than JSON."""
    given = exchange.header(b"content-type")
    if given is None or given.partition(";")[0].strip().lower() == "application/json":
        return
    kind = given.partition(";")[0].strip()
    raise UnsupportedContentType(
        f"Unsupported content type: '{kind}'. This API method only accepts 'application/json' requests, but you "
        f"specified the header 'Content-Type: {given}'. Please try again with a supported content type."
    )


_CREATED = 1755097557
_COMPLETION_ID = "cmpl-C47L3RG6ICY37W3Q0flVHr4BPTPMS"
COMPLETION: JsonObject = {
    "id": _COMPLETION_ID,
    "object": "text_completion",
    "created": _CREATED,
    "model": "storyteller",
    "system_fingerprint": "fp_2f1a9c0b7d",
    "choices": [
        {"text": " there was a fox", "index": 0, "logprobs": None, "finish_reason": "length"},
    ],
    "usage": {
        "prompt_tokens": 4,
        "completion_tokens": 4,
        "total_tokens": 8,
        "prompt_tokens_details": {
            "cached_tokens": 0,
            "audio_tokens": 0,
            "text_tokens": 4,
            "image_tokens": 0,
            "cache_write_tokens": 0,
        },
        "completion_tokens_details": {
            "reasoning_tokens": 0,
            "audio_tokens": 0,
            "accepted_prediction_tokens": 0,
            "rejected_prediction_tokens": 0,
            "text_tokens": 4,
        },
    },
}
LINKED: JsonObject = {"$schema": f"http://127.0.0.1:8000{SCHEMA_PATH}", **COMPLETION}
CHUNK = (
    f'data: {{"id":"{_COMPLETION_ID}","object":"text_completion","created":{_CREATED},'
    '"choices":[{"text":" there","index":0,"logprobs":null,"finish_reason":null}],"model":"storyteller"}\n\n'
)
_STREAM = CHUNK + "data: [DONE]\n\n"
_EXAMPLE = {JSON: COMPLETION, EVENTS: _STREAM}
_CREATE = Route("POST", "/v1/completions", create, operation=complete("createCompletion"), example=_EXAMPLE)
COMPLETIONS = (
    _CREATE,
    _CREATE.also("/completions"),
    Route(
        "POST",
        "/openai/v1/completions",
        create_with_schema,
        operation=complete("createCompletionWithSchema", linked=True),
        example={JSON: LINKED, EVENTS: _STREAM},
    ),
)
COMPLETIONS_OF_MODELS = (
    Route(
        "POST",
        "/v1/engines/{id}/completions",
        create,
        operation=complete_in_path("createEngineCompletion"),
        example=_EXAMPLE,
        parameters=(MODEL_ID,),
    ),
    Route(
        "POST",
        "/m/{id}/v1/completions",
        create,
        operation=complete_in_path("createModelCompletion"),
        example=_EXAMPLE,
        parameters=(MODEL_ID,),
    ),
)
"""Those whose URL names the model."""


def model_object(listed: ListedModel) -> Model:
    """Return a name that requests may use, in OpenAI's shape."""
    return Model(id=listed.id, created=listed.created, owned_by=listed.owned_by, parent=listed.parent or None)


async def models(services: Services, exchange: Exchange) -> None:
    await _respond(exchange, ModelList(data=list(map(model_object, services.backend.models()))))


async def model(services: Services, exchange: Exchange) -> None:
    await _respond(exchange, model_object(_find(services, exchange.path_value)))


async def engines(services: Services, exchange: Exchange) -> None:
    data = [_engine(model) for model in services.backend.models()]
    await _respond(exchange, {"object": "list", "data": data})


async def engine(services: Services, exchange: Exchange) -> None:
    await _respond(exchange, _engine(_find(services, exchange.path_value)))


def _find(services: Services, name: str | None) -> ListedModel:
    for model in services.backend.models():
        if model.id == name:
            return model
    raise ModelNotFound(f"The model '{name}' does not exist", param="model")


def _names(
    root: str, kind: str, schema: str, handlers: tuple[Handler, Handler], example: JsonObject
) -> tuple[Route, Route]:
    """Return the route of a list and the route of one item of it."""
    all_of = get(f"list{kind}", f"List all {schema.lower()}s.", schema=f"{schema}List")
    one = get(f"retrieve{kind}", f"Retrieve one {schema.lower()}.", schema=schema, errors=("401", "404"))
    listed = {"object": "list", "data": [example]}
    return (
        Route("GET", root, handlers[0], operation=all_of, example={JSON: listed}),
        Route("GET", f"{root}/{{id}}", handlers[1], operation=one, example={JSON: example}, parameters=(MODEL_ID,)),
    )


def _engine(model: ListedModel) -> dict[str, object]:
    """Return a model in the shape of the engines endpoint of 2021."""
    return {"id": model.id, "object": "engine", "owner": model.owned_by, "ready": True, "created": model.created}


async def _respond(exchange: Exchange, value: object) -> None:
    body = msgspec.json.format(_ENCODER.encode(value), indent=2) + b"\n"
    await exchange.respond(200, body, "application/json")


_MODEL_EXAMPLE: JsonObject = {"id": "storyteller", "object": "model", "created": _CREATED, "owned_by": "onward"}
_ENGINE_EXAMPLE: JsonObject = {
    "id": "storyteller",
    "object": "engine",
    "owner": "onward",
    "ready": True,
    "created": _CREATED,
}
_MODELS = models, model
_LISTED, _MODEL = _names("/v1/models", "Models", "Model", _MODELS, _MODEL_EXAMPLE)
CATALOGUE = (
    _LISTED,
    _LISTED.also("/models"),
    _MODEL,
    _MODEL.also("/models/{id}"),
    *_names("/openai/v1/models", "ModelsWithSchema", "Model", _MODELS, _MODEL_EXAMPLE),
    *_names("/v1/engines", "Engines", "Engine", (engines, engine), _ENGINE_EXAMPLE),
)
