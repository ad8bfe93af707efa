"""POST …/completions: from the request body to a JSON response or a stream of server-sent events."""

from __future__ import annotations

from onward.api.openai.fold import fold_chunks, fold_whole
from onward.backends.base import Backend
from onward.completions.limits import RequestLimits
from onward.completions.request import CompletionRequest
from onward.errors import RequestCancelled, UnsupportedContentType
from onward.offload import MAX_INLINE_SIZE, inline_or_on_thread
from onward.protocol.body_limits import BodyLimits
from onward.protocol.decode import check_request, decode_object
from onward.protocol.encode import num_values
from onward.protocol.error_body import error_event
from onward.protocol.sse import DONE, chunk_event, chunk_event_parts
from onward.server.disconnect import run_while_connected
from onward.server.error_response import convert_error
from onward.server.event_stream import EventStream
from onward.server.exchange import ClientDisconnected, Exchange
from onward.server.metrics import MeasuredAnswer, Metrics, accept
from onward.server.record import RequestRecord
from onward.server.running import Running
from onward.server.streams.kept import KeptStreams
from onward.server.streams.run import ResumableRun, is_resumable
from onward.server.whole_answer import send_parts, send_whole
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
        """Complete a request, with `$schema` in a JSON response (behaviour §10)."""
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


class _CompletionRun:
    """One completion for one client."""

    def __init__(self, exchange: Exchange, request: CompletionRequest, backend: Backend, metrics: Metrics) -> None:
        self._exchange = exchange
        self._request = request
        self._backend = backend
        self._metrics = metrics
        self._events = EventStream(exchange)
        self._is_accepted = False

    async def run(self) -> None:
        """Complete and send. Cancelling it cancels the completion, during prefill too."""
        answer = await accept(self._backend, self._request, self._exchange, self._metrics)
        self._is_accepted = True
        try:
            if self._request.stream:
                await self._send_stream(answer)
            else:
                await send_whole(self._exchange, await fold_whole(answer, self._request))
        finally:
            await answer.aclose()
            answer.settle()

    async def send_keep_alive(self) -> None:
        """Send a comment on an idle stream, once the request was accepted."""
        if self._request.stream and self._is_accepted:
            await self._events.send_keep_alive()

    async def _send_stream(self, answer: MeasuredAnswer) -> None:
        exchange = self._exchange
        obfuscate = self._request.include_obfuscation
        try:
            async for chunks in fold_chunks(answer, self._request):
                if sum(num_values(chunk.choices) for chunk in chunks) <= MAX_INLINE_SIZE:
                    await self._events.send(b"".join([chunk_event(chunk, obfuscate=obfuscate) for chunk in chunks]))
                    continue
                await self._events.start()
                with self._events.event_in_parts():
                    for chunk in chunks:
                        await send_parts(exchange, chunk_event_parts(chunk, obfuscate=obfuscate))
        except (ClientDisconnected, RequestCancelled):
            raise
        except Exception as exception:
            if not exchange.response_started:
                raise
            error = convert_error(exception, exchange.id)
            exchange.record.error = error.type
            await exchange.end_response(error_event(error))
        else:
            await self._events.start()
            await exchange.end_response(DONE)
