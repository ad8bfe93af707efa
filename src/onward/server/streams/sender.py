"""Sends a stream that is kept to one connection."""

from __future__ import annotations

from contextlib import aclosing

from onward.api.openai.error_body import error_event
from onward.errors import ApiError
from onward.server.exchange import Exchange
from onward.server.sink import EventStream
from onward.server.streams.log import Event, StreamLog

MAX_SENT_BYTES = 65_536
"""Small events are sent together up to about this size."""


class StreamSender:
    """Sends the events of a log after the number `after` to one client, as they come."""

    def __init__(self, exchange: Exchange, log: StreamLog, after: int = 0) -> None:
        self.events = EventStream(exchange)
        self._exchange = exchange
        self._log = log
        self._after = after

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
        await exchange.end_response(last)

    async def _send_events(self) -> None:
        log, exchange = self._log, self._exchange
        async with aclosing(log.read(self._after)) as batches:
            async for events in batches:
                if log.error is not None and log.last == 1 and not exchange.response_started:
                    raise log.error
                await self._send(events)
        exchange.record.error = log.error.type if log.error is not None else ""

    async def _send(self, events: list[Event]) -> None:
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

    async def _send_parts(self, event: Event) -> None:
        await self.events.start()
        with self.events.event_in_parts():
            for part in event:
                await self._exchange.send_chunk(part)
