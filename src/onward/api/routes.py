"""Routes: a method and a URL, the handler, and the documentation. The router, 405s, OpenAPI and the reference page are
made from them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, Self, TypeVar

import msgspec

from onward.api.body import BodyLimits, decode_object
from onward.api.decoder import check_fields
from onward.api.errors import OPENAI_ERRORS, ErrorWords
from onward.api.parameter import FieldTable, Profile
from onward.api.reply import Reply
from onward.backends.base import Backend
from onward.backends.restricted import RestrictedBackend
from onward.completions.limits import RequestLimits
from onward.completions.rejections import UnknownModel
from onward.completions.request import CompletionRequest
from onward.engine_load import EngineLoad
from onward.models.registry import ListedModel
from onward.offload import inline_or_on_thread
from onward.settings import Settings

T = TypeVar("T")
Complete = Callable[[Any, CompletionRequest, Reply], Awaitable[None]]
"""Completes a request for the client of an exchange; the reply writes the answer."""
JsonObject = dict[str, Any]
"""A part of an OpenAPI document."""
OpenAPIOperation = JsonObject | Callable[[Profile], JsonObject]
"""A route in OpenAPI's terms; by the profile, if it depends on that."""
JSON, JSON_UTF8 = "application/json", "application/json; charset=utf-8"
EVENTS = "text/event-stream"
LINES = "application/x-ndjson"


class Record(Protocol):
    """What the access log records of a request."""

    model: str
    user: str


class Exchange(Protocol):
    """One HTTP request and its response, as handlers of APIs see them. `path_value` is the value of `{id}` in the path.
    `with_schema`: a whole completion names its JSON Schema."""

    path: str
    path_value: str | None
    scheme: str
    with_schema: bool

    @property
    def record(self) -> Record: ...

    def header(self, name: bytes) -> str | None:
        """Return the first request header of this lower-case name, or None."""
        ...

    def query(self, name: str) -> str | None:
        """Return the first query parameter of this name, or None."""
        ...

    async def body(self, max_bytes: int) -> bytes:
        """Return the whole request body."""
        ...

    async def respond(self, status: int, body: bytes, content_type: str) -> None:
        """Send a whole response."""


async def respond_json(exchange: Exchange, value: object, *, status: int = 200, media: str = JSON) -> None:
    """Send what msgspec encodes as a whole response."""
    await exchange.respond(status, msgspec.json.encode(value), media)


@dataclass(frozen=True, slots=True)
class Services:
    """The parts of the server that handlers of APIs use. `complete` completes a request for the client of an exchange,
    in the shapes of a reply."""

    backend: Backend
    settings: Settings
    body_limits: BodyLimits
    complete: Complete

    @classmethod
    def create(cls, backend: Backend, settings: Settings, complete: Complete) -> Self:
        """Return services with the limits of the settings."""
        limits = RequestLimits.create(settings)
        return cls(backend, settings, BodyLimits(limits.max_prompts, limits.max_prompt_tokens), complete)

    def restricted(self, allows: Callable[[Iterable[str]], bool]) -> Services:
        """Return services for a key that may use only some models: those of which a name is allowed."""
        return replace(self, backend=RestrictedBackend(self.backend, allows))

    @property
    def profile(self) -> Profile:
        """The profile of dialects: strict concerns OpenAI's fields, which they do not have."""
        return "lenient" if self.settings.profile == "lenient" else "default"

    async def decode(self, exchange: Exchange, check: Callable[[dict[str, object]], T]) -> T:
        """Return what `check` makes of the body's fields, on any thread; record its model. Raises InvalidRequest.

        The content type is not checked: documented examples of these APIs send a form's.
        """
        body = await exchange.body(self.settings.max_body)

        def decoded() -> T:
            fields = decode_object(body, self.body_limits)
            model = fields.get("model")
            exchange.record.model = model if isinstance(model, str) and model else "-"
            return check(fields)

        return await inline_or_on_thread(len(body), decoded)

    async def fields(self, exchange: Exchange, rows: FieldTable) -> dict[str, Any]:
        """Return the checked fields of a body. Raises InvalidRequest."""
        return await self.decode(exchange, lambda fields: check_fields(fields, rows, self.profile))

    def model(self, name: str | None) -> ListedModel:
        """Return a listed model, by default the first. Raises UnknownModel."""
        for model in self.backend.models():
            if name is None or model.id == name:
                return model
        raise UnknownModel(name or "")

    def load(self, model: ListedModel) -> EngineLoad:
        """Return the load of the engine of a listed model. Where the key may not use the model that has it, nothing
        runs, in as many rows as the settings state."""
        loads = self.backend.load()
        target = next((each for each in self.backend.models() if each.id == model.model), model)
        return loads.get(target.parent or target.id) or EngineLoad(max_rows=self.settings.max_rows)


@dataclass(frozen=True, slots=True)
class Route:
    """One URL and one method of an API.

    A path may contain one `{id}`, whose value may contain slashes. `handler` takes its owner (`Services`, or the part
    of the server that the routes belong to) and the exchange. `words` are its errors. `public`: needs no key.

    A route of another server's API is described by `name` (its operationId), `summary`, `body` (the table of its
    fields) and `stream` (the media type of its streams); one of OpenAI's API and of this server by `operation`.
    Neither: another URL of a route that is described. `example` is an answer by media type. `parameters` are those of
    the path.
    """

    method: str
    path: str
    handler: Callable[[Any, Any], Awaitable[None]]
    name: str = ""
    summary: str = ""
    body: FieldTable | None = None
    stream: str | None = None
    words: ErrorWords = OPENAI_ERRORS
    public: bool = False
    operation: OpenAPIOperation | None = None
    example: Mapping[str, object] = field(default_factory=dict)
    parameters: tuple[JsonObject, ...] = ()

    def also(self, path: str) -> Route:
        """Return another URL of this route, which is not described."""
        return Route(self.method, path, self.handler, words=self.words, public=self.public)


def with_words(words: ErrorWords, *routes: Route) -> tuple[Route, ...]:
    """Return the routes of an API whose errors have these words."""
    return tuple(replace(route, words=words) for route in routes)
