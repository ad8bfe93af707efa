"""The work on a stream that is kept: from a running answer to the events of its log."""

from __future__ import annotations

from functools import partial

import msgspec

from onward.api.openai.fold import FoldedChoices, Identity, fold_chunks
from onward.api.openai.parts import usage_of
from onward.completions.request import CompletionRequest
from onward.errors import RequestCancelled
from onward.offload import MAX_INLINE_SIZE, on_thread
from onward.protocol.encode import num_values
from onward.protocol.error_body import error_event
from onward.protocol.response import Chunk, Completion
from onward.protocol.sse import DONE, chunk_event, chunk_event_parts, event_id
from onward.server.error_response import convert_error
from onward.server.metrics import MeasuredAnswer
from onward.server.streams.kept import KeptStreams
from onward.server.streams.log import Event, StreamLog


async def fill(
    log: StreamLog,
    kept: KeptStreams,
    answer: MeasuredAnswer,
    request: CompletionRequest,
    identity: Identity,
    request_id: str,
) -> None:
    """Append the answer's chunks, then `[DONE]` or an error, as an ordinary stream would send them. Never raises but
    CancelledError. `request_id` is that of the request that began the stream, for the log."""
    try:
        async for chunks in fold_chunks(answer, request, identity):
            for chunk in chunks:
                await kept.append(log, await _event(chunk, log.last + 1, obfuscate=request.include_obfuscation))
        done = (event_id(log.last + 1) + DONE,)
        kept.end(log, done, completion=_without_choices(answer, identity))
    except RequestCancelled:
        kept.cancel(log)
    except Exception as exception:
        error = convert_error(exception, request_id)
        kept.end(log, (event_id(log.last + 1) + error_event(error),), error=error)
    finally:
        await answer.aclose()
        answer.settle()


async def _event(chunk: Chunk, number: int, *, obfuscate: bool) -> Event:
    """Return a chunk's event; a large one is encoded on a thread."""
    if num_values(chunk.choices) <= MAX_INLINE_SIZE:
        return (event_id(number) + chunk_event(chunk, obfuscate=obfuscate),)
    parts = chunk_event_parts(chunk, obfuscate=obfuscate)
    encoded = [event_id(number)]
    while part := await on_thread(partial(next, parts, b"")):
        encoded.append(part)
    return tuple(encoded)


def _without_choices(answer: MeasuredAnswer, identity: Identity) -> Completion:
    return Completion(
        id=identity.id,
        created=identity.created,
        model=answer.model,
        system_fingerprint=answer.fingerprint,
        choices=[],
        usage=usage_of(answer.counts),
    )


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
