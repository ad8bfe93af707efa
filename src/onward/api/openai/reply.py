"""OpenAI's `Reply`, and a completion or its chunks from an answer: the whole is a fold of the stream (law 1)."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Iterable
from dataclasses import dataclass, field

import msgspec

from onward.api.ids import completion_id
from onward.api.openai.choices import ChoiceParts, extend, usage_of
from onward.api.openai.encode import (
    ENCODER,
    chunk_event,
    chunk_event_parts,
    completion_parts,
    encode_completion,
    num_values,
)
from onward.api.openai.errors import openai_words
from onward.api.openai.response import Choice, Chunk, Completion, Logprobs, Usage
from onward.api.reply import ReplyEvent
from onward.api.sse import DONE, KEEP_ALIVE
from onward.completions.answer import Answer, Delta, TokenCounts
from onward.completions.request import CompletionRequest
from onward.offload import MAX_INLINE_SIZE

TEXT, EMPTY = b'"text":', b'""'


class OpenAIReply:
    """Writes one answer. `schema` is the URL of the JSON Schema that a whole answer names; `identity` None: a
    new one."""

    content_type = "text/event-stream"
    keep_alive = KEEP_ALIVE
    is_complete = False

    def __init__(
        self, request: CompletionRequest, *, schema: str | None = None, identity: Identity | None = None
    ) -> None:
        self.is_stream = request.stream
        self.identity = identity or Identity()
        self._request = request
        self._schema = schema
        self._parts = ChoiceParts(request)
        self._folded = FoldedChoices()
        self._chunks: Chunks
        has_more = request.return_token_ids or request.continuous_usage_stats or request.include_obfuscation
        self._has_plain_events = request.stream and request.logprobs is None and not has_more
        """Whether events between the first and the last of a choice differ in their text only."""
        self._around_text: dict[int, tuple[bytes, bytes]] = {}
        """By choice, what such an event has before and after its text."""

    def begin(self, answer: Answer) -> None:
        self._chunks = Chunks(self._request, self.identity, answer.model, answer.fingerprint)

    async def feed(self, deltas: list[Delta], counts: TokenCounts) -> list[ReplyEvent]:
        if len(deltas) == 1 and self._is_plain(delta := deltas[0]):
            return [self._plain_event(delta, counts)]
        for delta in deltas:
            if delta.prompt is not None:
                await self._parts.prepare(delta.index, delta.prompt)
        choices = self._parts.write_prepared(deltas)
        if not self.is_stream:
            self._folded.add(choices)
            return []
        return self._events(self._chunks.of(choices, counts), num_values(choices))

    def _is_plain(self, delta: Delta) -> bool:
        is_between = delta.prompt is None and delta.finish is None
        return is_between and self._has_plain_events and len(delta.text) <= MAX_INLINE_SIZE

    def _plain_event(self, delta: Delta, counts: TokenCounts) -> bytes:
        """Return the event that `_events` has for such a delta. Most tokens of streams are sent so, and encoding the
        whole chunk for each takes five times as long."""
        around = self._around_text.get(delta.index)
        if around is None:
            [chunk] = self._chunks.of([Choice(text="", index=delta.index)], counts)
            before, name, after = chunk_event(chunk).partition(TEXT)  # inside strings quotes are escaped
            around = self._around_text[delta.index] = before + name, after.removeprefix(EMPTY)
        return around[0] + ENCODER.encode(delta.text) + around[1]

    async def end(self, counts: TokenCounts) -> list[ReplyEvent]:
        if self.is_stream:
            return [*self._events(self._chunks.last(counts), 0), DONE]
        completion = self._chunks.whole(self._folded.choices(), counts)
        return [encoded(completion, self._schema)]

    def without_choices(self, counts: TokenCounts) -> Completion:
        """Return the whole answer without its choices."""
        return self._chunks.whole([], counts)

    def _events(self, chunks: list[Chunk], size: int) -> list[ReplyEvent]:
        """Return the events of one step: encoded at once, or where they are large, in parts."""
        obfuscate = self._request.include_obfuscation
        if size <= MAX_INLINE_SIZE:
            return [chunk_event(chunk, obfuscate=obfuscate) for chunk in chunks]
        return [chunk_event_parts(chunk, obfuscate=obfuscate) for chunk in chunks]


def encoded(completion: Completion, schema: str | None = None) -> ReplyEvent:
    """Return the body of a whole answer; a large one is consumed as its parts are encoded."""
    if num_values(completion.choices) <= MAX_INLINE_SIZE:
        return encode_completion(completion, schema=schema)
    return completion_parts(completion, schema=schema)


@dataclass(frozen=True, slots=True)
class Identity:
    """What all chunks of a response have in common. `created` is in Unix seconds."""

    id: str = field(default_factory=completion_id)
    created: int = field(default_factory=lambda: int(time.time()))


class Chunks:
    """Makes the chunks of one answer, and the completion that they fold to."""

    def __init__(self, request: CompletionRequest, identity: Identity, model: str, fingerprint: str) -> None:
        self._request = request
        self._identity = identity
        self._model = model
        self._fingerprint = fingerprint

    def of(self, choices: list[Choice], counts: TokenCounts) -> list[Chunk]:
        """Return the chunks of one step, one per partial choice."""
        running = usage_of(counts) if self._request.continuous_usage_stats else None
        return [self._chunk([choice], running) for choice in choices]

    def last(self, counts: TokenCounts) -> list[Chunk]:
        """Return the chunk at the end that `include_usage` asks for."""
        return [self._chunk([], usage_of(counts))] if self._request.include_usage else []

    def whole(self, choices: list[Choice], counts: TokenCounts) -> Completion:
        """Return the completion of these choices."""
        return Completion(
            id=self._identity.id,
            created=self._identity.created,
            model=self._model,
            system_fingerprint=self._fingerprint,
            choices=choices,
            usage=usage_of(counts),
        )

    def _chunk(self, choices: list[Choice], usage: Usage | None) -> Chunk:
        return Chunk(
            id=self._identity.id,
            object="text_completion",
            created=self._identity.created,
            choices=choices,
            model=self._model,
            system_fingerprint=self._fingerprint,
            wire_usage=usage if self._request.include_usage else msgspec.UNSET,
        )


async def fold_whole(answer: Answer, request: CompletionRequest) -> Completion:
    """Wait for the whole answer and return the completion. Raises ApiError if generation fails."""
    chunks = Chunks(request, Identity(), answer.model, answer.fingerprint)
    parts, folded = ChoiceParts(request), FoldedChoices()
    with openai_words():
        async for deltas in answer:
            folded.add(await parts.write(deltas))
    return chunks.whole(folded.choices(), answer.counts)


async def fold_chunks(answer: Answer, request: CompletionRequest) -> AsyncGenerator[list[Chunk]]:
    """Yield the chunks of each engine step; with `include_usage`, one more chunk at the end.

    Raises ApiError if generation fails.
    """
    chunks = Chunks(request, Identity(), answer.model, answer.fingerprint)
    parts = ChoiceParts(request)
    with openai_words():
        async for deltas in answer:
            yield chunks.of(await parts.write(deltas), answer.counts)
    if request.include_usage:
        yield chunks.last(answer.counts)


class FoldedChoices:
    """Joins partial choices by index."""

    def __init__(self) -> None:
        self._texts: dict[int, list[str]] = {}
        self._choices: dict[int, Choice] = {}

    def add(self, parts: Iterable[Choice]) -> None:
        """Append partial choices. They are not modified."""
        for part in parts:
            self._texts.setdefault(part.index, []).append(part.text)
            whole = self._choices.get(part.index)
            if whole is None:
                self._choices[part.index] = msgspec.structs.replace(part, logprobs=_copied(part))
                if isinstance(part.token_ids, list):
                    self._choices[part.index].token_ids = list(part.token_ids)
                continue
            if whole.logprobs is not None and part.logprobs is not None:
                extend(whole.logprobs, part.logprobs)
            if isinstance(whole.token_ids, list) and isinstance(part.token_ids, list):
                whole.token_ids += part.token_ids
            whole.finish_reason = part.finish_reason or whole.finish_reason

    def choices(self) -> list[Choice]:
        """Return the complete choices, ordered by index."""
        return [
            msgspec.structs.replace(self._choices[index], text="".join(self._texts[index]))
            for index in sorted(self._choices)
        ]


def _copied(part: Choice) -> Logprobs | None:
    """Return a copy to extend: the partial choice may be in use elsewhere."""
    if part.logprobs is None:
        return None
    logprobs = msgspec.structs.replace(part.logprobs, tokens=[], token_logprobs=[], text_offset=[])
    logprobs.top_logprobs = None if part.logprobs.top_logprobs is None else []
    extend(logprobs, part.logprobs)
    return logprobs
