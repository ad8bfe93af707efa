"""One completion for a client of another API: the answer goes through a `Reply`, which knows the API's shapes."""

from __future__ import annotations

from typing import Protocol

from onward.backends.base import Backend
from onward.completions.delta import Delta, TokenCounts, merged
from onward.completions.request import CompletionRequest
from onward.errors import RequestCancelled
from onward.server.error_response import convert_error
from onward.server.exchange import ClientDisconnected, Exchange
from onward.server.metrics import MeasuredAnswer, Metrics, accept
from onward.server.whole_answer import add_completion_headers


class Reply(Protocol):
    """Writes one answer in an API's shapes. A whole answer is what `end` returns, a stream all that is returned."""

    content_type: str
    """Of streams; whole answers are application/json."""
    keep_alive: bytes
    """Sent on a silent stream; empty where the format has no comments."""

    def begin(self, model: str) -> None:
        """The model `model` has accepted the request."""

    async def feed(self, deltas: list[Delta], counts: TokenCounts) -> bytes:
        """Add what one step generated, one delta per choice, and return what a stream sends of it."""
        ...

    @property
    def is_complete(self) -> bool:
        """Whether nothing more is needed of the answer, also if it has not ended."""
        ...

    async def end(self, counts: TokenCounts) -> bytes:
        """Return the end of the stream, or the whole answer."""
        ...


class OneChoice:
    """What replies of one choice share: the model, and the text so far. They need all of the answer."""

    def __init__(self) -> None:
        self._model = ""
        self._texts: list[str] = []

    def begin(self, model: str) -> None:
        self._model = model

    @property
    def is_complete(self) -> bool:
        return False


class DialectRun:
    """Runs a completion and sends what its reply makes of it."""

    def __init__(
        self, exchange: Exchange, request: CompletionRequest, reply: Reply, backend: Backend, metrics: Metrics
    ) -> None:
        self._exchange = exchange
        self._request = request
        self._reply = reply
        self._backend = backend
        self._metrics = metrics
        self._is_accepted = False

    async def run(self) -> None:
        """Complete and send. Cancelling it cancels the completion, during prefill too."""
        answer = await accept(self._backend, self._request, self._exchange, self._metrics)
        self._reply.begin(answer.model)
        self._is_accepted = True
        try:
            await self._forward(answer)
        finally:
            await answer.aclose()
            answer.settle()

    async def send_keep_alive(self) -> None:
        """Send what the format has for it on an idle stream, once the request was accepted."""
        is_open = self._request.stream and self._is_accepted and not self._exchange.response_complete
        if is_open and self._reply.keep_alive:
            await self._start()
            await self._exchange.send_chunk(self._reply.keep_alive)

    async def _forward(self, answer: MeasuredAnswer) -> None:
        exchange = self._exchange
        try:
            async for deltas in answer:
                written = await self._reply.feed(merged(deltas), answer.counts)
                if written and self._request.stream:
                    await self._start()
                    await exchange.send_chunk(written)
                if self._reply.is_complete:
                    break
            last = await self._reply.end(answer.counts)
        except (ClientDisconnected, RequestCancelled):
            raise
        except Exception as exception:
            if not exchange.response_started:
                raise
            error = convert_error(exception, exchange.id, exchange.words)
            exchange.record.error = error.type
            await exchange.end_response(exchange.words.event(error))
            return
        if self._request.stream:
            await self._start()
            await exchange.end_response(last)
        else:
            add_completion_headers(exchange, answer.model)
            await exchange.respond(200, last, "application/json")

    async def _start(self) -> None:
        if not self._exchange.response_started:
            add_completion_headers(self._exchange, self._exchange.record.model)
            await self._exchange.start_response(200, self._reply.content_type)
