"""A backend as a key sees it that may use some of its models only: the others do not exist."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from msgspec import structs

from onward.backends.base import Admit, Backend, Health, TokenizerInfo
from onward.completions.answer import Answer
from onward.completions.rejections import UnknownModel
from onward.completions.request import CompletionRequest
from onward.engine_load import EngineLoad
from onward.models.registry import ListedModel


@dataclass(frozen=True, slots=True)
class RestrictedBackend:
    """Implements `Backend` over another one, for whoever may use the models of which `allows` accepts a name: a name
    of the list, or the id of the model behind it."""

    backend: Backend
    allows: Callable[[Iterable[str]], bool]

    def models(self) -> list[ListedModel]:
        return [model for model in self.backend.models() if self.allows({model.id, model.model})]

    async def complete(self, request: CompletionRequest, *, client: str = "", admit: Admit | None = None) -> Answer:
        model = self._checked(request.model)
        request = request if model == request.model else structs.replace(request, model=model)
        return await self.backend.complete(request, client=client, admit=admit)

    async def tokenizer_info(self, model: str | None) -> TokenizerInfo:
        return await self.backend.tokenizer_info(self._checked(model))

    async def tokenize(self, model: str | None, text: str, add_special_tokens: bool) -> list[int]:
        return await self.backend.tokenize(self._checked(model), text, add_special_tokens)

    async def token_bytes(self, model: str | None, tokens: list[int]) -> list[bytes]:
        return await self.backend.token_bytes(self._checked(model), tokens)

    def health(self) -> Health:
        health = self.backend.health()
        return replace(health, models={name: one for name, one in health.models.items() if self.allows({name})})

    def load(self) -> dict[str, EngineLoad]:
        return {name: load for name, load in self.backend.load().items() if self.allows({name})}

    def drain(self) -> None:
        self.backend.drain()

    async def aclose(self) -> None:
        await self.backend.aclose()

    def _checked(self, name: str | None) -> str:
        """Return the name of a model that may be used; the first one if none is named. Raises UnknownModel."""
        names = [model.id for model in self.models()]
        if not name:
            name = next(iter(names), "")
        if name not in names and not self.allows({name}):
            raise UnknownModel(name)
        return name
