"""The work on a stream that is kept: its log takes what the reply writes, numbered."""

from __future__ import annotations

from functools import partial

import msgspec

from onward.api.openai.error_body import error_event
from onward.api.openai.fold import FoldedChoices
from onward.api.openai.reply import OpenAIReply
from onward.api.openai.response import Chunk, Completion
from onward.api.reply import Event as ReplyEvent
from onward.api.reply import forward
from onward.api.sse import event_id
from onward.completions.answer import Answer
from onward.errors import RequestCancelled
from onward.offload import on_thread
from onward.server.error_response import convert_error
from onward.server.streams.kept import KeptStreams
from onward.server.streams.log import Event, StreamLog


async def fill(log: StreamLog, kept: KeptStreams, answer: Answer, reply: OpenAIReply, request_id: str) -> None:
    """Append the answer's events, then `[DONE]` or an error, as an ordinary stream would send them. Never raises but
    CancelledError. `request_id` is that of the request that began the stream, for the server's log."""
    try:
        await forward(answer, reply, _LogSink(log, kept, answer, reply, request_id))
    except RequestCancelled:
        kept.cancel(log)


class _LogSink:
    """Takes what a reply writes into the log of a stream."""

    def __init__(self, log: StreamLog, kept: KeptStreams, answer: Answer, reply: OpenAIReply, request_id: str) -> None:
        self._log = log
        self._kept = kept
        self._answer = answer
        self._reply = reply
        self._request_id = request_id

    async def send(self, events: list[ReplyEvent]) -> None:
        for event in events:
            await self._kept.append(self._log, await self._numbered(event))

    async def end(self, events: list[ReplyEvent]) -> None:
        *others, last = events
        await self.send(others)
        completion = self._reply.without_choices(self._answer.counts)
        self._kept.end(self._log, await self._numbered(last), completion=completion)

    async def fail(self, exception: Exception) -> None:
        error = convert_error(exception, self._request_id)
        self._kept.end(self._log, await self._numbered(error_event(error)), error=error)

    async def _numbered(self, event: ReplyEvent) -> Event:
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


def _decode(event: Event) -> Chunk:
    _, _, data = b"".join(event).partition(b"\ndata: ")
    return msgspec.json.decode(data, type=Chunk)
