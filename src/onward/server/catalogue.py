"""GET …/models and …/engines: which names can be asked for (spec/completions §7)."""

from __future__ import annotations

import msgspec

from onward.backends.base import Backend
from onward.errors import ModelNotFound
from onward.protocol.models import Model, ModelList
from onward.server.exchange import Exchange

_ENCODER = msgspec.json.Encoder()


class Catalogue:
    """The models endpoints, and the engines that the first clients knew them as."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend

    async def models(self, exchange: Exchange, _: str | None = None) -> None:
        await _answer(exchange, ModelList(data=self._backend.models()))

    async def model(self, exchange: Exchange, name: str | None = None) -> None:
        await _answer(exchange, self._find(name))

    async def engines(self, exchange: Exchange, _: str | None = None) -> None:
        data = [_engine(model) for model in self._backend.models()]
        await _answer(exchange, {"object": "list", "data": data})

    async def engine(self, exchange: Exchange, name: str | None = None) -> None:
        await _answer(exchange, _engine(self._find(name)))

    def _find(self, name: str | None) -> Model:
        for model in self._backend.models():
            if model.id == name:
                return model
        raise ModelNotFound(f"The model '{name}' does not exist", param="model")


def _engine(model: Model) -> dict[str, object]:
    """A model in the words of 2021."""
    return {"id": model.id, "object": "engine", "owner": model.owned_by, "ready": True, "created": model.created}


async def _answer(exchange: Exchange, value: object) -> None:
    body = msgspec.json.format(_ENCODER.encode(value), indent=2) + b"\n"
    await exchange.answer(200, body, "application/json")
