"""A completion whose stream is kept: its first connection."""

from __future__ import annotations

from onward.api.openai.reply import OpenAIReply
from onward.api.reply import Reply
from onward.api.routes import Complete
from onward.completions.request import CompletionRequest
from onward.errors import InvalidRequest
from onward.server.completion_run import Runner
from onward.server.disconnect import run_while_connected
from onward.server.exchange import Exchange
from onward.server.metrics import accept
from onward.server.streams.handlers import owner
from onward.server.streams.kept import KeptStreams
from onward.server.streams.log import StreamLog
from onward.server.streams.sender import StreamSender
from onward.server.streams.work import fill

PREFERENCE = "resumable"
"""In the header Prefer (RFC 7240), which other servers ignore: as `stream_options.resumable`, where it is possible."""


def completing(runner: Runner, kept: KeptStreams) -> Complete:
    """Return what completes a request for the client of an exchange: its stream is kept if it asks for that."""

    async def complete(exchange: Exchange, request: CompletionRequest, reply: Reply) -> None:
        if isinstance(reply, OpenAIReply) and is_resumable(exchange, request, kept):
            await complete_kept(runner, exchange, request, reply, kept)
        else:
            await runner.complete(exchange, request, reply)

    return complete


async def complete_kept(
    runner: Runner, exchange: Exchange, request: CompletionRequest, reply: OpenAIReply, kept: KeptStreams
) -> None:
    """Complete a request, whose stream goes on without its client. Raises as `Runner.complete` does."""
    exchange.record.stream = True
    run = _ResumableRun(runner, exchange, request, reply, kept)
    with runner.running.one():
        await run_while_connected(exchange, run.run(), runner.keep_alive_seconds, run.send_keep_alive)


class _ResumableRun:
    def __init__(
        self, runner: Runner, exchange: Exchange, request: CompletionRequest, reply: OpenAIReply, kept: KeptStreams
    ) -> None:
        self._runner = runner
        self._exchange = exchange
        self._request = request
        self._reply = reply
        self._kept = kept
        self._sender: StreamSender | None = None

    async def run(self) -> None:
        """Complete and send. Cancelling it cancels the completion, unless an event was sent, from which the client
        knows the stream's id."""
        exchange, reply = self._exchange, self._reply
        answer = await accept(self._runner.backend, self._request, exchange, self._runner.metrics)
        reply.begin(answer)
        log = StreamLog(reply.identity.id, owner(exchange), exchange.sender, answer.model)
        exchange.record.stream_id = log.id
        if prefers_resumable(exchange):
            applied = f"{PREFERENCE}; window={self._kept.window_seconds:g}"
            exchange.headers.append((b"preference-applied", applied.encode()))
        self._kept.start(log, fill(log, self._kept, answer, reply, exchange.id))
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
