"""A completion of OpenAI's API from an answer, or its chunks: the whole is a fold of the stream (law 1)."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Iterable
from dataclasses import dataclass, field

import msgspec

from onward.api.ids import completion_id
from onward.api.openai.logprobs import extend
from onward.api.openai.parts import ChoiceParts, usage_of
from onward.api.openai.response import Choice, Chunk, Completion, Logprobs, Usage
from onward.api.openai.words import openai_words
from onward.completions.answer import Answer
from onward.completions.delta import TokenCounts
from onward.completions.request import CompletionRequest


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
            usage=usage if self._request.include_usage else msgspec.UNSET,
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
