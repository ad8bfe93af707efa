"""Sends what a reply writes to one client: a whole answer, or a stream with comments between its events."""

from __future__ import annotations

import urllib.parse
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache, partial

from onward.api.openai.routes import LINK
from onward.api.reply import Reply, ReplyEvent
from onward.api.sse import KEEP_ALIVE
from onward.offload import on_thread
from onward.server.account import Account
from onward.server.exchange import HttpExchange, convert_error

EVENT_STREAM = "text/event-stream"
"""Without a charset (behaviour §1)."""


class EventStream:
    """The events of a completion on their way to one client. The model's name is in the exchange's record.

    `keep_alive` is what an idle stream is sent, nothing where the format has no comments.
    """

    def __init__(
        self, exchange: HttpExchange, content_type: str = EVENT_STREAM, keep_alive: bytes = KEEP_ALIVE
    ) -> None:
        self.has_events = False
        """Whether an event was sent, by which a client knows the completion's id."""
        self._exchange = exchange
        self._content_type = content_type
        self._keep_alive = keep_alive
        self._is_inside_event = False

    async def start(self) -> None:
        """Send the head, unless it was sent. Raises ClientDisconnected."""
        if not self._exchange.response_started:
            add_completion_headers(self._exchange, self._exchange.record.model)
            await self._exchange.start_response(200, self._content_type)

    async def send(self, events: bytes) -> None:
        """Send whole events. Raises ClientDisconnected."""
        if not self._exchange.response_started:  # checked here too: a coroutine for each event costs more
            await self.start()
        await self._exchange.send_chunk(events)
        self.has_events = True

    @contextmanager
    def event_in_parts(self) -> Iterator[None]:
        """Send no comment while parts of an event are sent. Call `start` before."""
        self._is_inside_event = True
        yield
        self._is_inside_event = False
        self.has_events = True

    async def send_keep_alive(self) -> None:
        """Send a comment on an idle stream. Before the first event this starts the response with status 200.

        An error after that becomes an event of the stream. The alternative would be to lose, in a long queue, every
        client behind a proxy or on a runtime that closes idle connections after a minute or five (behaviour W5).
        """
        if self._keep_alive and not self._exchange.response_complete and not self._is_inside_event:
            await self.start()
            await self._exchange.send_chunk(self._keep_alive)


class ConnectionSink:
    """Takes what a reply writes and sends it: the small events of a step at once, large ones in parts. Methods raise
    ClientDisconnected."""

    def __init__(self, exchange: HttpExchange, reply: Reply) -> None:
        self._account: Account | None = None
        self._is_accepted = False
        self._exchange = exchange
        self._is_stream = reply.is_stream
        self._events = EventStream(exchange, reply.content_type, reply.keep_alive)

    def accepted(self, account: Account | None) -> None:
        """The request will be answered. `account` is that of a team's server, which learns what was delivered."""
        self._account, self._is_accepted = account, True

    async def send_keep_alive(self) -> None:
        """Send what the format has for it on an idle stream, once the request was accepted."""
        if self._is_stream and self._is_accepted:
            await self._events.send_keep_alive()

    async def send(self, events: list[ReplyEvent]) -> None:
        if len(events) == 1 and isinstance(event := events[0], bytes) and event:  # those of most steps
            await self._events.send(event)
        else:
            await self._send_mixed(events)
        if self._account is not None:
            self._account.sent()

    async def _send_mixed(self, events: list[ReplyEvent]) -> None:
        small: list[bytes] = []
        for event in events:
            if isinstance(event, bytes):
                small.append(event)
                continue
            await self._send_small(small)
            await self._events.start()
            with self._events.event_in_parts():
                await send_parts(self._exchange, event)
        await self._send_small(small)

    async def _send_small(self, events: list[bytes]) -> None:
        if joined := b"".join(events):
            await self._events.send(joined)
        events.clear()

    async def end(self, events: list[ReplyEvent]) -> None:
        account, self._account = self._account, None  # the last of it is delivered with the last event
        if account is not None:
            account.before_end()
        if self._is_stream:
            others, last = list(events), b""
            while others and isinstance(event := others[-1], bytes):
                last = event + last
                others.pop()
            await self._send_mixed(others)
            await self._events.start()
            await self._exchange.end_response(last)
        else:
            await send_whole(self._exchange, *events)
        if account is not None:
            account.sent()

    async def fail(self, exception: Exception) -> None:
        """End a stream that has begun with the error; otherwise raise it, so that it becomes the response."""
        exchange = self._exchange
        if not exchange.response_started:
            raise exception
        error = convert_error(exception, exchange.id, exchange.words)
        exchange.record.error = error.type
        await exchange.end_response(exchange.words.event(error))


async def send_whole(exchange: HttpExchange, body: ReplyEvent) -> None:
    """Send a whole answer as one JSON response. Raises ClientDisconnected."""
    if exchange.with_schema:
        exchange.headers.append(LINK)
    add_completion_headers(exchange, exchange.record.model)
    if isinstance(body, bytes):
        await exchange.respond(200, body, "application/json")
        return
    await exchange.start_response(200, "application/json")
    await send_parts(exchange, body)
    await exchange.end_response()


async def send_parts(exchange: HttpExchange, parts: Iterator[bytes]) -> None:
    """Send a large body as chunks, each encoded on a thread when the client has taken the one before."""
    while part := await on_thread(partial(next, parts, b"")):
        await exchange.send_chunk(part)


def add_completion_headers(exchange: HttpExchange, model: str) -> None:
    """Add the headers of a 200 (behaviour §1.1)."""
    exchange.headers += [(b"openai-model", _quoted(model)), (b"cache-control", b"no-cache, must-revalidate")]


@lru_cache(256)
def _quoted(model: str) -> bytes:
    return urllib.parse.quote(model, safe="/:@+ ,()").encode()
