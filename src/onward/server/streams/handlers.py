"""GET and DELETE …/completions/{id}: resume a stream whose connection was lost, or end it."""

from __future__ import annotations

from collections.abc import Coroutine
from dataclasses import replace

from onward.api.openai.reply import encoded
from onward.api.openai.routes import CHUNK, COMPLETION, LINKED, schema_url
from onward.api.operations import STREAM_ID, cancel, resume
from onward.api.routes import EVENTS, JSON, Route, respond_json
from onward.api.seed import SEED_HEADER
from onward.errors import InvalidRequest, NotFound
from onward.offload import inline_or_on_thread
from onward.server.exchange import HttpExchange
from onward.server.handover import Predecessor
from onward.server.running import Running, run_while_connected
from onward.server.sink import EventStream, send_whole
from onward.server.streams.kept import KeptStreams
from onward.server.streams.log import StreamLog
from onward.server.streams.run import StreamSender, completion_of, owner


class Streams:
    """The endpoints of streams that are kept, here or by the server that listened before. `keep_alive_seconds` as for
    the stream's first connection."""

    def __init__(
        self, kept: KeptStreams, running: Running, keep_alive_seconds: float, predecessor: Predecessor | None = None
    ) -> None:
        self._kept = kept
        self._predecessor = predecessor
        self._running = running
        self._keep_alive_seconds = keep_alive_seconds

    async def resume(self, exchange: HttpExchange) -> None:
        """Send the events after Last-Event-ID, without that header all of them; with `Accept: application/json` the
        whole completion, when it has ended. 204 if there is nothing left, which makes browsers stop reconnecting.

        Raises NotFound, InvalidRequest, ClientDisconnected.
        """
        log = await self._find(exchange)
        if log is None:
            return
        exchange.record.model, exchange.record.stream_id = log.model, log.id
        if log.drawn_seed is not None:
            exchange.add_headers({SEED_HEADER: str(log.drawn_seed)})
        if exchange.method == "HEAD":  # must not take the stream over from its reader
            await exchange.respond(200, b"", "")
        elif _accepts_only_json(exchange):
            await self._run(exchange, log, self._send_whole(exchange, log))
        else:
            await self._read_on(exchange, log)

    async def _read_on(self, exchange: HttpExchange, log: StreamLog) -> None:
        after = _last_event_id(exchange, log)
        if log.is_ended and after == log.last:
            await exchange.respond(204, b"", "")
            return
        exchange.record.stream = True
        sender = StreamSender(exchange, log, after)
        await self._run(exchange, log, sender.run(), sender.events)

    async def _run(
        self,
        exchange: HttpExchange,
        log: StreamLog,
        work: Coroutine[object, object, None],
        events: EventStream | None = None,
    ) -> None:
        """Await what sends a stream or its whole completion; keep the stream meanwhile, and the connection's `events`
        alive."""
        self._kept.num_resumed += 1
        keep_alive = (0.0, _nothing) if events is None else (self._keep_alive_seconds, events.send_keep_alive)
        with self._running.one(), self._kept.connected(log):
            await run_while_connected(exchange, work, *keep_alive)

    async def resume_with_schema(self, exchange: HttpExchange) -> None:
        """`resume`, with `$schema` in a JSON response (behaviour §10)."""
        exchange.with_schema = True
        await self.resume(exchange)

    async def cancel(self, exchange: HttpExchange) -> None:
        """End the work on a stream at once and forget it; a connection that reads it is closed. Raises NotFound."""
        log = await self._find(exchange)
        if log is None:
            return
        exchange.record.model, exchange.record.stream_id = log.model, log.id
        self._kept.cancel(log)
        deleted = {"id": log.id, "object": "text_completion.deleted", "deleted": True}
        await respond_json(exchange, deleted)

    async def _find(self, exchange: HttpExchange) -> StreamLog | None:
        """Return the log of the stream; None once the server that listened before has answered. Raises NotFound."""
        try:
            return self._kept.find(exchange.path_value or "", owner(exchange))
        except NotFound:
            if self._predecessor is None or not self._predecessor.keeps_streams:
                raise
        with self._running.one():
            await run_while_connected(exchange, self._predecessor.forward(exchange), 0.0, _nothing)
        return None

    async def _send_whole(self, exchange: HttpExchange, log: StreamLog) -> None:
        """Send the whole completion, or the error that ended it."""
        _require_events_after(log, 0)
        await log.wait_until_ended()
        if log.error is not None:
            raise log.error
        _require_events_after(log, 0)
        completion = await inline_or_on_thread(log.num_bytes, lambda: completion_of(log))
        await send_whole(exchange, encoded(completion, schema_url(exchange) if exchange.with_schema else None))
        if log.account is not None:
            log.account.sent_through(log.last)
            log.account.connection_ended()


_RESUMED = f"id: 2\n{CHUNK}id: 3\ndata: [DONE]\n\n"
_DELETED = {"id": COMPLETION["id"], "object": "text_completion.deleted", "deleted": True}
_PATH = "/v1/completions/{id}"
_RESUME = Route(
    "GET",
    _PATH,
    Streams.resume,
    operation=resume(),
    example={JSON: COMPLETION, EVENTS: _RESUMED},
    parameters=(STREAM_ID,),
)
_CANCEL = Route("DELETE", _PATH, Streams.cancel, operation=cancel(), example={JSON: _DELETED}, parameters=(STREAM_ID,))
ROUTES = (
    _RESUME,
    _RESUME.also("/completions/{id}"),
    _CANCEL,
    _CANCEL.also("/completions/{id}"),
    replace(
        _RESUME,
        path=f"/openai{_PATH}",
        handler=Streams.resume_with_schema,
        operation=resume("WithSchema"),
        example={JSON: LINKED, EVENTS: _RESUMED},
    ),
    replace(_CANCEL, path=f"/openai{_PATH}", operation=cancel("WithSchema")),
)


def _accepts_only_json(exchange: HttpExchange) -> bool:
    accepted = (exchange.header(b"accept") or "").lower()
    return "application/json" in accepted and "text/event-stream" not in accepted


def _last_event_id(exchange: HttpExchange, log: StreamLog) -> int:
    """Return the number of the last event that the client has. Raises InvalidRequest, NotFound."""
    text = (exchange.header(b"last-event-id") or "0").strip()
    if not (text.isascii() and text.isdecimal() and len(text) < 16 and int(text) <= log.last):
        raise InvalidRequest(
            f"Last-Event-ID is {text[:64]!r}, but the events of this stream have the ids 1 to {log.last} so far."
        )
    _require_events_after(log, int(text))
    return int(text)


def _require_events_after(log: StreamLog, number: int) -> None:
    if number < log.first - 1:
        raise NotFound(
            f"The events of this stream before {log.first} are no longer kept: the server's --resume-memory was "
            "used up."
        )


async def _nothing() -> None:
    """Sent to a client that waits for a whole completion."""
