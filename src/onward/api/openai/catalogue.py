"""GET …/models and …/engines: the models of this server (behaviour §7)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import msgspec

from onward.api.openai.answer_examples import ENGINE, MODEL
from onward.api.openai.models import Model, ModelList
from onward.api.openai.operations import MODEL_ID, get
from onward.api.routes import JSON, Exchange, Node, Route, Services
from onward.errors import ModelNotFound
from onward.models.registry import ListedModel

Handler = Callable[[Services, Exchange], Awaitable[None]]
_ENCODER = msgspec.json.Encoder()


def model_object(listed: ListedModel) -> Model:
    """Return a name that requests may use, in OpenAI's shape."""
    return Model(id=listed.id, created=listed.created, owned_by=listed.owned_by)


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


def _names(root: str, kind: str, schema: str, handlers: tuple[Handler, Handler], example: Node) -> tuple[Route, Route]:
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


_MODELS = models, model
_LISTED, _MODEL = _names("/v1/models", "Models", "Model", _MODELS, MODEL)
ROUTES = (
    _LISTED,
    _LISTED.also("/models"),
    _MODEL,
    _MODEL.also("/models/{id}"),
    *_names("/openai/v1/models", "ModelsWithSchema", "Model", _MODELS, MODEL),
    *_names("/v1/engines", "Engines", "Engine", (engines, engine), ENGINE),
)
