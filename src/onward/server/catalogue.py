"""GET …/models and …/engines: the models of this server (behaviour §7)."""

from __future__ import annotations

import msgspec

from onward.api.openai.catalogue import model_object
from onward.api.openai.models import ModelList
from onward.backends.base import Backend
from onward.errors import ModelNotFound
from onward.models.registry import ListedModel
from onward.server.exchange import Exchange

_ENCODER = msgspec.json.Encoder()


class Catalogue:
    """The models endpoints, and the engines endpoints of the first client libraries."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend

    async def models(self, exchange: Exchange, _: str | None = None) -> None:
        await _respond(exchange, ModelList(data=list(map(model_object, self._backend.models()))))

    async def model(self, exchange: Exchange, name: str | None = None) -> None:
        await _respond(exchange, model_object(self._find(name)))

    async def engines(self, exchange: Exchange, _: str | None = None) -> None:
        data = [_engine(model) for model in self._backend.models()]
        await _respond(exchange, {"object": "list", "data": data})

    async def engine(self, exchange: Exchange, name: str | None = None) -> None:
        await _respond(exchange, _engine(self._find(name)))

    def _find(self, name: str | None) -> ListedModel:
        for model in self._backend.models():
            if model.id == name:
                return model
        raise ModelNotFound(f"The model '{name}' does not exist", param="model")


def _engine(model: ListedModel) -> dict[str, object]:
    """Return a model in the shape of the engines endpoint of 2021."""
    return {"id": model.id, "object": "engine", "owner": model.owned_by, "ready": True, "created": model.created}


async def _respond(exchange: Exchange, value: object) -> None:
    body = msgspec.json.format(_ENCODER.encode(value), indent=2) + b"\n"
    await exchange.respond(200, body, "application/json")
