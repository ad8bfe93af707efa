"""POST …/completions of OpenAI's API."""

from __future__ import annotations

from onward.api.openai.answer_examples import COMPLETION, LINKED, STREAM
from onward.api.openai.decode import check_request, decode_object
from onward.api.openai.operations import MODEL_ID, complete, complete_in_path
from onward.api.openai.reply import OpenAIReply
from onward.api.openai.schema_link import schema_url
from onward.api.routes import EVENTS, JSON, Exchange, Record, Route, Services
from onward.completions.request import CompletionRequest
from onward.errors import UnsupportedContentType
from onward.offload import inline_or_on_thread


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


_EXAMPLE = {JSON: COMPLETION, EVENTS: STREAM}
_CREATE = Route("POST", "/v1/completions", create, operation=complete("createCompletion"), example=_EXAMPLE)
ROUTES = (
    _CREATE,
    _CREATE.also("/completions"),
    Route(
        "POST",
        "/openai/v1/completions",
        create_with_schema,
        operation=complete("createCompletionWithSchema", linked=True),
        example={JSON: LINKED, EVENTS: STREAM},
    ),
)
MODEL_ROUTES = (
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
