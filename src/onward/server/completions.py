"""POST …/completions: from the body to JSON or a stream of server-sent events."""

from __future__ import annotations

import asyncio
import urllib.parse

from onward.backends.base import Backend
from onward.completions.fold import fold_chunks, fold_whole
from onward.errors import InvalidRequest, Overloaded, RequestCancelled, UnsupportedContentType
from onward.protocol.decode import decode_object, decode_request
from onward.protocol.encode import encode_completion
from onward.protocol.error_body import error_event
from onward.protocol.request import CompletionRequest
from onward.protocol.sse import DONE, KEEP_ALIVE, chunk_event
from onward.server.access_log import Record
from onward.server.exchange import ClientGone, Exchange
from onward.server.failures import as_told
from onward.server.metrics import MeasuredAnswer, Metrics
from onward.server.schema_link import LINK, schema_url
from onward.server.supervise import while_connected
from onward.settings import Settings

EVENT_STREAM = "text/event-stream"
"""Without a charset (spec/completions §1)."""


class Completions:
    """The endpoint. `running` counts the requests that a drain waits for."""

    def __init__(self, backend: Backend, settings: Settings, metrics: Metrics) -> None:
        self.running = 0
        self._idle = asyncio.Event()
        self._idle.set()
        self._backend = backend
        self._settings = settings
        self._metrics = metrics

    async def create(self, exchange: Exchange, path_model: str | None = None) -> None:
        """Answer a request. `path_model` is the engine that the URL names."""
        check_content_type(exchange)
        body = await exchange.body(self._settings.max_body)
        try:
            request = decode_request(body, profile=self._settings.profile, path_model=path_model)
        except InvalidRequest:
            _note_refused(exchange.record, body, path_model)
            raise
        exchange.record.model = request.model or "-"
        exchange.record.user = request.user or "-"
        exchange.record.stream = request.stream
        run = _Run(exchange, request, self._backend, self._metrics)
        self.running += 1
        self._idle.clear()
        try:
            await while_connected(exchange, run.work(), self._settings.keep_alive, run.comment)
        finally:
            self.running -= 1
            if not self.running:
                self._idle.set()

    async def idle(self) -> None:
        """Return when no completion runs."""
        await self._idle.wait()

    async def create_linked(self, exchange: Exchange, path_model: str | None = None) -> None:
        """The same, with `$schema` in a JSON answer (spec/completions §10)."""
        exchange.with_schema = True
        await self.create(exchange, path_model)


def _note_refused(record: Record, body: bytes, path_model: str | None) -> None:
    """Keep for the log whose request it was that is refused, as far as its body can be read."""
    try:
        fields = decode_object(body)
    except InvalidRequest:
        return
    model, user = path_model or fields.get("model"), fields.get("user")
    record.model = model if isinstance(model, str) and model else "-"
    record.user = user if isinstance(user, str) and user else "-"


def check_content_type(exchange: Exchange) -> None:
    """Raise UnsupportedContentType unless the body is said to be JSON, or nothing is said."""
    given = exchange.header(b"content-type")
    if given is None or given.partition(";")[0].strip().lower() == "application/json":
        return
    kind = given.partition(";")[0].strip()
    raise UnsupportedContentType(
        f"Unsupported content type: '{kind}'. This API method only accepts 'application/json' requests, but you "
        f"specified the header 'Content-Type: {given}'. Please try again with a supported content type."
    )


class _Run:
    """One completion on its way to one client."""

    def __init__(self, exchange: Exchange, request: CompletionRequest, backend: Backend, metrics: Metrics) -> None:
        self._exchange = exchange
        self._request = request
        self._backend = backend
        self._metrics = metrics
        self._accepted = False

    async def work(self) -> None:
        """Complete and send. Cancelling it cancels the answer, during prefill as well."""
        exchange = self._exchange
        try:
            accepted = await self._backend.complete(self._request)
        except Overloaded as refusal:
            self._metrics.refuse(exchange.record, refusal)
            raise
        self._accepted = True
        answer = MeasuredAnswer(accepted, self._metrics, exchange.record, exchange.started)
        try:
            await (self._send_stream(answer) if self._request.stream else self._send_whole(answer))
        finally:
            await answer.aclose()
            answer.settle()

    async def comment(self) -> None:
        """Keep a silent stream's connection alive. Before the first chunk this settles on status 200.

        An error after that becomes an event of the stream: the price of not losing, in a long queue, every client
        behind a proxy that allows a minute of silence, or on a runtime that allows five (spec/wire-rules 5).
        """
        if self._request.stream and self._accepted and not self._exchange.ended:
            await self._open_stream()
            await self._exchange.part(KEEP_ALIVE)

    async def _send_whole(self, answer: MeasuredAnswer) -> None:
        completion = await fold_whole(answer)
        exchange = self._exchange
        body = encode_completion(completion, schema=schema_url(exchange) if exchange.with_schema else None)
        if exchange.with_schema:
            exchange.headers.append(LINK)
        self._add_headers(answer.model)
        await exchange.answer(200, body, "application/json")

    async def _send_stream(self, answer: MeasuredAnswer) -> None:
        exchange = self._exchange
        obfuscate = self._request.include_obfuscation
        try:
            async for chunks in fold_chunks(answer, self._request):
                events = b"".join([chunk_event(chunk, obfuscate=obfuscate) for chunk in chunks])
                await self._open_stream()
                await exchange.part(events)
        except (ClientGone, RequestCancelled):
            raise
        except Exception as problem:
            if not exchange.answering:
                raise
            error = as_told(problem, exchange)
            exchange.record.error = error.type
            await exchange.end(error_event(error))
        else:
            await self._open_stream()
            await exchange.end(DONE)

    async def _open_stream(self) -> None:
        if not self._exchange.answering:
            self._add_headers(self._exchange.record.model)
            await self._exchange.start(200, EVENT_STREAM)

    def _add_headers(self, model: str) -> None:
        """The headers of a 200 (spec/completions §1.1)."""
        name = urllib.parse.quote(model, safe="/:@+ ,()").encode()
        self._exchange.headers += [(b"openai-model", name), (b"cache-control", b"no-cache, must-revalidate")]
