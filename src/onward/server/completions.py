"""POST …/completions: from the request body to a JSON response or a stream of server-sent events."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

from onward.backends.base import Backend
from onward.completions.fold import fold_chunks, fold_whole
from onward.completions.limits import RequestLimits
from onward.errors import RequestCancelled, UnsupportedContentType
from onward.offload import MAX_INLINE_SIZE, inline_or_on_thread
from onward.protocol.body_limits import BodyLimits
from onward.protocol.decode import check_request, decode_object
from onward.protocol.encode import completion_parts, encode_completion, num_values
from onward.protocol.error_body import error_event
from onward.protocol.request import CompletionRequest
from onward.protocol.sse import DONE, KEEP_ALIVE, chunk_event, chunk_event_parts
from onward.server.disconnect import run_while_connected
from onward.server.error_response import convert_error
from onward.server.exchange import ClientDisconnected, Exchange
from onward.server.metrics import MeasuredAnswer, Metrics, accept
from onward.server.record import RequestRecord
from onward.server.running import Running
from onward.server.schema_link import LINK, schema_url
from onward.server.stream_head import add_completion_headers, start_stream
from onward.server.streams.kept import KeptStreams
from onward.server.streams.run import ResumableRun, is_resumable
from onward.settings import Settings


class Completions:
    """The completions endpoint. `running` counts what a drain waits for; `kept` has the streams that can be resumed."""

    def __init__(
        self, backend: Backend, settings: Settings, metrics: Metrics, running: Running, kept: KeptStreams
    ) -> None:
        self._running = running
        self._kept = kept
        self._backend = backend
        self._settings = settings
        self._body_limits = body_limits(settings)
        self._metrics = metrics

    async def create(self, exchange: Exchange, path_model: str | None = None) -> None:
        """Complete a request. `path_model` is the engine named in the URL. Raises ApiError, ClientDisconnected."""
        check_content_type(exchange)
        body = await exchange.body(self._settings.max_body)
        record = exchange.record
        request = await inline_or_on_thread(len(body), lambda: self._decode(body, record, path_model))
        record.stream = request.stream
        run: ResumableRun | _CompletionRun
        if is_resumable(exchange, request, self._kept):
            run = ResumableRun(exchange, request, self._backend, self._metrics, self._kept)
        else:
            run = _CompletionRun(exchange, request, self._backend, self._metrics)
        with self._running.one():
            await run_while_connected(exchange, run.run(), self._settings.keep_alive, run.send_keep_alive)

    def _decode(self, body: bytes, record: RequestRecord, path_model: str | None) -> CompletionRequest:
        """Decode a request on any thread; record its model and user, also if it is invalid. Raises InvalidRequest."""
        fields = decode_object(body, self._body_limits)
        _record(record, fields, path_model)
        return check_request(fields, profile=self._settings.profile, path_model=path_model)

    async def create_with_schema(self, exchange: Exchange, path_model: str | None = None) -> None:
        """Complete a request, with `$schema` in a JSON response (spec/completions §10)."""
        exchange.with_schema = True
        await self.create(exchange, path_model)


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


async def _send_parts(exchange: Exchange, parts: Iterator[bytes]) -> None:
    """Send a large body as chunks, each encoded on a thread when the client has taken the one before."""
    while part := await asyncio.to_thread(next, parts, b""):
        await exchange.send_chunk(part)


class _CompletionRun:
    """One completion for one client."""

    def __init__(self, exchange: Exchange, request: CompletionRequest, backend: Backend, metrics: Metrics) -> None:
        self._exchange = exchange
        self._request = request
        self._backend = backend
        self._metrics = metrics
        self._accepted = False
        self._is_inside_event = False
        """Whether a part of an event was sent, and its end was not."""

    async def run(self) -> None:
        """Complete and send. Cancelling it cancels the completion, during prefill too."""
        answer = await accept(self._backend, self._request, self._exchange, self._metrics)
        self._accepted = True
        try:
            await (self._send_stream(answer) if self._request.stream else self._send_whole(answer))
        finally:
            await answer.aclose()
            answer.settle()

    async def send_keep_alive(self) -> None:
        """Send a comment on an idle stream. Before the first chunk this starts the response with status 200.

        An error after that becomes an event of the stream. The alternative would be to lose, in a long queue, every
        client behind a proxy or on a runtime that closes idle connections after a minute or five (spec/wire-rules 5).
        """
        may_send = self._accepted and not self._exchange.response_complete and not self._is_inside_event
        if self._request.stream and may_send:
            await start_stream(self._exchange, self._exchange.record.model)
            await self._exchange.send_chunk(KEEP_ALIVE)

    async def _send_whole(self, answer: MeasuredAnswer) -> None:
        completion = await fold_whole(answer)
        exchange = self._exchange
        schema = schema_url(exchange) if exchange.with_schema else None
        if exchange.with_schema:
            exchange.headers.append(LINK)
        add_completion_headers(exchange, answer.model)
        if num_values(completion.choices) <= MAX_INLINE_SIZE:
            await exchange.respond(200, encode_completion(completion, schema=schema), "application/json")
            return
        await exchange.start_response(200, "application/json")
        await _send_parts(exchange, completion_parts(completion, schema=schema))
        await exchange.end_response()

    async def _send_stream(self, answer: MeasuredAnswer) -> None:
        exchange = self._exchange
        obfuscate = self._request.include_obfuscation
        try:
            async for chunks in fold_chunks(answer, self._request):
                await start_stream(self._exchange, self._exchange.record.model)
                if sum(num_values(chunk.choices) for chunk in chunks) <= MAX_INLINE_SIZE:
                    events = b"".join([chunk_event(chunk, obfuscate=obfuscate) for chunk in chunks])
                    await exchange.send_chunk(events)
                    continue
                self._is_inside_event = True
                for chunk in chunks:
                    await _send_parts(exchange, chunk_event_parts(chunk, obfuscate=obfuscate))
                self._is_inside_event = False
        except (ClientDisconnected, RequestCancelled):
            raise
        except Exception as exception:
            if not exchange.response_started:
                raise
            error = convert_error(exception, exchange.id)
            exchange.record.error = error.type
            await exchange.end_response(error_event(error))
        else:
            await start_stream(self._exchange, self._exchange.record.model)
            await exchange.end_response(DONE)
