"""A response that is a stream of server-sent events: its head, and comments between its events."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from onward.protocol.sse import KEEP_ALIVE
from onward.server.exchange import Exchange
from onward.server.whole_answer import add_completion_headers

EVENT_STREAM = "text/event-stream"
"""Without a charset (behaviour §1)."""


class EventStream:
    """The events of a completion on their way to one client. The model's name is in the exchange's record."""

    def __init__(self, exchange: Exchange) -> None:
        self.has_events = False
        """Whether an event was sent, by which a client knows the completion's id."""
        self._exchange = exchange
        self._is_inside_event = False

    async def start(self) -> None:
        """Send the head, unless it was sent. Raises ClientDisconnected."""
        if not self._exchange.response_started:
            add_completion_headers(self._exchange, self._exchange.record.model)
            await self._exchange.start_response(200, EVENT_STREAM)

    async def send(self, events: bytes) -> None:
        """Send whole events. Raises ClientDisconnected."""
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
        if not self._exchange.response_complete and not self._is_inside_event:
            await self.start()
            await self._exchange.send_chunk(KEEP_ALIVE)
