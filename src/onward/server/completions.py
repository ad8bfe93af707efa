"""POST …/completions: from the request body to a JSON response or a stream of server-sent events."""

from __future__ import annotations

from onward.api.body_limits import BodyLimits
from onward.api.openai.answer_examples import COMPLETION, LINKED, STREAM
from onward.api.openai.decode import check_request, decode_object
from onward.api.openai.operations import MODEL_ID, complete, complete_in_path
from onward.api.openai.reply import OpenAIReply
from onward.api.routes import EVENTS, JSON, Route
from onward.completions.limits import RequestLimits
from onward.completions.request import CompletionRequest
from onward.errors import UnsupportedContentType
from onward.offload import inline_or_on_thread
from onward.server.completion_run import Runner
from onward.server.exchange import Exchange
from onward.server.record import RequestRecord
from onward.server.schema_link import schema_url
from onward.server.streams.kept import KeptStreams
from onward.server.streams.run import complete_kept, is_resumable
from onward.settings import Settings


class Completions:
    """The completions endpoint. `kept` has the streams that can be resumed."""

    def __init__(self, runner: Runner, settings: Settings, kept: KeptStreams) -> None:
        self._runner = runner
        self._settings = settings
        self._body_limits = body_limits(settings)
        self._kept = kept

    async def create(self, exchange: Exchange) -> None:
        """Complete a request, by the model that the URL names if it does. Raises ApiError, ClientDisconnected."""
        check_content_type(exchange)
        body = await exchange.body(self._settings.max_body)
        record, path_model = exchange.record, exchange.path_value
        request = await inline_or_on_thread(len(body), lambda: self._decode(body, record, path_model))
        reply = OpenAIReply(request, schema=schema_url(exchange) if exchange.with_schema else None)
        if is_resumable(exchange, request, self._kept):
            await complete_kept(self._runner, exchange, request, reply, self._kept)
        else:
            await self._runner.complete(exchange, request, reply)

    def _decode(self, body: bytes, record: RequestRecord, path_model: str | None) -> CompletionRequest:
        """Decode a request on any thread; record its model and user, also if it is invalid. Raises InvalidRequest."""
        fields = decode_object(body, self._body_limits)
        _record(record, fields, path_model)
        return check_request(fields, profile=self._settings.profile, path_model=path_model)

    async def create_with_schema(self, exchange: Exchange) -> None:
        """Complete a request, with `$schema` in a JSON response (behaviour §10)."""
        exchange.with_schema = True
        await self.create(exchange)


_EXAMPLE = {JSON: COMPLETION, EVENTS: STREAM}
_CREATE = Route("POST", "/v1/completions", Completions.create, operation=complete("createCompletion"), example=_EXAMPLE)
ROUTES = (
    _CREATE,
    _CREATE.also("/completions"),
    Route(
        "POST",
        "/openai/v1/completions",
        Completions.create_with_schema,
        operation=complete("createCompletionWithSchema", linked=True),
        example={JSON: LINKED, EVENTS: STREAM},
    ),
)
MODEL_ROUTES = (
    Route(
        "POST",
        "/v1/engines/{id}/completions",
        Completions.create,
        operation=complete_in_path("createEngineCompletion"),
        example=_EXAMPLE,
        parameters=(MODEL_ID,),
    ),
    Route(
        "POST",
        "/m/{id}/v1/completions",
        Completions.create,
        operation=complete_in_path("createModelCompletion"),
        example=_EXAMPLE,
        parameters=(MODEL_ID,),
    ),
)
"""Those whose URL names the model."""


def _record(record: RequestRecord, fields: dict[str, object], path_model: str | None) -> None:
    """Record model and user for the access log, as the client sent them."""
    model, user = path_model or fields.get("model"), fields.get("user")
    record.model = model if isinstance(model, str) and model else "-"
    record.user = user if isinstance(user, str) and user else "-"


def body_limits(settings: Settings) -> BodyLimits:
    """Return what a request body may contain."""
    limits = RequestLimits.create(settings)
    return BodyLimits(limits.max_prompts, limits.max_prompt_tokens)


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
