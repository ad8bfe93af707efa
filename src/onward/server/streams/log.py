"""The events of one stream, numbered, for the connection that reads them and for those that take over from it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator

from onward.api.openai.response import Completion
from onward.errors import ApiError, NotFound
from onward.server.account import Account

LoggedEvent = tuple[bytes, ...]
"""An encoded event with its id. Only an event of many kilobytes has more than one part."""

LOG_BYTES = 2048
"""What a log counts for without its events, about what its objects take."""
EVENT_BYTES = 128
"""What an event counts for besides its own bytes."""


class StreamLog:
    """What was sent of a stream and what is still to be sent. Belongs to one event loop.

    One connection reads it at a time: a new reader takes over, because the one before is most often a connection whose
    loss the server has not noticed yet. `owner` identifies the key that the request was sent with, None without keys;
    `client` whoever has a share of the memory for streams: a key, or an address. `account` learns what was sent.
    `drawn_seed`: of a request without a seed.
    """

    def __init__(
        self,
        id: str,
        owner: str | None,
        client: str,
        model: str,
        account: Account | None = None,
        drawn_seed: int | None = None,
    ) -> None:
        self.id = id
        self.owner = owner
        self.client = client
        self.model = model
        self.account = account
        self.drawn_seed = drawn_seed
        self.num_bytes = LOG_BYTES
        self.is_ended = False
        self.is_cancelled = False
        self.error: ApiError | None = None
        """The error that ended the stream; its event is the last one."""
        self.completion: Completion | None = None
        """The whole answer without its choices, once the stream has ended well."""
        self._first = 1
        self._events: list[LoggedEvent] = []
        self._reader: object | None = None
        self._num_read = 0
        self._changed = asyncio.Event()

    @property
    def first(self) -> int:
        """Number of the first event that is kept."""
        return self._first

    @property
    def last(self) -> int:
        """Number of the last event so far; 0 before the first one."""
        return self._first + len(self._events) - 1

    @property
    def is_read(self) -> bool:
        """Whether a connection reads the events."""
        return self._reader is not None

    @property
    def is_read_to_the_end(self) -> bool:
        """Whether a connection reads the events and has had all of them."""
        return self.is_read and self._num_read == self.last

    def append(self, event: LoggedEvent) -> None:
        """Add the next event."""
        self._events.append(event)
        self.num_bytes += event_size(event)
        self._notify()

    def end(self, *, error: ApiError | None = None, completion: Completion | None = None) -> None:
        """State that the last event was added, and whether the stream ended well."""
        self.is_ended, self.error, self.completion = True, error, completion
        self._notify()

    def cancel(self) -> None:
        """End the stream without a last event: whoever reads it raises NotFound."""
        self.is_ended = self.is_cancelled = True
        self._notify()

    def drop_read_events(self) -> bool:
        """Forget the events that the current reader has had. Returns whether there were any."""
        count = self._num_read - self._first + 1 if self.is_read else 0
        if count <= 0:
            return False
        self.num_bytes -= sum(map(event_size, self._events[:count]))
        del self._events[:count]
        self._first += count
        return True

    def kept_events(self) -> list[LoggedEvent]:
        """Return the events that are kept, in order."""
        return list(self._events)

    async def read(self, after: int) -> AsyncGenerator[list[LoggedEvent]]:
        """Yield the events after the number `after`, which are kept, as they come.

        Raises NotFound when the stream is cancelled, or another reader takes over.
        """
        reader = self._reader = object()
        position = self._num_read = after
        self._notify()
        try:
            while True:
                if self._reader is not reader or self.is_cancelled:
                    raise _not_ours_any_more()
                if new := self._events[position - self._first + 1 :]:
                    yield new
                    position += len(new)
                    if self._reader is reader:
                        self._num_read = position
                        self._notify()
                elif self.is_ended:
                    return
                else:
                    await self.wait_for_change()
        finally:
            if self._reader is reader:
                self._reader = None
                self._notify()

    async def wait_for_change(self) -> None:
        """Return when an event was added or read, a reader came or went, or the stream ended."""
        await self._changed.wait()

    async def wait_until_ended(self) -> None:
        """Return when the stream has ended. Raises NotFound if it was cancelled."""
        while not self.is_ended:
            await self.wait_for_change()
        if self.is_cancelled:
            raise _not_ours_any_more()

    def _notify(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()


def event_size(event: LoggedEvent) -> int:
    """Return the bytes that an event counts for."""
    return EVENT_BYTES + sum(map(len, event))


def _not_ours_any_more() -> ApiError:
    return NotFound("The stream was cancelled, or another connection has taken over.", code="stream_cancelled")
