"""OpenAI's answers: a completion, or its chunks as server-sent events."""

from __future__ import annotations

from onward.api.openai.encode import completion_parts, encode_completion, num_values
from onward.api.openai.fold import Chunks, FoldedChoices, Identity
from onward.api.openai.parts import ChoiceParts
from onward.api.openai.response import Chunk, Completion
from onward.api.reply import Event
from onward.api.sse import DONE, KEEP_ALIVE, chunk_event, chunk_event_parts
from onward.completions.answer import Answer
from onward.completions.delta import Delta, TokenCounts
from onward.completions.request import CompletionRequest
from onward.offload import MAX_INLINE_SIZE


class OpenAIReply:
    """Writes one answer. `schema` is the URL of the JSON Schema that a whole answer names."""

    content_type = "text/event-stream"
    keep_alive = KEEP_ALIVE
    is_complete = False

    def __init__(self, request: CompletionRequest, *, schema: str | None = None) -> None:
        self.is_stream = request.stream
        self.identity = Identity()
        self._request = request
        self._schema = schema
        self._parts = ChoiceParts(request)
        self._folded = FoldedChoices()
        self._chunks: Chunks

    def begin(self, answer: Answer) -> None:
        self._chunks = Chunks(self._request, self.identity, answer.model, answer.fingerprint)

    async def feed(self, deltas: list[Delta], counts: TokenCounts) -> list[Event]:
        for delta in deltas:
            if delta.prompt is not None:
                await self._parts.prepare(delta.index, delta.prompt)
        choices = self._parts.write_prepared(deltas)
        if not self.is_stream:
            self._folded.add(choices)
            return []
        return self._events(self._chunks.of(choices, counts), num_values(choices))

    async def end(self, counts: TokenCounts) -> list[Event]:
        if self.is_stream:
            return [*self._events(self._chunks.last(counts), 0), DONE]
        completion = self._chunks.whole(self._folded.choices(), counts)
        return [encoded(completion, self._schema)]

    def without_choices(self, counts: TokenCounts) -> Completion:
        """Return what the whole answer has besides its choices."""
        return self._chunks.whole([], counts)

    def _events(self, chunks: list[Chunk], size: int) -> list[Event]:
        """Return the events of one step: encoded at once, or where they are large, in parts."""
        obfuscate = self._request.include_obfuscation
        if size <= MAX_INLINE_SIZE:
            return [chunk_event(chunk, obfuscate=obfuscate) for chunk in chunks]
        return [chunk_event_parts(chunk, obfuscate=obfuscate) for chunk in chunks]


def encoded(completion: Completion, schema: str | None = None) -> Event:
    """Return the body of a whole answer; a large one is consumed as its parts are encoded."""
    if num_values(completion.choices) <= MAX_INLINE_SIZE:
        return encode_completion(completion, schema=schema)
    return completion_parts(completion, schema=schema)
