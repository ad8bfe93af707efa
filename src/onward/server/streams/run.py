"""A completion whose stream is kept: its first connection."""

from __future__ import annotations

from onward.api.openai.fold import Identity
from onward.backends.base import Backend
from onward.completions.request import CompletionRequest
from onward.errors import InvalidRequest
from onward.server.exchange import Exchange
from onward.server.metrics import Metrics, accept
from onward.server.streams.handlers import owner
from onward.server.streams.kept import KeptStreams
from onward.server.streams.log import StreamLog
from onward.server.streams.sender import StreamSender
from onward.server.streams.work import fill

PREFERENCE = "resumable"
"""In the header Prefer (RFC 7240), which other servers ignore: as `stream_options.resumable`, where it is possible."""


class ResumableRun:
    """A completion that goes on without its client."""

    def __init__(
        self, exchange: Exchange, request: CompletionRequest, backend: Backend, metrics: Metrics, kept: KeptStreams
    ) -> None:
        self._exchange = exchange
        self._request = request
        self._backend = backend
        self._metrics = metrics
        self._kept = kept
        self._sender: StreamSender | None = None

    async def run(self) -> None:
        """Complete and send. Cancelling it cancels the completion, unless an event was sent, from which the client
        knows the stream's id."""
        exchange = self._exchange
        answer = await accept(self._backend, self._request, exchange, self._metrics)
        identity = Identity()
        log = StreamLog(identity.id, owner(exchange), exchange.sender, answer.model)
        exchange.record.stream_id = log.id
        if prefers_resumable(exchange):
            applied = f"{PREFERENCE}; window={self._kept.window_seconds:g}"
            exchange.headers.append((b"preference-applied", applied.encode()))
        self._kept.start(log, fill(log, self._kept, answer, self._request, identity, exchange.id))
        self._sender = StreamSender(exchange, log)
        with self._kept.connected(log):
            try:
                await self._sender.run()
            finally:
                answer.leave()
                if not self._sender.events.has_events:
                    self._kept.cancel(log)

    async def send_keep_alive(self) -> None:
        """Send a comment on an idle stream, once the request was accepted."""
        if self._sender is not None:
            await self._sender.events.send_keep_alive()


def is_resumable(exchange: Exchange, request: CompletionRequest, kept: KeptStreams) -> bool:
    """Return whether to keep the stream of this request. Raises InvalidRequest if it asks for what is turned off."""
    if request.resumable and not kept.window_seconds:
        raise InvalidRequest(
            "This server keeps no streams (--resume-window 0): 'stream_options.resumable' must be false.",
            param="stream_options.resumable",
        )
    return request.resumable or bool(request.stream and kept.window_seconds and prefers_resumable(exchange))


def prefers_resumable(exchange: Exchange) -> bool:
    """Return whether the client sent `Prefer: resumable`, among other preferences perhaps."""
    preferences = ",".join(exchange.headers_named(b"prefer")).split(",")
    return any(each.partition(";")[0].strip().lower() == PREFERENCE for each in preferences)
