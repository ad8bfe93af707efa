"""A model in this process."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Container, Mapping
from dataclasses import dataclass, replace
from typing import Any

import msgspec
from msgspec import structs

from onward.api.openai.decode import check_request
from onward.api.openai.errors import openai_words
from onward.api.openai.reply import fold_chunks, fold_whole
from onward.api.openai.response import Chunk, Completion
from onward.api.reply import Reply
from onward.api.routes import Route, Services
from onward.backends.base import Backend
from onward.cli.output.progress import loading
from onward.cli.session import announce
from onward.cli.source.base import Document, TokenizedText, TokenizerFacts
from onward.completions.request import CompletionRequest
from onward.compose import compose
from onward.compose.drafts import draft_words
from onward.compose.unused import unused_settings
from onward.errors import HubUnreachable, InvalidRequest, ModelNameError
from onward.models.resolve import resolve as resolve_model
from onward.settings import Settings, model_named, resolve, served_name


class LocalSource:
    """Implements `base.Source` on a backend, which it owns. `names` maps requested names to model ids. `settings` are
    those of requests of other APIs."""

    def __init__(self, backend: Backend, names: dict[str, str], settings: Settings | None = None) -> None:
        self._backend = backend
        self._names = names
        self._settings = settings or Settings()
        self.name = backend.models()[0].id

    async def complete(self, fields: dict[str, Any], *, seed: int | None = None) -> Document:
        return await self._complete(check_request(self._served(fields)), seed)

    async def complete_as(
        self, route: Route, fields: dict[str, Any], model: str, *, seed: int | None = None
    ) -> Document:
        """Return OpenAI's completion for a request of another API, by its route, without an echoed prompt. Raises
        ApiError."""
        captured: list[CompletionRequest] = []

        async def capture(_: Any, request: CompletionRequest, __: Reply) -> None:
            captured.append(request)

        named = fields | ({"model": self._named(model)} if "model" in fields else {})
        with openai_words():
            await route.handler(
                Services.create(self._backend, self._settings, capture), _Posted(route.path, msgspec.json.encode(named))
            )
        if not captured:
            raise InvalidRequest("It does not request a completion.")
        request = structs.replace(captured[0], model=self._named(model), stream=False, include_usage=False, echo=False)
        return await self._complete(request, seed)

    async def _complete(self, request: CompletionRequest, seed: int | None) -> Document:
        if seed is not None:
            request = structs.replace(request, random_seed=seed)
        with openai_words():
            answer = await self._backend.complete(request)
        try:
            document = _document(await fold_whole(answer, request))
            return replace(document, seed=answer.seed if request.seed is None else None)
        finally:
            await answer.aclose()

    async def chunks(self, fields: dict[str, Any]) -> AsyncGenerator[Document, None]:
        request = check_request(self._served(fields))
        with openai_words():
            answer = await self._backend.complete(request)
        try:
            async for chunks in fold_chunks(answer, request):
                for chunk in chunks:
                    yield _document(chunk)
        finally:
            await answer.aclose()

    async def tokenizer_facts(self, model: str | None) -> TokenizerFacts:
        with openai_words():
            info = await self._backend.tokenizer_info(self._named(model))
        prefix = info.eos_token_id if info.bos_token_id is None else info.bos_token_id
        return TokenizerFacts(info.context_length, prefix, info.adds_bos)

    async def tokenize(self, model: str | None, text: str) -> TokenizedText:
        with openai_words():
            tokens = await self._backend.tokenize(self._named(model), text, False)
            return TokenizedText(tokens, await self._backend.token_bytes(self._named(model), tokens))

    async def aclose(self) -> None:
        await self._backend.aclose()

    def _named(self, asked: str | None) -> str:
        """Return the id of the model that a request names, or of the first model if it names none."""
        return self._names.get(asked or self.name, asked or self.name)

    def _served(self, fields: dict[str, Any]) -> dict[str, Any]:
        asked = fields.get("model") or self.name
        return {**fields, "model": self._named(asked) if isinstance(asked, str) else asked}


@dataclass(slots=True)
class _Record:
    model: str = "-"
    user: str = "-"


class _Posted:
    """Implements `api.routes.Exchange` for a body that was received earlier: responses that a handler sends are
    dropped."""

    path_value: str | None = None
    scheme = "http"
    with_schema = False

    def __init__(self, path: str, body: bytes) -> None:
        self.path = path
        self.record = _Record()
        self._body = body

    def header(self, _: bytes) -> str | None:
        return None

    def query(self, _: str) -> str | None:
        return None

    async def body(self, _: int) -> bytes:
        return self._body

    async def respond(self, status: int, body: bytes, content_type: str) -> None: ...


def open_local(models: list[str], flags: Mapping[str, str]) -> LocalSource:
    """Load these models, or the default model of the settings if there are none. A terminal shows the progress.

    `flags` override other settings. Slow; blocks. Raises SetupError.
    """
    resolved = resolve(flags, limits_found_file=True)
    announce(resolved)
    settings = replace(resolved.settings, offline=resolved.settings.offline or not resolved.may_download(*models))
    asked = list(dict.fromkeys(models)) or _addresses(settings.model)
    targets = [model_named(name, settings) for name in asked]
    with loading() as progress:
        backend = compose(_for(settings, targets, flags), progress)
    ids = [model.id for model in backend.models()]
    served = list(map(served_name, targets))
    ids_by_name = dict(zip(dict.fromkeys(served), ids, strict=True))
    return LocalSource(
        backend, {name: ids_by_name[target] for name, target in zip(asked, served, strict=True)}, settings
    )


def unknown_models(names: list[str]) -> dict[str, str]:
    """Return the names that are not models, with the reason. Blocks; downloads the others.

    Raises SetupError for a broken model, and HubUnreachable if the hub cannot be reached.
    """
    resolved = resolve(limits_found_file=True)
    announce(resolved)
    unknown: dict[str, str] = {}
    with loading() as progress:
        for name in names:
            target = model_named(name, resolved.settings)
            try:
                may_download = resolved.may_download(name) and not resolved.settings.offline
                resolve_model(target, allow_download=may_download, progress=progress)
            except HubUnreachable:
                raise
            except (ModelNameError, OSError) as problem:
                unknown[name] = str(problem)
    return unknown


def _addresses(models: tuple[str, ...]) -> list[str]:
    """Return the first model, with all its addresses if other servers compute it."""
    return [model for model in models if served_name(model) == served_name(models[0])]


def _for(settings: Settings, models: list[str], flags: Container[str]) -> Settings:
    """Return the settings for these models alone: what is stated of others does not concern them, nor what is for
    Onward's own engine, unless a flag states it, where that computes none of these."""
    names = set(map(served_name, models))
    chosen = replace(
        settings,
        model=tuple(dict.fromkeys(models)),
        alias=(),
        lora=(),
        draft=tuple(pair for pair in draft_words(settings).items() if pair[0] in names),
        engine=tuple(pair for pair in settings.engine if pair[0] in {"", *names}),
        tokenizer=tuple(pair for pair in settings.tokenizer if pair[0] in names),
        openai_names=False,
    )
    unused = {name: getattr(Settings, name) for name in unused_settings(chosen, is_server=False) if name not in flags}
    return replace(chosen, **unused)


def _document(answer: Completion | Chunk) -> Document:
    encoded = msgspec.json.encode(answer)
    return Document(msgspec.json.decode(encoded), encoded.decode())
