"""One completion in any API, from a running answer to its receiver. A `Reply` writes it in the API's shapes; a `Sink`
takes what is written: a connection, or the log of a stream that is kept."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Protocol

from onward.completions.answer import Answer, Delta, TokenCounts, merged
from onward.errors import RequestCancelled

ReplyEvent = bytes | Iterator[bytes]
"""One event of a stream, or a whole answer. One of megabytes is an iterator over its parts, each of which is encoded
when it is taken, on a thread."""


class Reply(Protocol):
    """Writes one answer in an API's shapes. Of a whole answer, `feed` returns nothing and `end` returns all."""

    is_stream: bool
    content_type: str
    """The media type of streams; whole answers are application/json."""
    keep_alive: bytes
    """Sent on a silent stream; empty where the format has no comments."""

    def begin(self, answer: Answer) -> None:
        """Called when the answer's model has accepted the request."""

    async def feed(self, deltas: list[Delta], counts: TokenCounts) -> list[ReplyEvent]:
        """Add what one step generated, and return what a stream sends of it."""
        ...

    @property
    def is_complete(self) -> bool:
        """Whether the rest of the answer is not needed."""
        ...

    async def end(self, counts: TokenCounts) -> list[ReplyEvent]:
        """Return the last events of the stream, or the whole answer."""
        ...


class Sink(Protocol):
    """Receives what a reply writes. Each method waits while there is no room."""

    async def send(self, events: list[ReplyEvent]) -> None:
        """Take the events of one step."""

    async def end(self, events: list[ReplyEvent]) -> None:
        """Take the last events, or the whole answer."""

    async def fail(self, exception: Exception) -> None:
        """Take the error that ended the answer early. May raise it instead."""


async def forward(answer: Answer, reply: Reply, sink: Sink) -> None:
    """Send an answer that was accepted to its end, and close it: what the last step generated with the last events.
    Raises RequestCancelled, and what the sink raises."""
    try:
        try:
            last: list[ReplyEvent] | None = None
            async for deltas in answer:
                events = await reply.feed(deltas, answer.counts)
                if answer.has_ended or reply.is_complete:
                    last = [*events, *await reply.end(answer.counts)]
                    if not answer.has_ended:
                        break
                elif events:
                    await sink.send(events)
            if last is None:
                last = await reply.end(answer.counts)
        except (RequestCancelled, SinkClosed):
            raise
        except Exception as exception:
            await sink.fail(exception)
        else:
            await sink.end(last)
    finally:
        await answer.aclose()


class SinkClosed(Exception):
    """The receiver of the answer is gone: base class of what sinks raise then."""


class OneChoice:
    """Base class of the replies of APIs with one choice: one delta per step, and the text so far. They read an answer
    to its end. Subclasses implement `write` and `finish`."""

    content_type = "text/event-stream"
    keep_alive = b""
    is_complete = False

    def __init__(self, *, is_stream: bool) -> None:
        self.is_stream = is_stream
        self._model = ""
        self._texts: list[str] = []

    def begin(self, answer: Answer) -> None:
        self._model = answer.model

    async def feed(self, deltas: list[Delta], counts: TokenCounts) -> list[ReplyEvent]:
        (delta,) = merged(deltas)
        written = self.write(delta, counts)
        return [written] if written and self.is_stream else []

    async def end(self, counts: TokenCounts) -> list[ReplyEvent]:
        return [self.finish(counts)]

    def write(self, delta: Delta, counts: TokenCounts) -> bytes:
        """Add what one step generated, and return what a stream sends of it."""
        raise NotImplementedError

    def finish(self, counts: TokenCounts) -> bytes:
        """Return the end of the stream, or the whole answer."""
        raise NotImplementedError


class Stopwatch:
    """How long the two stages of a completion took, in seconds, as other APIs report it.

    The prompt's stage, with any wait for the model, ends with the first token.
    """

    def __init__(self) -> None:
        self._started = time.perf_counter()
        self._first: float | None = None
        self._last = self._started

    def mark(self) -> None:
        """Record that a token, or the end, has arrived."""
        self._last = time.perf_counter()
        if self._first is None:
            self._first = self._last

    @property
    def prompt_seconds(self) -> float:
        return (self._last if self._first is None else self._first) - self._started

    @property
    def decode_seconds(self) -> float:
        """Time since the first token."""
        return 0.0 if self._first is None else self._last - self._first

    @property
    def total_seconds(self) -> float:
        return self._last - self._started
