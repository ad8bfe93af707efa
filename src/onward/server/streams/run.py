"""A completion whose stream is kept: a task fills the stream's log, and each connection is sent the log from where its
client stopped.
"""

from __future__ import annotations

from contextlib import aclosing
from functools import partial

import msgspec

from onward.api.openai.errors import error_event
from onward.api.openai.reply import FoldedChoices, OpenAIReply
from onward.api.openai.response import Chunk, Completion
from onward.api.reply import Reply, ReplyEvent, forward
from onward.api.routes import Complete
from onward.api.sse import event_id
from onward.completions.request import CompletionRequest
from onward.errors import ApiError, InvalidRequest, RequestCancelled
from onward.offload import on_thread
from onward.server.exchange import HttpExchange, convert_error
from onward.server.metrics import MeasuredAnswer
from onward.server.running import Runner, run_while_connected
from onward.server.sink import EventStream
from onward.server.streams.kept import KeptStreams
from onward.server.streams.log import LoggedEvent, StreamLog

MAX_SENT_BYTES = 65_536
"""Small events are sent together up to about this size."""
PREFERENCE = "resumable"
"""In the header Prefer (RFC 7240), which other servers ignore: as `stream_options.resumable`, where it is possible."""


async def fill(log: StreamLog, kept: KeptStreams, answer: MeasuredAnswer, reply: OpenAIReply, request_id: str) -> None:
    """Append the answer's events, then `[DONE]` or an error, as an ordinary stream would send them. Never raises but
    CancelledError. `request_id` is that of the request that began the stream, for the server's log."""
    try:
        await forward(answer, reply, _LogSink(log, kept, answer, reply, request_id))
    except RequestCancelled:
        kept.cancel(log)


class _LogSink:
    """Takes what a reply writes into the log of a stream."""

    def __init__(
        self, log: StreamLog, kept: KeptStreams, answer: MeasuredAnswer, reply: OpenAIReply, request_id: str
    ) -> None:
        self._log = log
        self._kept = kept
        self._answer = answer
        self._reply = reply
        self._request_id = request_id

    async def send(self, events: list[ReplyEvent]) -> None:
        for event in events:
            await self._kept.append(self._log, await self._numbered(event))
        if self._answer.account is not None:
            self._answer.account.logged(self._log.last)

    async def end(self, events: list[ReplyEvent]) -> None:
        *others, last = events
        await self.send(others)
        if self._answer.account is not None:
            self._answer.account.before_end()
        completion = self._reply.without_choices(self._answer.counts)
        self._kept.end(self._log, await self._numbered(last), completion=completion)

    async def fail(self, exception: Exception) -> None:
        error = convert_error(exception, self._request_id)
        self._kept.end(self._log, await self._numbered(error_event(error)), error=error)

    async def _numbered(self, event: ReplyEvent) -> LoggedEvent:
        """Return an event with its id; the parts of a large one are encoded on a thread."""
        number = event_id(self._log.last + 1)
        if isinstance(event, bytes):
            return (number + event,)
        encoded = [number]
        while part := await on_thread(partial(next, event, b"")):
            encoded.append(part)
        return tuple(encoded)


def completion_of(log: StreamLog) -> Completion:
    """Fold the events of a log that has ended well, and that keeps all of them, into the completion that a request
    without `stream` has as its answer (law 1). Long for long streams."""
    assert log.completion is not None and log.first == 1
    folded = FoldedChoices()
    for event in log.kept_events()[:-1]:
        folded.add(_decode(event).choices)
    return msgspec.structs.replace(log.completion, choices=folded.choices())


def _decode(event: LoggedEvent) -> Chunk:
    _, _, data = b"".join(event).partition(b"\ndata: ")
    return msgspec.json.decode(data, type=Chunk)


class StreamSender:
    """Sends the events of a log after the number `after` to one client, as they come."""

    def __init__(self, exchange: HttpExchange, log: StreamLog, after: int = 0) -> None:
        self.events = EventStream(exchange)
        self._exchange = exchange
        self._log = log
        self._after = after
        """Number of the last event that was sent."""

    async def run(self) -> None:
        """Send all events and end the response. A stream that is cancelled, or that another connection takes over, ends
        with an error event that has no id.

        Raises ClientDisconnected; the ApiError that ended the stream if nothing was sent before it, so that it becomes
        the response.
        """
        exchange, last = self._exchange, b""
        try:
            await self._send_events()
        except ApiError as error:
            if not exchange.response_started:
                raise
            exchange.record.error = error.type
            last = error_event(error)
        finally:
            if self._log.account is not None:
                self._log.account.connection_ended()
        await exchange.end_response(last)

    async def _send_events(self) -> None:
        log, exchange = self._log, self._exchange
        async with aclosing(log.read(self._after)) as batches:
            async for events in batches:
                if log.error is not None and log.last == 1 and not exchange.response_started:
                    raise log.error
                await self._send(events)
                self._after += len(events)
                if log.account is not None:
                    log.account.sent_through(self._after)
        exchange.record.error = log.error.type if log.error is not None else ""

    async def _send(self, events: list[LoggedEvent]) -> None:
        """Send small events together, and the parts of a large one one by one, as the client takes them."""
        waiting: list[bytes] = []
        num_bytes = 0
        for event in events:
            if len(event) == 1:
                waiting.append(event[0])
                num_bytes += len(event[0])
                if num_bytes < MAX_SENT_BYTES:
                    continue
            if waiting:
                await self.events.send(b"".join(waiting))
                waiting, num_bytes = [], 0
            if len(event) > 1:
                await self._send_parts(event)
        if waiting:
            await self.events.send(b"".join(waiting))

    async def _send_parts(self, event: LoggedEvent) -> None:
        await self.events.start()
        with self.events.event_in_parts():
            for part in event:
                await self._exchange.send_chunk(part)


def completing(runner: Runner, kept: KeptStreams) -> Complete:
    """Return what completes a request for the client of an exchange: its stream is kept if it asks for that."""

    async def complete(exchange: HttpExchange, request: CompletionRequest, reply: Reply) -> None:
        if isinstance(reply, OpenAIReply) and is_resumable(exchange, request, kept):
            await complete_kept(runner, exchange, request, reply, kept)
        else:
            await runner.complete(exchange, request, reply)

    return complete


async def complete_kept(
    runner: Runner, exchange: HttpExchange, request: CompletionRequest, reply: OpenAIReply, kept: KeptStreams
) -> None:
    """Complete a request, whose stream continues without its client. Raises as `Runner.complete` does."""
    exchange.record.stream = True
    sender: StreamSender | None = None

    async def work() -> None:
        """Complete and send. Cancelling it cancels the completion, unless an event was sent, from which the client
        knows the stream's id."""
        nonlocal sender
        answer = await runner.accept(exchange, request)
        reply.begin(answer)
        drawn = answer.seed if request.seed is None else None
        log = StreamLog(reply.identity.id, owner(exchange), exchange.sender, answer.model, answer.account, drawn)
        exchange.record.stream_id = log.id
        if prefers_resumable(exchange):
            applied = f"{PREFERENCE}; window={kept.window_seconds:g}"
            exchange.headers.append((b"preference-applied", applied.encode()))
        kept.start(log, fill(log, kept, answer, reply, exchange.id))
        sender = StreamSender(exchange, log)
        with kept.connected(log):
            try:
                await sender.run()
            finally:
                answer.leave()
                if not sender.events.has_events:
                    kept.cancel(log)

    async def send_keep_alive() -> None:
        if sender is not None:  # the request was accepted
            await sender.events.send_keep_alive()

    with runner.running.one():
        await run_while_connected(exchange, work(), runner.keep_alive_seconds, send_keep_alive)


def owner(exchange: HttpExchange) -> str | None:
    """Return what identifies the key that a request was sent with; a name may belong to another key later. Without
    keys, the stream's id, 29 random characters, is enough."""
    key = exchange.key
    if key is None:
        return None
    return key.digest.hex() if key.grant is None else key.grant.id


def is_resumable(exchange: HttpExchange, request: CompletionRequest, kept: KeptStreams) -> bool:
    """Return whether to keep the stream of this request. Raises InvalidRequest if it asks for what is turned off."""
    if request.resumable and not kept.window_seconds:
        raise InvalidRequest(
            "This server keeps no streams (--resume-window 0): 'stream_options.resumable' must be false.",
            param="stream_options.resumable",
        )
    return request.resumable or bool(request.stream and kept.window_seconds and prefers_resumable(exchange))


def prefers_resumable(exchange: HttpExchange) -> bool:
    """Return whether the client sent `Prefer: resumable`, among other preferences perhaps."""
    preferences = ",".join(exchange.headers_named(b"prefer")).split(",")
    return any(each.partition(";")[0].strip().lower() == PREFERENCE for each in preferences)
